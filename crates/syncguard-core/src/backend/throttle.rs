//! [`Throttle`]: an action happens at most once per interval.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a lock must have been expired before a purge or a clean-up may delete it: the tolerance, and a
/// second more.
pub const CLEANUP_GUARD_MS: i64 = 2_000;

/// The shortest time between two clean-ups that `is_locked` starts.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(1);

/// Allows an action at most once per interval.
///
/// ```
/// use syncguard_core::backend::Throttle;
///
/// let throttle = Throttle::of_cleanups();
/// assert!(throttle.is_due());
/// assert!(!throttle.is_due());
/// ```
#[derive(Debug)]
pub struct Throttle {
    interval: Duration,
    last: Mutex<Option<Instant>>,
}

impl Throttle {
    /// One action per `interval`.
    #[must_use]
    pub const fn new(interval: Duration) -> Self {
        Self {
            interval,
            last: Mutex::new(None),
        }
    }

    /// One clean-up per second: what `is_locked` may start while it finds expired locks.
    #[must_use]
    pub const fn of_cleanups() -> Self {
        Self::new(CLEANUP_INTERVAL)
    }

    /// Whether the action may happen now; if so, it counts as done.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= self.interval);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}
