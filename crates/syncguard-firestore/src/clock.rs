//! [`AuthorityClock`]: whose time decides, and how far this machine's clock is from the server's.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use syncguard_core::backend::{Reporter, TimeAuthority};
use syncguard_core::{ErrorCode, LockError};

use crate::FirestoreOptions;
use crate::options::WallClock;

/// Time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The time of a read, and the skew at that time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// By the clock that decides.
    pub(crate) now_ms: i64,
    /// This machine's clock minus the server's.
    skew_ms: i64,
}

impl Moment {
    pub(crate) fn skew_ms(self) -> i64 {
        self.skew_ms
    }
}

/// Clones share the reporters and the time of the last warning.
#[derive(Clone)]
pub(crate) struct AuthorityClock {
    authority: TimeAuthority,
    wall: WallClock,
    warning: Duration,
    limit: Option<Duration>,
    warned: Arc<Mutex<Option<Instant>>>,
    reporters: Arc<Reporters>,
}

impl AuthorityClock {
    pub(crate) fn new(options: FirestoreOptions) -> Self {
        Self {
            authority: options.time_authority,
            wall: options.wall_clock,
            warning: options.skew_warning,
            limit: options.skew_limit,
            warned: Arc::default(),
            reporters: Arc::default(),
        }
    }

    pub(crate) fn authority(&self) -> TimeAuthority {
        self.authority
    }

    /// Adds a reporter: it gets all later comparisons.
    pub(crate) fn attach(&self, reporter: Reporter) {
        self.reporters.add(reporter);
    }

    /// The time by this machine's clock.
    pub(crate) fn wall_ms(&self) -> i64 {
        (self.wall)()
    }

    /// The moment of a read that was sent at `sent_ms` and answered just now.
    pub(crate) fn moment(&self, sent_ms: i64, read_time_ms: i64) -> Moment {
        let received_ms = self.wall_ms();
        let skew_ms = skew(sent_ms, read_time_ms, received_ms);
        self.note(skew_ms);
        let now_ms = if self.is_local() {
            received_ms
        } else {
            read_time_ms
        };
        Moment { now_ms, skew_ms }
    }

    /// Fails if the skew exceeds the limit, if there is one.
    pub(crate) fn admit(&self, moment: Moment) -> Result<(), LockError> {
        let skew_ms = moment.skew_ms;
        let exceeded = |limit: &Duration| self.is_local() && exceeds(skew_ms, *limit);
        let Some(limit) = self.limit.filter(exceeded) else {
            return Ok(());
        };
        let message = format!(
            "local clock differs from Firestore's by {skew_ms} ms, more than the limit of \
             {limit:?}; synchronize it or use server time"
        );
        Err(LockError::new(ErrorCode::Internal, message))
    }

    fn note(&self, skew_ms: i64) {
        tracing::trace!(skew_ms, "compared the local clock with Firestore's");
        self.reporters.report(skew_ms);
        if !self.is_local() || !exceeds(skew_ms, self.warning) {
            return;
        }
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_some_and(|warned| warned.elapsed() < WARNING_INTERVAL) {
            return;
        }
        *warned = Some(Instant::now());
        drop(warned);
        tracing::warn!(
            skew_ms,
            "local clock differs from Firestore's by {skew_ms} ms; synchronize it: \
             it decides when leases expire"
        );
    }

    /// Whether this machine's clock decides when leases end.
    fn is_local(&self) -> bool {
        self.authority == TimeAuthority::Client
    }
}

/// The reporters of the skew: one for each `Locks` over a clone of the backend.
#[derive(Default)]
struct Reporters(Mutex<Arc<[Reporter]>>);

impl Reporters {
    fn add(&self, reporter: Reporter) {
        let mut list = self.list();
        *list = attached(&list).chain([reporter]).collect();
    }

    /// Reports outside the mutex: observers are the application's code.
    fn report(&self, skew_ms: i64) {
        let list = self.list();
        if list.is_empty() {
            return;
        }
        let reporters = Arc::clone(&list);
        drop(list);
        for reporter in reporters.iter() {
            reporter.clock_skew_ms(skew_ms);
        }
        if !reporters.iter().all(Reporter::is_attached) {
            let mut list = self.list();
            *list = attached(&list).collect();
        }
    }

    fn list(&self) -> MutexGuard<'_, Arc<[Reporter]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reporters whose `Locks` is still in use.
fn attached(list: &[Reporter]) -> impl Iterator<Item = Reporter> {
    list.iter()
        .filter(|reporter| reporter.is_attached())
        .cloned()
}

impl fmt::Debug for AuthorityClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorityClock")
            .field("authority", &self.authority)
            .field("reporters", &self.reporters.list().len())
            .finish_non_exhaustive()
    }
}

/// How far the local clock is certainly ahead. The server read at some time between sending and receiving,
/// so a slow reply does not count as skew.
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
