//! [`Reclaim`]: releases in the background what an abandoned operation may have left in the store.

mod job;
mod worker;

use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::FenceToken;
use crate::error::Operation;
use crate::observe::ReleaseErrorHandler;
use crate::{LockId, LockKey, Locks, Ttl};

use self::job::Job;
pub(crate) use self::worker::Reclaimer;

/// For how long an abandoned acquire may still arrive at the store after the first `NotHeld`: its release
/// may have overtaken it on another connection. If the operation timeout is longer, that counts instead.
const STRAGGLER_WINDOW: Duration = Duration::from_secs(1);

/// For how long a release is retried, because the TTL of its lock is not known here.
const RELEASE_PERSISTENCE: Duration = Duration::from_secs(60 * 60);

/// Dropping it while it is armed releases the lock id in the background.
///
/// It is armed before the request leaves. So at no point can a dropped caller leave a lock that nobody
/// knows of.
#[derive(Debug)]
pub(crate) struct Reclaim<'a, F: FenceToken> {
    locks: &'a Locks<F>,
    /// `None` once disarmed.
    runtime: Option<Handle>,
    id: &'a LockId,
    key: Option<&'a LockKey>,
    on_error: Option<&'a ReleaseErrorHandler>,
    /// The abandoned operation, and the TTL of an acquire.
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

    /// There is nothing to release. Returns the runtime that would have released.
    pub(crate) fn disarm(mut self) -> Option<Handle> {
        self.runtime.take()
    }
}

impl<F: FenceToken> Drop for Reclaim<'_, F> {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        let store = self.locks.store();
        let operation_timeout = store.settings.operation_timeout;
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
        let job = Job::new(
            self.locks,
            *self.id,
            self.key.cloned(),
            self.on_error.cloned(),
            self.after,
            persistence,
            straggler_window,
        );
        self.locks.reclaimer().settle(&runtime, job, &store.closed);
    }
}
