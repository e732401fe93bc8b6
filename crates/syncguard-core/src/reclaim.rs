//! [`Reclaim`]: settles what an abandoned call may have left in the store.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use crate::backoff::{Backoff, Jitter, delay};
use crate::managed::current_runtime;
use crate::{ErrorCode, LockBackend, LockError, LockId, Policy, ReleaseResult, Ttl};

/// For how long after the first `NotHeld` an abandoned acquire may still arrive at the store: it
/// can have been overtaken by its own release on another connection.
const STRAGGLER_WINDOW: Duration = Duration::from_secs(1);

/// How long a release is repeated when the TTL of its lock is not known.
const RELEASE_PERSISTENCE: Duration = Duration::from_secs(60);

const FIRST_DELAY: Duration = Duration::from_millis(25);
const LONGEST_DELAY: Duration = Duration::from_secs(1);

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
        // The lock can be granted no later than the deadline, and then lives for its TTL.
        let persistence = policy.operation_timeout().saturating_add(ttl.as_duration());
        Self::arm(
            backend,
            policy,
            id,
            persistence,
            STRAGGLER_WINDOW.min(ttl.as_duration()),
        )
    }

    pub(crate) fn of_release(backend: &B, policy: &Policy, id: &LockId) -> Result<Self, LockError> {
        Self::arm(backend, policy, id, RELEASE_PERSISTENCE, Duration::ZERO)
    }

    fn arm(
        backend: &B,
        policy: &Policy,
        id: &LockId,
        persistence: Duration,
        straggler_window: Duration,
    ) -> Result<Self, LockError> {
        let runtime = current_runtime()?;
        let started = policy.clock().now();
        let (backend, policy, id) = (backend.clone(), policy.clone(), *id);
        let job = Job {
            backend,
            policy,
            id,
            persistence,
            straggler_window,
        };
        Ok(Self {
            job: Some(job),
            runtime,
            started,
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
        let started = Instant::now();
        let mut first_not_held = None;
        for attempt in 0.. {
            let call = self.backend.release(&self.id);
            let failure = match timeout(self.policy.operation_timeout(), call).await {
                Ok(Ok(ReleaseResult::Released)) => return,
                Ok(Ok(ReleaseResult::NotHeld { .. })) => {
                    let since = *first_not_held.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.straggler_window {
                        return;
                    }
                    None
                }
                Ok(Err(error)) => Some(error.code()),
                Err(_) => Some(ErrorCode::NetworkTimeout),
            };
            if started.elapsed() >= self.persistence {
                if let Some(code) = failure {
                    tracing::warn!(
                        %code,
                        "a lock of unknown outcome could not be given back; it ends with its TTL"
                    );
                }
                return;
            }
            let pause = delay(Backoff::Exponential, Jitter::Equal, FIRST_DELAY, attempt);
            sleep(pause.min(LONGEST_DELAY)).await;
        }
    }
}
