//! The store's clock: the system's, or one that tests move.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A clock that stands still until it is moved. Clones are one clock.
///
/// It moves the *store's* time. A guard's `remaining()` follows the machine's own clock.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows the present.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(system_now_ms())))
    }

    /// Moves the clock forward, by whole milliseconds, to the end of time at the most.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        // The closure never refuses, so neither does the update.
        let _ = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
                Some(now.saturating_add(by))
            });
    }

    /// What it shows: Unix milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Clone)]
pub(crate) enum Clock {
    System,
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn now_ms(&self) -> i64 {
        match self {
            Self::System => system_now_ms(),
            Self::Manual(clock) => clock.now_ms(),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now_ms())
    }
}

fn system_now_ms() -> i64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}
