//! [`Attempt`], and [`LockGuard`]: a held lock that is released on every path.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use crate::backend::{AcquireRequest, AcquireResult, FenceToken};
use crate::call::{Limits, Subject, after, current_runtime};
use crate::error::Operation;
use crate::extend::Renewal;
use crate::line::Place;
use crate::locks::was_refused;
use crate::observe::{ReleaseErrorHandler, ReleaseFailure, ReleaseStage};
use crate::reclaim::Reclaim;
use crate::{
    AutoExtend, ErrorCode, Fence, Lease, LockError, LockId, LockKey, LockOptions, Locks,
    ReleaseResult, Request, Ttl,
};

/// The result of a single attempt.
#[derive(Debug)]
#[must_use = "dropped, a guard releases its lock"]
pub enum Attempt<F: FenceToken = Fence> {
    /// The lock is held.
    Acquired(LockGuard<F>),
    /// Someone else holds the key.
    #[non_exhaustive]
    Locked {
        /// The time from now until the store will grant the key, if nobody releases or extends the lock
        /// before: fit for a `Retry-After`. Never zero; `None` if the store does not know.
        free_in: Option<Duration>,
    },
}

impl<F: FenceToken> Attempt<F> {
    /// The guard, if the lock is held.
    #[must_use]
    pub fn acquired(self) -> Option<LockGuard<F>> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Locked { .. } => None,
        }
    }
}

/// Acquires a key in one attempt, with a fresh id. Ends at `deadline` if that is before the operation timeout.
pub(crate) async fn attempt<F: FenceToken>(
    locks: &Locks<F>,
    key: &LockKey,
    ttl: Ttl,
    options: &LockOptions,
    deadline: Option<Instant>,
) -> Result<Attempt<F>, LockError> {
    let limits = Limits {
        token: options.token.clone(),
        deadline,
    };
    let mut subject = Subject::new(Operation::Acquire).key(key).ttl(ttl);
    let store = locks.store();
    // An error that keeps the attempt from being sent.
    let ready = || Ok((limits.check()?, LockId::generate()?));
    let (runtime, id) = ready().map_err(|error| store.refused(subject, error))?;
    subject = subject.lock_id(&id);
    let begun = store.begin(subject);
    let on_error = options.on_release_error.as_ref();
    let reclaim = Reclaim::of_acquire(locks, runtime, &id, key, ttl, on_error);
    // Read before the request leaves: the lease cannot have begun earlier.
    let started = store.now();
    let send = |deadline| {
        let request = AcquireRequest::new(key, &id, ttl, deadline);
        store.backend.acquire(request)
    };
    let result = store.bounded(&subject, &limits, send).await;
    let result = match result {
        Ok(AcquireResult::Acquired(_))
            if store.now().saturating_sub(started) >= ttl.as_duration() =>
        {
            let message = "the reply came after the lease had expired; \
                           the lock is released in the background";
            let error = LockError::new(ErrorCode::NetworkTimeout, message).with_outcome_unknown();
            Err(subject.describe(error))
        }
        result => result,
    };
    begun.end(&result);
    let result = match result {
        // If the reclaim is dropped armed, it releases the lock.
        Err(error) if error.outcome_unknown() => return Err(error),
        result => result,
    };
    let runtime = reclaim.disarm();
    let grant = match result? {
        AcquireResult::Acquired(grant) => grant,
        AcquireResult::Locked { free_in } => return Ok(Attempt::Locked { free_in }),
    };
    let guard = LockGuard {
        locks: locks.clone(),
        lease: Lease::new(store, key, &grant, started, ttl),
        runtime,
        ttl,
        renewal: None,
        on_release_error: options.on_release_error.clone(),
        armed: true,
        place: None,
    };
    if let Some(fence) = grant.fence.fence() {
        fence.warn_near_the_end(key);
    }
    Ok(Attempt::Acquired(match options.auto_extend {
        Some(auto_extend) => guard.auto_extend(auto_extend),
        None => guard,
    }))
}

/// A held lock. [Release](Self::release) it; dropping it releases in the background.
///
/// Dropping is best effort. It never blocks and never panics, inside a runtime or outside. The runtime that
/// acquired the lock releases it; if that runtime ends first, the lock expires with its TTL. So release
/// explicitly where it matters, and [drain](Locks::drain) before shutting down.
///
/// It derefs to the [`Lease`].
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct LockGuard<F: FenceToken = Fence> {
    locks: Locks<F>,
    lease: Lease<F>,
    /// The runtime that acquired it.
    runtime: Option<Handle>,
    ttl: Ttl,
    renewal: Option<Renewal>,
    on_release_error: Option<ReleaseErrorHandler>,
    armed: bool,
    /// Other callers of this process wait until it is dropped.
    place: Option<Place<F>>,
}

