//! [`Reclaim`]: settles in the background what an abandoned operation may have left in the store.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use crate::backend::{FenceToken, ReleaseRequest};
use crate::call::{Limits, Subject};
use crate::error::Operation;
use crate::observe::{
    ReclaimEnd, ReclaimResult, ReleaseErrorHandler, ReleaseFailure, ReleaseStage,
};
use crate::{Backoff, Jitter, LockError, LockId, LockKey, Locks, ReleaseResult, Ttl};

/// For how long, at the least, an abandoned acquire may still arrive at the store after the first
/// `NotHeld`: its own release may have overtaken it on another connection. A longer operation timeout
/// gives stragglers as long.
const STRAGGLER_WINDOW: Duration = Duration::from_secs(1);

/// For how long a release is repeated: the TTL of its lock is not known here.
const RELEASE_PERSISTENCE: Duration = Duration::from_secs(60 * 60);

const FIRST_DELAY: Duration = Duration::from_millis(25);

/// The longest delay while the store has not been away for long; then a part of that time.
const LONGEST_DELAY: Duration = Duration::from_secs(1);
const DELAYS_PER_TIME_AWAY: u32 = 20;

/// While armed, dropping it releases the lock id in the background.
///
/// It is armed before the request leaves, so there is no point at which a caller could go away
/// and leave a lock that nobody knows of.
#[derive(Debug)]
pub(crate) struct Reclaim<'a, F: FenceToken> {
    locks: &'a Locks<F>,
    /// `None` once disarmed.
    runtime: Option<Handle>,
    id: &'a LockId,
    key: Option<&'a LockKey>,
    on_error: Option<&'a ReleaseErrorHandler>,
    /// The operation that was abandoned, and the TTL of an acquire.
    after: Operation,
    ttl: Option<Ttl>,
}

impl<'a, F: FenceToken> Reclaim<'a, F> {
    pub(crate) fn of_acquire(
        locks: &'a Locks<F>,
        runtime: Handle,
        id: &'a LockId,
        key: &'a LockKey,
        ttl: Ttl,
        on_error: Option<&'a ReleaseErrorHandler>,
    ) -> Self {
        Self {
            locks,
            runtime: Some(runtime),
            id,
            key: Some(key),
            on_error,
            after: Operation::Acquire,
            ttl: Some(ttl),
        }
    }

    pub(crate) fn of_release(
        locks: &'a Locks<F>,
        runtime: Handle,
        id: &'a LockId,
        key: Option<&'a LockKey>,
        on_error: Option<&'a ReleaseErrorHandler>,
    ) -> Self {
        Self {
            locks,
            runtime: Some(runtime),
            id,
            key,
            on_error,
            after: Operation::Release,
            ttl: None,
        }
    }

    /// Nothing is left to settle. Returns the runtime that it would have worked on.
    pub(crate) fn disarm(mut self) -> Option<Handle> {
        self.runtime.take()
    }
}

impl<F: FenceToken> Drop for Reclaim<'_, F> {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        let operation_timeout = self.locks.settings().operation_timeout;
        let (persistence, straggler_window) = match self.ttl {
            // The lock can be granted no later than the deadline, and then lives for its TTL.
            Some(ttl) => (
                operation_timeout.saturating_add(ttl.as_duration()),
                STRAGGLER_WINDOW
                    .max(operation_timeout)
                    .min(ttl.as_duration()),
            ),
            None => (RELEASE_PERSISTENCE, Duration::ZERO),
        };
        let job = Job {
            locks: self.locks.clone(),
            id: *self.id,
            key: self.key.cloned(),
            on_error: self.on_error.cloned(),
            after: self.after,
            persistence,
            straggler_window,
        };
        self.locks.spawn(&runtime, job.run());
    }
}

#[derive(Debug)]
struct Job<F: FenceToken> {
    locks: Locks<F>,
    id: LockId,
    key: Option<LockKey>,
    on_error: Option<ReleaseErrorHandler>,
    after: Operation,
    persistence: Duration,
    straggler_window: Duration,
}

impl<F: FenceToken> Job<F> {
    async fn run(self) {
        let result = self.settle().await;
        let end = ReclaimEnd {
            backend: self.locks.store().capabilities.backend,
            after: self.after,
            lock_id: &self.id,
            result,
        };
        self.locks
            .observers()
            .notify(|observer| observer.reclaim_ended(&end));
    }

    async fn settle(&self) -> ReclaimResult {
        let started = Instant::now();
        let mut first_not_held = None;
        let mut attempt = 0;
        loop {
            let failure = match self.release().await {
                Ok(ReleaseResult::Released) => return ReclaimResult::Released,
                Ok(ReleaseResult::NotHeld { .. }) => {
                    let since = *first_not_held.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.straggler_window {
                        return ReclaimResult::NotHeld;
                    }
                    None
                }
                Err(error) => Some(error),
            };
            let spent = started.elapsed();
            let closed = &self.locks.store().closed;
            let hopeless = |error: &LockError| {
                closed.is_cancelled() || (!error.is_retryable() && !error.outcome_unknown())
            };
            if spent >= self.persistence || failure.as_ref().is_some_and(hopeless) {
                let Some(error) = failure else {
                    return ReclaimResult::NotHeld;
                };
                let failure = ReleaseFailure::new(error, ReleaseStage::Background);
                self.locks.report(&failure, self.on_error.as_ref());
                return ReclaimResult::GivenUp;
            }
            let pause = Backoff::Exponential.delay(Jitter::Equal, FIRST_DELAY, attempt);
            let pause = pause.min(LONGEST_DELAY.max(spent / DELAYS_PER_TIME_AWAY));
            // Once closed, the next attempt fails.
            drop(timeout(pause, closed.cancelled()).await);
            attempt += 1;
        }
    }

    async fn release(&self) -> Result<ReleaseResult, LockError> {
        let subject = Subject::new(Operation::Release)
            .key(self.key.as_ref())
            .lock_id(&self.id);
        let send = |deadline| {
            let request = ReleaseRequest::new(&self.id, deadline);
            self.locks.backend().release(request)
        };
        self.locks.bounded(subject, &Limits::default(), send).await
    }
}
