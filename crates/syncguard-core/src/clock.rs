//! The local clock that measures leases: monotonic, and it continues during suspend.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::time::Instant;

/// Time since some fixed point: monotonic, the time of a suspended machine included.
///
/// If a test pauses and advances Tokio's clock, this clock follows it. So leases, waits and an in-process
/// store agree on the time.
///
/// The default clock of a [`Locks`](crate::Locks). `std::time::Instant` does not count suspend on Linux:
/// afterwards a holder would still rely on a lease that expired during the suspend.
#[must_use]
pub fn monotonic_now() -> Duration {
    static START: LazyLock<(Duration, Instant)> = LazyLock::new(|| (since_boot(), Instant::now()));
    let (booted, started) = *START;
    // Tokio's clock does not count suspend: it is never ahead unless a test advances it.
    since_boot().saturating_sub(booted).max(started.elapsed())
}

/// The clock of a [`Locks`](crate::Locks).
#[derive(Clone)]
pub(crate) struct LeaseClock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl LeaseClock {
    pub(crate) fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(crate) fn now(&self) -> Duration {
        (self.0)()
    }
}

impl Default for LeaseClock {
    fn default() -> Self {
        Self::from_fn(monotonic_now)
    }
}

impl fmt::Debug for LeaseClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseClock({:?})", self.now())
    }
}

#[cfg(unix)]
fn since_boot() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    // On Apple's systems CLOCK_MONOTONIC counts sleep.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    let now = rustix::time::clock_gettime(CLOCK);
    // A clock that starts at boot is never negative.
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}

#[cfg(not(unix))]
fn since_boot() -> Duration {
    static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    START.elapsed()
}
