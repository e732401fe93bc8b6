//! [`Clock`]: whose time it is, and how far apart the clocks are.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use syncguard_core::{ErrorCode, LockError, TimeAuthority};

use crate::FirestoreOptions;
use crate::options::WallClock;

/// Time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The time of an operation, and how far this machine's clock was from the server's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// By the authority.
    pub(crate) now_ms: i64,
    /// This machine's clock minus the server's.
    skew_ms: i64,
}

impl Moment {
    pub(crate) fn skew_ms(self) -> i64 {
        self.skew_ms
    }
}

/// Clones share what was measured.
#[derive(Clone)]
pub(crate) struct Clock {
    authority: TimeAuthority,
    wall: WallClock,
    warning: Duration,
    limit: Option<Duration>,
    measured: Arc<Mutex<Measured>>,
}

#[derive(Debug, Default)]
struct Measured {
    skew_ms: Option<i64>,
    warned: Option<Instant>,
}

impl Clock {
    pub(crate) fn new(options: FirestoreOptions) -> Self {
        Self {
            authority: options.time_authority,
            wall: options.wall_clock,
            warning: options.skew_warning,
            limit: options.skew_limit,
            measured: Arc::default(),
        }
    }

    pub(crate) fn authority(&self) -> TimeAuthority {
        self.authority
    }

    /// What this machine's clock shows.
    pub(crate) fn wall_ms(&self) -> i64 {
        (self.wall)()
    }

    /// The moment of a read that was sent at `sent_ms` and answered just now.
    pub(crate) fn moment(&self, sent_ms: i64, read_time_ms: i64) -> Moment {
        let received_ms = self.wall_ms();
        let skew_ms = skew(sent_ms, read_time_ms, received_ms);
        self.note(skew_ms);
        let now_ms = match self.authority {
            TimeAuthority::Server => read_time_ms,
            TimeAuthority::Client => received_ms,
        };
        Moment { now_ms, skew_ms }
    }

    /// Refuses to count a lease by a clock that is too far off, if so asked.
    pub(crate) fn admit(&self, moment: Moment) -> Result<(), LockError> {
        match self.limit {
            Some(limit) if self.matters() && exceeds(moment.skew_ms, limit) => Err(LockError::new(
                ErrorCode::Internal,
                format!(
                    "this machine's clock is {} ms ahead of Firestore's, and {limit:?} either \
                         way is the limit; synchronise it, or use the server's time",
                    moment.skew_ms
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The skew measured last.
    pub(crate) fn skew_ms(&self) -> Option<i64> {
        self.measured().skew_ms
    }

    fn note(&self, skew_ms: i64) {
        tracing::trace!(skew_ms, "compared the clock with Firestore's");
        let mut measured = self.measured();
        measured.skew_ms = Some(skew_ms);
        let quiet = measured
            .warned
            .is_some_and(|warned| warned.elapsed() < WARNING_INTERVAL);
        if quiet || !self.matters() || !exceeds(skew_ms, self.warning) {
            return;
        }
        measured.warned = Some(Instant::now());
        drop(measured);
        tracing::warn!(
            skew_ms,
            "this machine's clock and Firestore's are apart; leases are counted by it: synchronise it"
        );
    }

    fn matters(&self) -> bool {
        self.authority == TimeAuthority::Client
    }

    fn measured(&self) -> std::sync::MutexGuard<'_, Measured> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock")
            .field("authority", &self.authority)
            .field("skew_ms", &self.skew_ms())
            .finish_non_exhaustive()
    }
}

/// How far the local clock is ahead, as far as can be told for certain: the server read somewhere
/// between sending and receiving, so a slow answer is not taken for a skew.
fn skew(sent_ms: i64, read_time_ms: i64, received_ms: i64) -> i64 {
    let ahead = sent_ms.saturating_sub(read_time_ms).max(0);
    let behind = read_time_ms.saturating_sub(received_ms).max(0);
    ahead.saturating_sub(behind)
}

fn exceeds(skew_ms: i64, bound: Duration) -> bool {
    u128::from(skew_ms.unsigned_abs()) > bound.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certain_counts_as_skew() {
        assert_eq!(skew(1_000, 1_200, 5_000), 0, "a slow answer");
        assert_eq!(skew(1_000, 400, 1_010), 600, "ahead");
        assert_eq!(skew(1_000, 1_700, 1_010), -690, "behind");
        assert_eq!(skew(i64::MAX, i64::MIN, i64::MAX), i64::MAX);
    }

    #[test]
    fn bounds_are_exclusive() {
        let bound = Duration::from_millis(200);
        assert!(!exceeds(200, bound) && !exceeds(-200, bound));
        assert!(exceeds(201, bound) && exceeds(-201, bound));
        assert!(exceeds(i64::MIN, bound));
    }
}
