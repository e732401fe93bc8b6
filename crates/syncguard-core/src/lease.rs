//! [`Lease`]: what a holder knows about its lock, by its own clock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, watch};

use crate::{ExtendResult, Fence, Grant, LockError, LockId, LockKey, ManagedBackend, Policy, Ttl};

/// How often a watcher of a lease looks up, lest a suspended machine's timers let it sleep on.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// What a holder knows about its lease, and what it can do with it.
///
/// Clones share one state. A `Lease` does not keep the lock: that is the part of the
/// [`LockGuard`](crate::LockGuard), or of [`lock()`](crate::lock()).
///
/// It knows of what is done through it and its guard. A release or extend by the bare id, here or
/// in another process, passes it by until its next extend.
pub struct Lease<B: ManagedBackend>(Arc<Held<B>>);

struct Held<B: ManagedBackend> {
    backend: B,
    key: LockKey,
    id: LockId,
    fence: B::Fence,
    expires_at_ms: AtomicI64,
    term: watch::Sender<Term>,
    /// Held over an extend: the store's last word on the expiry must also be the last one here.
    extending: Mutex<()>,
}

/// Until when the lease lasts.
#[derive(Debug, Clone, Copy)]
enum Term {
    /// Until this time of the policy's clock.
    Until(Duration),
    /// It was given back.
    Ended,
    /// The store has said that the id holds nothing any more.
    Gone,
}

impl<B: ManagedBackend<Fence = Fence>> Lease<B> {
    /// The fencing token: pass it to the resource, and have the resource refuse smaller ones.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.0.fence
    }
}

impl<B: ManagedBackend> Lease<B> {
    /// A lease of `ttl` from `started`, which was read before the request left.
    pub(crate) fn new(
        backend: &B,
        key: &LockKey,
        grant: Grant<B::Fence>,
        started: Duration,
        ttl: Ttl,
    ) -> Self {
        Self(Arc::new(Held {
            backend: backend.clone(),
            key: key.clone(),
            id: grant.lock_id,
            fence: grant.fence,
            expires_at_ms: AtomicI64::new(grant.expires_at_ms),
            term: watch::Sender::new(Term::Until(started.saturating_add(ttl.as_duration()))),
            extending: Mutex::new(()),
        }))
    }

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
        match *self.0.term.borrow() {
            Term::Until(deadline) => deadline.saturating_sub(self.now()),
            Term::Ended | Term::Gone => Duration::ZERO,
        }
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
    /// Extends of one lease are made one after the other, those of
    /// [auto-extension](crate::AutoExtend) included, which will soon lengthen it again.
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
        let _turn = self.0.extending.lock().await;
        let before = *self.0.term.borrow();
        let renewed = self.now().saturating_add(ttl.as_duration());
        // Should the answer never come, the store may still have shortened the lease.
        self.set_deadline(|deadline| deadline.min(renewed));
        let answer = self.0.backend.extend(&self.0.id, ttl).await;
        match &answer {
            Ok(ExtendResult::Extended { expires_at_ms }) => {
                self.0
                    .expires_at_ms
                    .store(*expires_at_ms, Ordering::Relaxed);
                self.set_deadline(|_| renewed);
            }
            Ok(ExtendResult::NotHeld { .. }) => {
                self.0.term.send_replace(Term::Gone);
            }
            Err(error) if error.outcome_unknown() => {}
            Err(_) => {
                if let Term::Until(deadline) = before {
                    self.set_deadline(|_| deadline);
                }
            }
        }
        answer
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
    /// # Panics
    /// Outside a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    /// Safe: it only watches.
    pub async fn lost(&self) {
        self.until_at_most(Duration::ZERO).await;
    }

    /// Resolves once no more than this is left of the lease, for whatever reason.
    pub(crate) async fn until_at_most(&self, left: Duration) {
        let mut term = self.0.term.subscribe();
        loop {
            let ahead = self.remaining().saturating_sub(left);
            if ahead.is_zero() {
                return;
            }
            // Timers stand still while the machine is suspended; the deadline does not.
            let nap = ahead.min(LONGEST_NAP);
            // An error would mean that the sender is gone, which `self` keeps.
            drop(tokio::time::timeout(nap, term.changed()).await);
        }
    }

    /// The lease is given back. No answer that is still under way brings it to life again.
    pub(crate) fn end(&self) {
        self.0.term.send_if_modified(|term| {
            let lasting = matches!(term, Term::Until(_));
            if lasting {
                *term = Term::Ended;
            }
            lasting
        });
    }

    /// Whether the store itself has said that the lock is gone.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(*self.0.term.borrow(), Term::Gone)
    }

    pub(crate) fn backend(&self) -> &B {
        &self.0.backend
    }

    pub(crate) fn policy(&self) -> &Policy {
        self.0.backend.policy()
    }

    fn now(&self) -> Duration {
        self.policy().clock().now()
    }

    /// Moves the deadline of a lease that still lasts.
    fn set_deadline(&self, moved: impl FnOnce(Duration) -> Duration) {
        self.0.term.send_if_modified(|term| match term {
            Term::Until(deadline) => {
                let before = std::mem::replace(deadline, moved(*deadline));
                *deadline != before
            }
            Term::Ended | Term::Gone => false,
        });
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
