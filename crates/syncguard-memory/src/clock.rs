//! The store's clock: the machine's, or one that tests move.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use syncguard_core::backend::{Reporter, monotonic_now};

/// A clock that stands still until a test moves it. Clones share it.
///
/// Pass it to the store and, by [`monotonic`](Self::monotonic), to the `Locks`: then `remaining()` and
/// `lost()` of a lease follow it, too. A caller that waits for `lost()` wakes when the clock is moved.
///
/// ```
/// use std::time::Duration;
/// use syncguard_core::Locks;
/// use syncguard_memory::{ManualClock, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
/// let clock = ManualClock::new();
/// let locks = Locks::builder(MemoryBackend::with_clock(clock.clone()))
///     .monotonic_clock(clock.monotonic())
///     .build();
/// let guard = locks.lock("job:nightly").ttl(Duration::from_secs(30)).await?;
/// clock.advance(Duration::from_secs(31));
/// guard.lost().await;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Shown>);

#[derive(Debug)]
struct Shown {
    now_ms: AtomicI64,
    /// Those of the `Locks` whose stores have this clock.
    reporters: Mutex<Vec<Reporter>>,
}

impl ManualClock {
    /// A clock that starts at the present time.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Shown {
            now_ms: AtomicI64::new(system_now_ms()),
            reporters: Mutex::default(),
        }))
    }

    /// Moves the clock forward by whole milliseconds, up to the greatest time.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        // The closure never refuses, so neither does the update.
        let _ = self
            .0
            .now_ms
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
                Some(now.saturating_add(by))
            });
        let reporters = self.0.reporters.lock();
        for reporter in reporters.unwrap_or_else(PoisonError::into_inner).iter() {
            reporter.clock_moved();
        }
    }

    pub(crate) fn attach(&self, reporter: Reporter) {
        let reporters = self.0.reporters.lock();
        let mut reporters = reporters.unwrap_or_else(PoisonError::into_inner);
        reporters.retain(Reporter::is_attached);
        reporters.push(reporter);
    }

    /// The clock as a function for
    /// [`LocksBuilder::monotonic_clock`](syncguard_core::LocksBuilder::monotonic_clock).
    pub fn monotonic(&self) -> impl Fn() -> Duration + Send + Sync + 'static {
        let clock = self.clone();
        move || Duration::from_millis(u64::try_from(clock.now_ms()).unwrap_or_default())
    }

    /// The time of the clock, in Unix milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        self.0.now_ms.load(Ordering::SeqCst)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Clone)]
pub(crate) enum Clock {
    /// The Unix time at which the store was made, plus the monotonic time since: steps of the system's
    /// clock do not affect it.
    Machine {
        made_ms: i64,
        made_at: Duration,
    },
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn machine() -> Self {
        Self::Machine {
            made_ms: system_now_ms(),
            made_at: monotonic_now(),
        }
    }

    pub(crate) fn now_ms(&self) -> i64 {
        match self {
            Self::Machine { made_ms, made_at } => {
                let passed = monotonic_now().saturating_sub(*made_at).as_millis();
                made_ms.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    #[test]
    fn a_step_of_the_systems_clock_does_not_move_the_stores_clock() {
        for step_ms in [HOUR_MS, -HOUR_MS] {
            // As if the system's clock had made this step since.
            let made_ms = system_now_ms() - step_ms;
            let clock = Clock::Machine {
                made_ms,
                made_at: monotonic_now(),
            };
            let moved_ms = clock.now_ms() - made_ms;
            assert!((0..HOUR_MS / 2).contains(&moved_ms), "by {moved_ms} ms");
        }
    }
}
