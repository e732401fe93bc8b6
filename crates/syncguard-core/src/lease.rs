//! [`Lease`]: what a holder knows about its lock, by its own clock.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{ExtendRequest, FenceToken, Grant};
use crate::call::{Limits, Subject, aborted};
use crate::error::{Operation, parse};
use crate::store::Store;
use crate::{ExtendResult, Fence, LockError, LockId, LockKey, Request, Ttl};

/// Upper bound of a sleep: timers stop while the machine is suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A holder's view of its lease, and the operations on it.
///
/// Clones share one state. A `Lease` does not keep the lock: the [`LockGuard`](crate::LockGuard) does,
/// or the request that runs a section.
///
/// A `Lease` knows the operations that were made through it and its guard. It notices a release by the lock
/// id alone, in this process or another, at its next extend.
#[derive(Clone)]
pub struct Lease<F: FenceToken = Fence>(Arc<State<F>>);

struct State<F: FenceToken> {
    store: Store<F>,
    key: LockKey,
    id: LockId,
    fence: F,
    expires_at_ms: AtomicI64,
    term: Mutex<Term>,
    /// Notifies of a change of the deadline.
    changed: Notify,
    /// Held during an extend, so that the store's last reply is also the last one applied here.
    extending: tokio::sync::Mutex<()>,
}

/// Until when the lease lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Term {
    /// Until this time of the lease clock.
    Until(Duration),
    /// It was released.
    Ended,
    /// The store has said that the id no longer holds the lock.
    Gone,
}

impl Lease<Fence> {
    /// The fencing token: pass it to the resource, which must refuse smaller ones.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.0.fence
    }
}

