//! [`Job`]: one lock id to release.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::backend::{FenceToken, ReleaseRequest};
use crate::call::{Limits, Subject};
use crate::error::Operation;
use crate::observe::{
    ReclaimEnd, ReclaimResult, ReleaseErrorHandler, ReleaseFailure, ReleaseStage,
};
use crate::{Backoff, ErrorCode, Jitter, LockError, LockId, LockKey, Locks, ReleaseResult};

/// The first pause after a failure. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// The longest pause, unless the store has been unreachable for long; then the pause is a part of that time.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const PAUSES_PER_TIME_AWAY: u32 = 20;

/// The first pause after `NotHeld`, while the acquire may still arrive. Each further pause is eight times
/// as long: many callers can abandon an acquire of one held key.
const FIRST_STRAGGLER_PAUSE: Duration = Duration::from_millis(40);
const STRAGGLER_PAUSE_FACTOR: u32 = 8;

/// The release of one lock id. Thousands can be pending after an outage: it is small.
#[derive(Debug)]
pub(super) struct Job<F: FenceToken> {
    locks: Locks<F>,
    id: LockId,
    key: Option<LockKey>,
    on_error: Option<ReleaseErrorHandler>,
    after: Operation,
    persistence: Duration,
    straggler_window: Duration,
    started: Instant,
    /// When the next attempt is due.
    pub(super) due: Instant,
    failures: u32,
    not_held: Option<NotHeld>,
    /// `drain` waits until it is dropped.
    _pending: TaskTrackerToken,
}

const _: () = assert!(size_of::<Job<crate::Fence>>() <= 256);

/// The store has replied that the id holds nothing.
#[derive(Debug, Clone, Copy)]
struct NotHeld {
    since: Instant,
    pause: Duration,
}

/// The result of an attempt, for the worker.
#[derive(Debug)]
pub(super) enum Attempted<F: FenceToken> {
    /// The store replied. The job is done, or is due again later.
    Answered(Option<Job<F>>),
    /// The attempt failed with this code. The job is done, or is due again later.
    Failed(Option<Job<F>>, ErrorCode),
}

impl<F: FenceToken> Job<F> {
    pub(super) fn new(
        locks: &Locks<F>,
        id: LockId,
        key: Option<LockKey>,
        on_error: Option<ReleaseErrorHandler>,
        after: Operation,
        persistence: Duration,
        straggler_window: Duration,
    ) -> Self {
        let started = Instant::now();
        Self {
            locks: locks.clone(),
            id,
            key,
            on_error,
            after,
            persistence,
            straggler_window,
            started,
            due: started,
            failures: 0,
            not_held: None,
            _pending: locks.store().background.token(),
        }
    }

    /// Releases once.
    pub(super) async fn attempt(self) -> Attempted<F> {
        match self.release().await {
            Ok(ReleaseResult::Released) => {
                match &self.key {
                    Some(key) => self.locks.lines().freed(key),
                    None => self.locks.lines().released(&self.id),
                }
                self.end(ReclaimResult::Released);
                Attempted::Answered(None)
            }
            Ok(ReleaseResult::NotHeld { .. }) => Attempted::Answered(self.after_not_held()),
            Err(error) => {
                let code = error.code();
                Attempted::Failed(self.after_failure(error), code)
            }
        }
    }

    /// The acquire may still arrive: its release may have overtaken it on another connection.
    fn after_not_held(mut self) -> Option<Self> {
        let now = Instant::now();
        let NotHeld { since, pause } = self.not_held.unwrap_or(NotHeld {
            since: now,
            pause: FIRST_STRAGGLER_PAUSE,
        });
        let end = since + self.straggler_window;
        if now >= end || self.is_over() {
            self.end(ReclaimResult::NotHeld);
            return None;
        }
        self.due = end.min(now + pause);
        self.not_held = Some(NotHeld {
            since,
            pause: pause * STRAGGLER_PAUSE_FACTOR,
        });
        Some(self)
    }

    fn after_failure(mut self, error: LockError) -> Option<Self> {
        // Credentials can be rotated. A refusal for any other reason is permanent.
        let hopeless = !error.is_retryable()
            && !error.outcome_unknown()
            && error.code() != ErrorCode::AuthFailed;
        if hopeless || self.is_over() || self.locks.store().closed.is_cancelled() {
            self.give_up(error);
            return None;
        }
        self.due = Instant::now() + pause_after(self.failures, self.started.elapsed());
        self.failures = self.failures.saturating_add(1);
        Some(self)
    }

    /// Whether the job stops retrying: the lock has expired, or the store was unreachable for long.
    fn is_over(&self) -> bool {
        self.started.elapsed() >= self.persistence
    }

    /// Ends a job without an attempt if its time is over while attempts of other jobs fail with this code.
    pub(super) fn gives_up(&self, code: ErrorCode) -> bool {
        let over = self.is_over();
        if over {
            let error = LockError::new(
                code,
                "the store failed or did not reply until the retries ended",
            );
            self.give_up(self.subject().describe(error));
        }
        over
    }

    fn give_up(&self, error: LockError) {
        let failure = ReleaseFailure::new(error, ReleaseStage::Background);
        self.locks.store().report(&failure, self.on_error.as_ref());
        self.end(ReclaimResult::GivenUp);
    }

    fn end(&self, result: ReclaimResult) {
        let end = ReclaimEnd {
            backend: self.locks.store().capabilities.backend,
            after: self.after,
            lock_id: &self.id,
            result,
        };
        let observers = &self.locks.store().observers;
        observers.notify(|observer| observer.reclaim_ended(&end));
    }

    fn subject(&self) -> Subject<'_> {
        Subject::new(Operation::Release)
            .key(self.key.as_ref())
            .lock_id(&self.id)
    }

    async fn release(&self) -> Result<ReleaseResult, LockError> {
        let store = self.locks.store();
        let send = |deadline| {
            let request = ReleaseRequest::new(&self.id, deadline);
            store.backend.release(request)
        };
        let limits = Limits::default();
        store.bounded(&self.subject(), &limits, send).await
    }
}

/// The pause after this many failures in a row, since a store became unreachable.
pub(super) fn pause_after(failures: u32, away: Duration) -> Duration {
    let longest = LONGEST_PAUSE.max(away / PAUSES_PER_TIME_AWAY);
    Backoff::Exponential.delay(Jitter::Equal, FIRST_PAUSE, longest, failures)
}