impl<F: FenceToken> LockGuard<F> {
    /// Releases the lock and waits for the store's reply.
    ///
    /// `NotHeld` means that the lease had ended before: part of the work ran without the lock.
    ///
    /// # Errors
    /// `Aborted`, a failure of the store, or `Internal` outside a Tokio runtime. SyncGuard then retries the
    /// release in the background, also if the token was cancelled before anything was sent.
    ///
    /// # Cancel safety
    /// Safe: if the request is dropped, even before it was awaited, the release continues in the background.
    pub fn release(self) -> Request<ReleaseResult> {
        let mut guard = self;
        Request::new(move |limits| async move { guard.release_within(&limits).await })
    }

    /// Releases the lock. Drop the guard afterwards: if the call was refused, that releases the lock.
    pub(crate) async fn release_within(
        &mut self,
        limits: &Limits,
    ) -> Result<ReleaseResult, LockError> {
        // Outside a runtime nothing can be sent. Dropping the guard releases on the runtime that acquired the
        // lock.
        current_runtime().map_err(|error| {
            let subject = self.lease.subject(Operation::Release);
            self.store().refused(subject, error)
        })?;
        let renewal = self.renewal.take().map(|renewal| {
            renewal.abort();
            (renewal, Instant::now())
        });
        self.lease.end();
        // From here on the background completes the release, unless the call is refused.
        self.armed = false;
        let (key, id) = (self.lease.key(), self.lease.lock_id());
        let on_error = self.on_release_error.as_ref();
        let locks = &self.locks;
        let result = locks.release_lock(id, Some(key), limits, on_error).await;
        self.armed = result.as_ref().is_err_and(was_refused);
        if !self.armed {
            self.place = None;
        }
        if let Some((renewal, started)) = renewal {
            // The guard's runtime may not be running.
            let deadline = self.store().deadline(started, limits);
            tokio::select! {
                () = renewal.ended() => {}
                () = limits.cancelled() => {}
                () = sleep_until(deadline) => {}
            }
        }
        result
    }

    /// Renews the lease until the guard is released, dropped or detached.
    ///
    /// The lease can still be lost: watch [`lost`](Lease::lost) while you work.
    pub fn auto_extend(mut self, options: AutoExtend) -> Self {
        if let Some(runtime) = &self.runtime {
            let lease = self.lease.clone();
            self.renewal = Some(Renewal::start(runtime, lease, self.ttl, options));
        }
        self
    }

    /// Keeps the guard's place in the key's line.
    pub(crate) fn keep(&mut self, place: Place<F>) {
        self.place = Some(place);
    }

    /// Drops a guard whose lease is lost. Sends no release if the store has said that the lock is gone.
    pub(crate) fn abandon(mut self) {
        self.armed = !self.lease.is_gone();
    }

    /// Keeps the lock beyond the guard, until someone releases it by its id or it expires. The renewals stop.
    #[must_use]
    pub fn detach(mut self) -> Lease<F> {
        self.armed = false;
        self.lease.clone()
    }

    /// A shareable view of the lease, for other tasks.
    #[must_use]
    pub fn lease(&self) -> Lease<F> {
        self.lease.clone()
    }

    pub(crate) fn on_release_error(&self) -> Option<&ReleaseErrorHandler> {
        self.on_release_error.as_ref()
    }
}

impl<F: FenceToken> Deref for LockGuard<F> {
    type Target = Lease<F>;
    fn deref(&self) -> &Lease<F> {
        &self.lease
    }
}

impl<F: FenceToken> fmt::Debug for LockGuard<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&self.lease).finish()
    }
}

impl<F: FenceToken> Drop for LockGuard<F> {
    fn drop(&mut self) {
        let renewal = self.renewal.take();
        let Some(runtime) = self.runtime.take().filter(|_| self.armed) else {
            return;
        };
        self.lease.end();
        let (locks, lease) = (self.locks.clone(), self.lease.clone());
        let (on_error, place) = (self.on_release_error.take(), self.place.take());
        self.store().spawn(&runtime, async move {
            drop(renewal);
            dispose(&locks, &lease, on_error.as_ref()).await;
            drop(place);
        });
    }
}

/// Releases the lock of a dropped guard.
async fn dispose<F: FenceToken>(
    locks: &Locks<F>,
    lease: &Lease<F>,
    on_error: Option<&ReleaseErrorHandler>,
) {
    let store = lease.store();
    let limits = Limits {
        token: None,
        deadline: store
            .settings
            .dispose_timeout
            .map(|timeout| after(Instant::now(), timeout)),
    };
    let release = locks.release_lock(lease.lock_id(), Some(lease.key()), &limits, on_error);
    if let Err(error) = release.await {
        store.report(&ReleaseFailure::new(error, ReleaseStage::Drop), on_error);
    }
}
