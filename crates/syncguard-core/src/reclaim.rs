//! [`Reclaim`]: settles what an abandoned call may have left in the store.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use crate::managed::{current_runtime, timed_out};
use crate::{
    Backoff, Jitter, LockBackend, LockError, LockId, Operation, Policy, ReclaimResult,
    ReleaseResult, Ttl,
};

/// For how long, at the least, an abandoned acquire may still arrive at the store after the first
/// `NotHeld`: it can have been overtaken by its own release on another connection. Where operations
/// are given more time than this, so are stragglers.
const STRAGGLER_WINDOW: Duration = Duration::from_secs(1);

/// How long a release is repeated: the TTL of its lock is not known here.
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
pub(crate) struct Reclaim<B: LockBackend> {
    job: Option<Job<B>>,
    runtime: Handle,
    started: Duration,
}

#[derive(Debug)]
struct Job<B> {
    backend: B,
    policy: Policy,
    id: LockId,
    /// The call that was abandoned.
    after: Operation,
    persistence: Duration,
    straggler_window: Duration,
}

impl<B: LockBackend> Reclaim<B> {
    pub(crate) fn of_acquire(
        backend: &B,
        policy: &Policy,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<Self, LockError> {
        let stragglers = STRAGGLER_WINDOW.max(policy.operation_timeout());
        Self::arm(Job {
            backend: backend.clone(),
            policy: policy.clone(),
            id: *id,
            after: Operation::Acquire,
            // The lock can be granted no later than the deadline, and then lives for its TTL.
            persistence: policy.operation_timeout().saturating_add(ttl.as_duration()),
            straggler_window: stragglers.min(ttl.as_duration()),
        })
    }

    pub(crate) fn of_release(backend: &B, policy: &Policy, id: &LockId) -> Result<Self, LockError> {
        Self::arm(Job {
            backend: backend.clone(),
            policy: policy.clone(),
            id: *id,
            after: Operation::Release,
            persistence: RELEASE_PERSISTENCE,
            straggler_window: Duration::ZERO,
        })
    }

    fn arm(job: Job<B>) -> Result<Self, LockError> {
        Ok(Self {
            runtime: current_runtime()?,
            started: job.policy.clock().now(),
            job: Some(job),
        })
    }

    /// Time since it was armed, by the clock that runs through suspend.
    pub(crate) fn elapsed(&self) -> Duration {
        self.job.as_ref().map_or(Duration::ZERO, |job| {
            job.policy.clock().now().saturating_sub(self.started)
        })
    }

    pub(crate) fn disarm(mut self) {
        self.job = None;
    }
}

impl<B: LockBackend> Drop for Reclaim<B> {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            let policy = job.policy.clone();
            policy.spawn(&self.runtime, job.run());
        }
    }
}

impl<B: LockBackend> Job<B> {
    async fn run(self) {
        let result = self.settle().await;
        let observers = self.policy.observers();
        observers.tell(|observer| observer.reclaimed(self.after, result));
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
            let hopeless = |error: &LockError| !error.is_retryable() && !error.outcome_unknown();
            if spent >= self.persistence || failure.as_ref().is_some_and(hopeless) {
                let Some(error) = failure else {
                    return ReclaimResult::NotHeld;
                };
                let error = error.with_lock_id(&self.id);
                self.policy.report_release_error(&error);
                return ReclaimResult::GivenUp;
            }
            let pause = Backoff::Exponential.delay(Jitter::Equal, FIRST_DELAY, attempt);
            sleep(pause.min(LONGEST_DELAY.max(spent / DELAYS_PER_TIME_AWAY))).await;
            attempt += 1;
        }
    }

    async fn release(&self) -> Result<ReleaseResult, LockError> {
        let limit = self.policy.operation_timeout();
        let call = timeout(limit, self.backend.release(&self.id));
        let answer = call
            .await
            .unwrap_or_else(|_| Err(timed_out(limit).with_outcome_unknown()));
        answer.map_err(|error| error.with_operation(Operation::Release))
    }
}
