//! [`acquire`] and [`LockGuard`]: a held lock, and giving it back on every path.

use std::fmt;
use std::ops::Deref;

use tokio::runtime::Handle;

use crate::extend::Renewal;
use crate::managed::{current_runtime, granted_too_late, timed_out};
use crate::{
    AcquireResult, AutoExtend, Lease, LockError, LockId, LockKey, ManagedBackend, Operation,
    ReleaseResult, Ttl,
};

/// Takes the lock on `key` for `ttl` in a single attempt; `None` if someone else holds it.
///
/// ```
/// # use std::time::Duration;
/// # use syncguard_core::acquire;
/// # use syncguard_memory::MemoryBackend;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
/// # let backend = MemoryBackend::default();
/// if let Some(guard) = acquire(&backend, "report:daily", Duration::from_secs(60)).await? {
///     // ... the work, passing guard.fence() to whatever it writes to ...
///     let _ = guard.release().await?;
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
/// `InvalidArgument` for a bad key or TTL, before any I/O; else a failure of the store.
///
/// # Cancel safety
/// Safe: a lock that a dropped call may have taken is given back in the background.
pub async fn acquire<B, K, T>(
    backend: &B,
    key: K,
    ttl: T,
) -> Result<Option<LockGuard<B>>, LockError>
where
    B: ManagedBackend,
    K: TryInto<LockKey>,
    T: TryInto<Ttl>,
    LockError: From<K::Error> + From<T::Error>,
{
    attempt(backend, &key.try_into()?, ttl.try_into()?).await
}

pub(crate) async fn attempt<B: ManagedBackend>(
    backend: &B,
    key: &LockKey,
    ttl: Ttl,
) -> Result<Option<LockGuard<B>>, LockError> {
    let runtime = current_runtime()?;
    let id = LockId::generate()?;
    // Read before the request leaves: the lease can only have begun later.
    let started = backend.policy().clock().now();
    let grant = match backend.acquire(key, &id, ttl).await? {
        AcquireResult::Locked => return Ok(None),
        AcquireResult::Acquired(grant) => grant,
    };
    let guard = LockGuard {
        lease: Lease::new(backend, key, grant, started, ttl),
        runtime,
        ttl,
        renewal: None,
        armed: true,
    };
    if guard.is_valid() {
        return Ok(Some(guard));
    }
    // Dropped, it is given back.
    Err(granted_too_late().with_key(key).with_lock_id(&id))
}

/// A held lock. [Release](Self::release) it; dropping it releases in the background.
///
/// Dropping is best effort: it never blocks and never panics, inside a runtime or outside, and
/// hands the release to the runtime that took the lock. If that runtime ends first, the TTL frees
/// the key. So release explicitly where it matters, and
/// [drain](ManagedBackend::drain) before shutting down.
///
/// It derefs to the [`Lease`].
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct LockGuard<B: ManagedBackend> {
    lease: Lease<B>,
    runtime: Handle,
    ttl: Ttl,
    renewal: Option<Renewal>,
    armed: bool,
}

impl<B: ManagedBackend> LockGuard<B> {
    /// Gives the lock back and waits for the store's answer.
    ///
    /// `NotHeld` says that the lease had run out: whatever it protected was unprotected for a
    /// while.
    ///
    /// # Errors
    /// A failure of the store, or `Internal` outside a Tokio runtime. The release is then repeated
    /// in the background.
    ///
    /// # Cancel safety
    /// Safe: dropped at any point, the release goes on in the background.
    pub async fn release(mut self) -> Result<ReleaseResult, LockError> {
        // Outside a runtime nothing can be asked: `self` is dropped, and released by its own.
        current_runtime()?;
        if let Some(renewal) = self.renewal.take() {
            renewal.stop().await;
        }
        let answer = self.lease.backend().release(self.lease.lock_id()).await;
        // Failed or not, from here on it is the backend's policy that persists.
        self.armed = false;
        self.lease.end();
        answer.map_err(|error| error.with_key(self.lease.key()))
    }

    /// Keeps the lease alive until the guard is released, dropped or detached.
    ///
    /// Watch [`lost`](Lease::lost) beside the work: the lease can still be lost.
    pub fn with_auto_extend(mut self, options: AutoExtend) -> Self {
        self.renewal = Some(Renewal::start(
            &self.runtime,
            self.lease.clone(),
            self.ttl,
            options,
        ));
        self
    }

    /// Lets go of a lease that is lost. Nothing is released where the store has said that there
    /// is nothing to release.
    pub(crate) fn abandon(mut self) {
        self.armed = !self.lease.is_gone();
    }

    /// Keeps the lock beyond the guard, until someone releases it by its id or the TTL ends it.
    #[must_use]
    pub fn detach(mut self) -> Lease<B> {
        self.armed = false;
        self.lease.clone()
    }

    /// A shareable view of the lease, for other tasks.
    #[must_use]
    pub fn lease(&self) -> Lease<B> {
        self.lease.clone()
    }
}

impl<B: ManagedBackend> Deref for LockGuard<B> {
    type Target = Lease<B>;
    fn deref(&self) -> &Lease<B> {
        &self.lease
    }
}

impl<B: ManagedBackend> fmt::Debug for LockGuard<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&self.lease).finish()
    }
}

impl<B: ManagedBackend> Drop for LockGuard<B> {
    fn drop(&mut self) {
        let renewal = self.renewal.take();
        if !self.armed {
            return;
        }
        self.lease.end();
        let lease = self.lease.clone();
        self.lease.policy().spawn(&self.runtime, async move {
            if let Some(renewal) = renewal {
                renewal.stop().await;
            }
            if let Err(error) = dispose(&lease).await {
                lease
                    .policy()
                    .report_release_error(&error.with_key(lease.key()));
            }
        });
    }
}

async fn dispose<B: ManagedBackend>(lease: &Lease<B>) -> Result<ReleaseResult, LockError> {
    let release = lease.backend().release(lease.lock_id());
    let Some(timeout) = lease.policy().dispose_timeout() else {
        return release.await;
    };
    tokio::time::timeout(timeout, release)
        .await
        .unwrap_or_else(|_| {
            Err(timed_out(timeout)
                .with_outcome_unknown()
                .with_operation(Operation::Release)
                .with_lock_id(lease.lock_id()))
        })
}
