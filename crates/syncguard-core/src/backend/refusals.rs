//! [`Refusals`]: when to ask a store again that refused wake-ups.

use std::time::Duration;

use tokio::time::Instant;

/// For how long a backend does not ask a store again that refused wake-ups or could not be reached.
const REFUSED_FOR: Duration = Duration::from_secs(60);
const UNREACHABLE_FOR: Duration = Duration::from_secs(2);

/// When to ask a store again that refused wake-ups. Until then
/// [`watch`](crate::backend::LockBackend::watch) returns `None`; otherwise every caller that waits would
/// try.
///
/// ```
/// use syncguard_core::backend::Refusals;
///
/// let mut refusals = Refusals::default();
/// assert!(!refusals.in_force());
/// refusals.refused("my-store");
/// assert!(refusals.in_force());
/// ```
#[derive(Debug, Default)]
pub struct Refusals {
    until: Option<Instant>,
    was_said: bool,
}

impl Refusals {
    /// Whether the backend must not ask the store now.
    #[must_use]
    pub fn in_force(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// The store refuses wake-ups: do not ask it again for a minute. Logs the first refusal.
    pub fn refused(&mut self, backend: &str) {
        self.until = Some(Instant::now() + REFUSED_FOR);
        if !std::mem::replace(&mut self.was_said, true) {
            tracing::info!(
                backend,
                "the store gives no wake-ups; callers that wait poll"
            );
        }
    }

    /// The store could not be reached: do not ask it again for two seconds.
    pub fn unreachable(&mut self) {
        self.until = Some(Instant::now() + UNREACHABLE_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_is_asked_again_after_a_while() {
        let mut refusals = Refusals::default();
        for (set, lasts) in [
            (Refusals::unreachable as fn(&mut Refusals), UNREACHABLE_FOR),
            (|it| it.refused("store"), REFUSED_FOR),
        ] {
            assert!(!refusals.in_force());
            set(&mut refusals);
            tokio::time::advance(lasts - Duration::from_millis(1)).await;
            assert!(refusals.in_force());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(!refusals.in_force());
    }
}
