//! When a lease counts as live: one predicate, one tolerance.

/// For how many milliseconds after its expiry a lease may still count as live.
pub const TIME_TOLERANCE_MS: i64 = 1_000;

/// Whether a lease is live at `now_ms`. All three are milliseconds by the store's clock.
///
/// ```
/// # use syncguard_core::backend::{TIME_TOLERANCE_MS, is_live};
/// assert!(is_live(10_000, 10_999, TIME_TOLERANCE_MS));
/// assert!(!is_live(10_000, 11_000, TIME_TOLERANCE_MS));
/// ```
#[must_use]
pub const fn is_live(expires_at_ms: i64, now_ms: i64, tolerance_ms: i64) -> bool {
    expires_at_ms > now_ms.saturating_sub(tolerance_ms)
}
