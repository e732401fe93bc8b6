//! The clocks that all processes of a machine share.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Now, in microseconds on the machine's monotonic clock.
#[must_use]
pub fn now_us() -> i64 {
    micros(clock_gettime(ClockId::Monotonic))
}

/// How far the machine's wall clock is ahead of its monotonic one, in microseconds.
#[must_use]
pub fn wall_clock_offset_us() -> i64 {
    let before = now_us();
    let wall = micros(clock_gettime(ClockId::Realtime));
    wall - before.midpoint(now_us())
}

fn micros(time: Timespec) -> i64 {
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}
