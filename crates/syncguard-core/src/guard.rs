//! [`acquire`], [`Lease`] and [`LockGuard`]: a held lock, and giving it back on every path.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::extend::Renewal;
use crate::managed::{current_runtime, timed_out};
use crate::{
    AcquireResult, AutoExtend, ExtendResult, Fence, LockError, LockId, LockKey, ManagedBackend,
    Operation, Policy, ReleaseResult, Ttl,
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
    let lease = Lease(Arc::new(Held {
        backend: backend.clone(),
        key: key.clone(),
        id,
        fence: grant.fence,
        expires_at_ms: AtomicI64::new(grant.expires_at_ms),
        gone: AtomicBool::new(false),
        deadline: watch::Sender::new(started.saturating_add(ttl.as_duration())),
    }));
    Ok(Some(LockGuard {
        lease,
        runtime,
        ttl,
        renewal: None,
        armed: true,
    }))
}

/// How often a watcher of a lease looks up, lest a suspended machine's timers let it sleep on.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// What a holder knows about its lease, and what it can do with it.
///
/// Clones share one state. A `Lease` does not keep the lock: that is the [`LockGuard`]'s part, or
/// [`lock()`](crate::lock())'s.
pub struct Lease<B: ManagedBackend>(Arc<Held<B>>);

struct Held<B: ManagedBackend> {
    backend: B,
    key: LockKey,
    id: LockId,
    fence: B::Fence,
    expires_at_ms: AtomicI64,
    /// Whether the store has said that this id holds nothing any more.
    gone: AtomicBool,
    /// The end of the lease by the policy's clock.
    deadline: watch::Sender<Duration>,
}

impl<B: ManagedBackend<Fence = Fence>> Lease<B> {
    /// The fencing token: pass it to the resource, and have the resource refuse smaller ones.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.0.fence
    }
}

impl<B: ManagedBackend> Lease<B> {
    /// The fence of any backend, [`NoFence`](crate::NoFence) included.
    #[must_use]
    pub fn fence_token(&self) -> B::Fence {
        self.0.fence
    }

    /// The id by which any process can extend and release this lock.
    #[must_use]
    pub fn lock_id(&self) -> &LockId {
        &self.0.id
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.0.key
    }

    /// When the lease ends, in Unix milliseconds by the store's clock. For people; a program asks
    /// for what [remains](Self::remaining).
    #[must_use]
    pub fn expires_at_ms(&self) -> i64 {
        self.0.expires_at_ms.load(Ordering::Relaxed)
    }

    /// How much of the lease is left for certain; zero once none is.
    ///
    /// Measured by the local monotonic clock, which goes on through suspend, from before the
    /// request left. So it errs on the safe side by one network delay.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0
            .deadline
            .borrow()
            .saturating_sub(self.policy().clock().now())
    }

    /// Whether any of the lease is left.
    ///
    /// A `true` can be out of date by the time it is acted on. Only a resource that checks
    /// [fences](crate::Fence) is safe from a paused holder.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Makes the lease last for `ttl` from now, shorter or longer than what remained.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad TTL, or a failure of the store.
    ///
    /// # Cancel safety
    /// Safe: whether the store extended it is then unknown, and [`remaining`](Self::remaining)
    /// counts on the shorter of the two.
    pub async fn extend<T>(&self, ttl: T) -> Result<ExtendResult, LockError>
    where
        T: TryInto<Ttl>,
        LockError: From<T::Error>,
    {
        let ttl = ttl.try_into()?;
        let renewed = self
            .policy()
            .clock()
            .now()
            .saturating_add(ttl.as_duration());
        // Should the answer never come, the store may still have shortened the lease.
        self.0.deadline.send_if_modified(|deadline| {
            let shortened = renewed < *deadline;
            *deadline = renewed.min(*deadline);
            shortened
        });
        let answer = self.0.backend.extend(&self.0.id, ttl).await?;
        match answer {
            ExtendResult::Extended { expires_at_ms } => {
                self.0.expires_at_ms.store(expires_at_ms, Ordering::Relaxed);
                self.0.deadline.send_replace(renewed);
            }
            ExtendResult::NotHeld { .. } => {
                self.0.gone.store(true, Ordering::Relaxed);
                self.end();
            }
        }
        Ok(answer)
    }

    /// Resolves once the lease is over: at its local deadline, when the store has said that the
    /// lock is gone, or when it was released.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use syncguard_core::acquire;
    /// # use syncguard_memory::MemoryBackend;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
    /// # let backend = MemoryBackend::default();
    /// # async fn work() {}
    /// let guard = acquire(&backend, "job:nightly", Duration::from_secs(60)).await?.unwrap();
    /// tokio::select! {
    ///     () = work() => {}
    ///     () = guard.lost() => eprintln!("stop writing: the lock is no longer ours"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Safe: it only watches.
    pub async fn lost(&self) {
        let mut deadline = self.0.deadline.subscribe();
        loop {
            let remaining = self.remaining();
            if remaining.is_zero() {
                return;
            }
            // Timers stand still while the machine is suspended; the deadline does not.
            let nap = remaining.min(LONGEST_NAP);
            // An error would mean that the sender is gone, which `self` keeps.
            drop(tokio::time::timeout(nap, deadline.changed()).await);
        }
    }

    /// Nothing of the lease is left.
    fn end(&self) {
        self.0.deadline.send_replace(Duration::ZERO);
    }

    /// Whether the store itself has said that the lock is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.gone.load(Ordering::Relaxed)
    }

    fn policy(&self) -> &Policy {
        self.0.backend.policy()
    }
}

impl<B: ManagedBackend> Clone for Lease<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: ManagedBackend> fmt::Debug for Lease<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.0.key)
            .field("lock_id", &self.0.id)
            .field("fence", &self.0.fence)
            .field("expires_at_ms", &self.expires_at_ms())
            .field("remaining", &self.remaining())
            .finish()
    }
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
    /// A failure of the store. The release is then repeated in the background.
    ///
    /// # Cancel safety
    /// Safe: dropped at any point, the release goes on in the background.
    pub async fn release(mut self) -> Result<ReleaseResult, LockError> {
        if let Some(renewal) = self.renewal.take() {
            renewal.stop().await;
        }
        let answer = self.lease.0.backend.release(&self.lease.0.id).await;
        // Failed or not, from here on it is the backend's policy that persists.
        self.armed = false;
        self.lease.end();
        answer.map_err(|error| error.with_key(&self.lease.0.key))
    }

    /// Keeps the lease alive until the guard is released or dropped.
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
                lease.end();
            }
            if let Err(error) = dispose(&lease).await {
                lease
                    .policy()
                    .report_release_error(&error.with_key(&lease.0.key));
            }
        });
    }
}

async fn dispose<B: ManagedBackend>(lease: &Lease<B>) -> Result<ReleaseResult, LockError> {
    let release = lease.0.backend.release(&lease.0.id);
    let Some(timeout) = lease.policy().dispose_timeout() else {
        return release.await;
    };
    tokio::time::timeout(timeout, release)
        .await
        .unwrap_or_else(|_| {
            Err(timed_out(timeout)
                .with_outcome_unknown()
                .with_operation(Operation::Release)
                .with_lock_id(&lease.0.id))
        })
}