impl<F: FenceToken> Lease<F> {
    /// A lease of `ttl` from `started`, which was read before the request left.
    pub(crate) fn new(
        store: &Store<F>,
        key: &LockKey,
        grant: &Grant<F>,
        started: Duration,
        ttl: Ttl,
    ) -> Self {
        Self(Arc::new(State {
            store: store.clone(),
            key: key.clone(),
            id: grant.lock_id,
            fence: grant.fence,
            expires_at_ms: AtomicI64::new(grant.expires_at_ms),
            term: Mutex::new(Term::Until(started.saturating_add(ttl.as_duration()))),
            changed: Notify::new(),
            extending: tokio::sync::Mutex::new(()),
        }))
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

    /// When the lease ends, in Unix milliseconds by the store's clock. For display; in a program use the
    /// [remaining](Self::remaining) time.
    #[must_use]
    pub fn expires_at_ms(&self) -> i64 {
        self.0.expires_at_ms.load(Ordering::Relaxed)
    }

    /// How much of the lease is certainly left; zero once it has ended.
    ///
    /// Measured from before the request left, by the local monotonic clock, which continues during suspend.
    /// So the result is too short by at most one network delay, never too long.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.term() {
            Term::Until(deadline) => deadline.saturating_sub(self.now()),
            Term::Ended | Term::Gone => Duration::ZERO,
        }
    }

    /// Whether any of the lease is left.
    ///
    /// A `true` can be out of date when you act on it. Only a resource that checks [fences](crate::Fence)
    /// is safe from a paused holder.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Makes the lease last for `ttl` from now, shorter or longer than what remained.
    ///
    /// Extends of one lease run one at a time, renewals by [auto-extension](crate::AutoExtend) included. If
    /// you shorten a lease with auto-extension, the next renewal lengthens it again.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad TTL, `Aborted`, or a failure of the store.
    ///
    /// # Cancel safety
    /// Safe. The store may or may not have extended the lease; [`remaining`](Self::remaining) assumes the
    /// shorter time.
    pub fn extend<T>(&self, ttl: T) -> Request<ExtendResult>
    where
        T: TryInto<Ttl>,
        LockError: From<T::Error>,
    {
        let (lease, ttl) = (self.clone(), parse(ttl));
        Request::new(move |limits| async move {
            let ttl = lease.store().admit(lease.subject(Operation::Extend), ttl)?;
            lease.extend_within(ttl, &limits).await
        })
    }

    pub(crate) async fn extend_within(
        &self,
        ttl: Ttl,
        limits: &Limits,
    ) -> Result<ExtendResult, LockError> {
        let subject = self.subject(Operation::Extend).ttl(ttl);
        // Counted from here: a call that is dropped while it waits for its turn is reported as well.
        let begun = self.store().begin(subject);
        let result = self.extend_in_turn(ttl, subject, limits).await;
        begun.end(&result);
        result
    }

    async fn extend_in_turn(
        &self,
        ttl: Ttl,
        subject: Subject<'_>,
        limits: &Limits,
    ) -> Result<ExtendResult, LockError> {
        let _turn = tokio::select! {
            biased;
            () = limits.cancelled() => return Err(subject.describe(aborted())),
            turn = self.0.extending.lock() => turn,
        };
        let before = self.term();
        let renewed = self.now().saturating_add(ttl.as_duration());
        // If no reply comes, the store may still have shortened the lease.
        self.set_deadline(|deadline| deadline.min(renewed));
        let store = self.store();
        let send = |deadline| {
            let request = ExtendRequest::new(&self.0.id, ttl, deadline);
            store.backend.extend(request)
        };
        let result = store.bounded(&subject, limits, send).await;
        match &result {
            Ok(ExtendResult::Extended { expires_at_ms }) => {
                self.0
                    .expires_at_ms
                    .store(*expires_at_ms, Ordering::Relaxed);
                self.set_deadline(|_| renewed);
            }
            Ok(ExtendResult::NotHeld { .. }) => self.set_term(|_| Term::Gone),
            Err(error) if error.outcome_unknown() => {}
            Err(_) => {
                if let Term::Until(deadline) = before {
                    self.set_deadline(|_| deadline);
                }
            }
        }
        result
    }

    /// Resolves once the lease is over: at its local deadline, when the store has said that the
    /// lock is gone, or when it was released.
    ///
    /// ```
    /// # use syncguard_core::{LockError, Locks};
    /// # use syncguard_memory::MemoryBackend;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// # let locks = Locks::new(MemoryBackend::default());
    /// # async fn work() {}
    /// let guard = locks.lock("job:nightly").await?;
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
    /// Safe: it has no effect on the lease.
    pub async fn lost(&self) {
        self.until_at_most(Duration::ZERO).await;
    }

    /// Resolves when no more than this is left of the lease.
    pub(crate) async fn until_at_most(&self, left: Duration) {
        loop {
            // Subscribe before reading: so no change after the read is missed.
            let changed = self.0.changed.notified();
            let clock_moved = self.store().listeners.clock_moved.notified();
            let ahead = self.remaining().saturating_sub(left);
            if ahead.is_zero() {
                return;
            }
            // Timers stop while the machine is suspended; the deadline does not.
            tokio::select! {
                () = changed => {}
                () = clock_moved => {}
                () = tokio::time::sleep(ahead.min(LONGEST_SLEEP)) => {}
            }
        }
    }

    /// The lease was released. A reply in flight does not make it live again.
    pub(crate) fn end(&self) {
        self.set_term(|term| match term {
            Term::Until(_) => Term::Ended,
            ended => ended,
        });
    }

    /// Whether the release of this lease has begun.
    pub(crate) fn is_ended(&self) -> bool {
        self.term() == Term::Ended
    }

    /// Whether the store itself has said that the lock is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.term() == Term::Gone
    }

    /// What a call about this lock is about.
    pub(crate) fn subject(&self, operation: Operation) -> Subject<'_> {
        Subject::new(operation).key(&self.0.key).lock_id(&self.0.id)
    }

    pub(crate) fn downgrade(&self) -> WeakLease<F> {
        WeakLease(Arc::downgrade(&self.0))
    }

    pub(crate) fn store(&self) -> &Store<F> {
        &self.0.store
    }

    fn now(&self) -> Duration {
        self.store().now()
    }

    fn term(&self) -> Term {
        *self.0.term.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the deadline of a live lease.
    fn set_deadline(&self, moved: impl FnOnce(Duration) -> Duration) {
        self.set_term(|term| match term {
            Term::Until(deadline) => Term::Until(moved(deadline)),
            ended => ended,
        });
    }

    fn set_term(&self, next: impl FnOnce(Term) -> Term) {
        let mut term = self.0.term.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *term;
        *term = next(before);
        let changed = *term != before;
        drop(term);
        if changed {
            self.0.changed.notify_waiters();
        }
    }
}

/// A weak reference to a lease.
pub(crate) struct WeakLease<F: FenceToken>(Weak<State<F>>);

impl<F: FenceToken> WeakLease<F> {
    pub(crate) fn upgrade(&self) -> Option<Lease<F>> {
        self.0.upgrade().map(Lease)
    }
}

impl<F: FenceToken> fmt::Debug for Lease<F> {
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
