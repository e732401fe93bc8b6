//! [`Locks`]: the handle that applications hold.

use std::fmt;
use std::sync::Arc;

use crate::backend::{
    ExtendRequest, FenceToken, IsLockedRequest, Lookup, LookupRequest, ReleaseRequest,
};
use crate::call::{Limits, Subject, current_runtime};
use crate::error::{Operation, parse};
use crate::line::Lines;
use crate::observe::{Observer, ReleaseErrorHandler};
use crate::reclaim::{Reclaim, Reclaimer};
use crate::store::Store;
use crate::{
    ErrorCode, ExtendResult, Fence, LockError, LockId, LockInfo, LockInfoDebug, LockKey,
    ReleaseResult, Request, Ttl,
};

/// Distributed locks on one store. Clones are cheap and share everything.
///
/// A `Locks` adds to a [`LockBackend`](crate::backend::LockBackend) what every store needs: each operation
/// has a deadline, the background releases what an abandoned acquire may have acquired, and errors have their
/// context. No backend type is part of its signature, so an application can choose its store at run time.
///
/// ```
/// use std::time::Duration;
/// use syncguard_core::{LockError, LockGuard, Locks};
/// use syncguard_memory::MemoryBackend;
///
/// struct Job {
///     guard: LockGuard,
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
/// let locks = Locks::new(MemoryBackend::default());
/// let job = Job { guard: locks.lock("payment:42").await? };
/// println!("charging under fence {}", job.guard.fence());
/// assert!(job.guard.release().await?.is_released());
/// locks.drain(Duration::from_secs(10)).await?;
/// # Ok(()) }
/// ```
///
/// Operations must be awaited inside a Tokio runtime with time enabled.
#[derive(Clone)]
pub struct Locks<F: FenceToken = Fence>(Arc<Shared<F>>);

struct Shared<F: FenceToken> {
    store: Store<F>,
    reclaimer: Arc<Reclaimer<F>>,
    lines: Lines<F>,
}

impl<F: FenceToken> Locks<F> {
    pub(crate) fn on(store: Store<F>) -> Self {
        Self(Arc::new(Shared {
            store,
            reclaimer: Arc::default(),
            lines: Lines::default(),
        }))
    }

    /// Makes a handle with one more observer, on the same store, background work and
    /// [`drain`](Self::drain). `observer` gets the calls through the new handle, not those through this
    /// handle and its guards.
    #[must_use]
    pub fn observed_by(&self, observer: Arc<dyn Observer>) -> Self {
        Self(Arc::new(Shared {
            store: self.0.store.observed_by(observer),
            reclaimer: Arc::clone(&self.0.reclaimer),
            lines: self.0.lines.clone(),
        }))
    }

    /// Releases the lock that an id holds, from any process.
    ///
    /// It is idempotent: a second call returns `NotHeld`. It never releases a successor's lock.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed id, `Aborted`, or a failure of the store. After the last two,
    /// SyncGuard retries the release in the background.
    ///
    /// # Cancel safety
    /// Safe: once it has begun, a dropped release continues in the background.
    pub fn release<I>(&self, id: I) -> Request<ReleaseResult>
    where
        I: TryInto<LockId>,
        LockError: From<I::Error>,
    {
        let (locks, id) = (self.clone(), parse(id));
        Request::new(move |limits| async move {
            let id = locks.store().admit(Subject::new(Operation::Release), id)?;
            let released = locks.release_lock(&id, None, &limits, None).await?;
            locks.lines().released(&id);
            Ok(released)
        })
    }

    /// Makes the lock that an id holds last for `ttl` from now, from any process.
    ///
    /// It replaces the remaining time and may shorten it. Calling it again is harmless; the TTL then
    /// counts from the later call.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed id or a bad TTL, `Aborted`, or a failure of the store.
    ///
    /// # Cancel safety
    /// Safe, but the lease may or may not have been extended. It lasts at least for the shorter of the two
    /// times.
    pub fn extend<I, T>(&self, id: I, ttl: T) -> Request<ExtendResult>
    where
        I: TryInto<LockId>,
        T: TryInto<Ttl>,
        LockError: From<I::Error> + From<T::Error>,
    {
        let (store, id, ttl) = (self.store().clone(), parse(id), parse(ttl));
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::Extend);
            let id = &store.admit(subject, id)?;
            let subject = subject.lock_id(id);
            let ttl = store.admit(subject, ttl)?;
            let send = |deadline| store.backend.extend(ExtendRequest::new(id, ttl, deadline));
            store.call(subject.ttl(ttl), &limits, send).await
        })
    }

    /// Whether anyone holds a key.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad key, `Aborted`, or a failure of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub fn is_locked<K>(&self, key: K) -> Request<bool>
    where
        K: TryInto<LockKey>,
        LockError: From<K::Error>,
    {
        let (store, key) = (self.store().clone(), parse(key));
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::IsLocked);
            let key = &store.admit(subject, key)?;
            let send = |deadline| store.backend.is_locked(IsLockedRequest::new(key, deadline));
            store.call(subject.key(key), &limits, send).await
        })
    }

    /// The live lock on a key, with hashes for identifiers; `None` if it is free.
    ///
    /// For diagnostics and user interfaces.
    ///
    /// ```
    /// # use syncguard_core::{LockError, Locks};
    /// # use syncguard_memory::MemoryBackend;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// # let locks = Locks::new(MemoryBackend::default());
    /// let guard = locks.lock("deploy:production").await?;
    /// let info = locks.get_by_key("deploy:production").await?;
    /// assert_eq!(info.map(|info| info.fence), Some(guard.fence()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a bad key, `Aborted`, or a failure of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub fn get_by_key<K>(&self, key: K) -> Request<Option<LockInfo<F>>>
    where
        K: TryInto<LockKey>,
        LockError: From<K::Error>,
    {
        let key = parse(key).map(Target::Key);
        self.look_up(key, |found| found.map(|lock| lock.sanitized()))
    }

    /// The live lock that an id holds, with hashes for identifiers; `None` if it holds none.
    ///
    /// For diagnostics and user interfaces.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed id, `Aborted`, or a failure of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub fn get_by_id<I>(&self, id: I) -> Request<Option<LockInfo<F>>>
    where
        I: TryInto<LockId>,
        LockError: From<I::Error>,
    {
        let id = parse(id).map(Target::Id);
        self.look_up(id, |found| found.map(|lock| lock.sanitized()))
    }

    /// As [`get_by_key`](Self::get_by_key), with the raw key and id. Both are sensitive: for debugging only.
    ///
    /// # Errors
    /// As [`get_by_key`](Self::get_by_key).
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub fn get_by_key_raw<K>(&self, key: K) -> Request<Option<LockInfoDebug<F>>>
    where
        K: TryInto<LockKey>,
        LockError: From<K::Error>,
    {
        self.look_up(parse(key).map(Target::Key), |found| found)
    }

    /// As [`get_by_id`](Self::get_by_id), with the raw key and id. Both are sensitive: for debugging only.
    ///
    /// # Errors
    /// As [`get_by_id`](Self::get_by_id).
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub fn get_by_id_raw<I>(&self, id: I) -> Request<Option<LockInfoDebug<F>>>
    where
        I: TryInto<LockId>,
        LockError: From<I::Error>,
    {
        self.look_up(parse(id).map(Target::Id), |found| found)
    }

    /// Whether an id holds a live lock right now.
    ///
    /// For diagnostics and user interfaces. Do not use it to decide whether to write: the result can be out
    /// of date when it arrives. Release and extend verify the owner themselves, and a resource that checks
    /// fences needs no such check.
    ///
    /// # Errors
    /// As [`get_by_id`](Self::get_by_id).
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub fn owns<I>(&self, id: I) -> Request<bool>
    where
        I: TryInto<LockId>,
        LockError: From<I::Error>,
    {
        self.look_up(parse(id).map(Target::Id), |found| found.is_some())
    }

    fn look_up<T: 'static>(
        &self,
        by: Result<Target, LockError>,
        answer: fn(Option<LockInfoDebug<F>>) -> T,
    ) -> Request<T> {
        let store = self.store().clone();
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::Lookup);
            let by = store.admit(subject, by)?;
            let (subject, by) = match &by {
                Target::Key(key) => (subject.key(key), Lookup::Key(key)),
                Target::Id(id) => (subject.lock_id(id), Lookup::Id(id)),
            };
            let send = |deadline| store.backend.lookup_raw(LookupRequest::new(by, deadline));
            store.call(subject, &limits, send).await.map(answer)
        })
    }

    /// Releases a lock. If that fails or is dropped before it ends, the background retries it.
    pub(crate) async fn release_lock(
        &self,
        id: &LockId,
        key: Option<&LockKey>,
        limits: &Limits,
        on_error: Option<&ReleaseErrorHandler>,
    ) -> Result<ReleaseResult, LockError> {
        let store = self.store();
        let subject = Subject::new(Operation::Release).key(key).lock_id(id);
        let runtime = current_runtime().map_err(|error| store.refused(subject, error))?;
        let begun = store.begin(subject);
        let reclaim = Reclaim::of_release(self, runtime, id, key, on_error);
        let send = |deadline| store.backend.release(ReleaseRequest::new(id, deadline));
        let result = store.bounded(&subject, limits, send).await;
        if result.as_ref().map_or_else(was_refused, |_| true) {
            reclaim.disarm();
        }
        begun.end(&result);
        result
    }

    pub(crate) fn store(&self) -> &Store<F> {
        &self.0.store
    }

    pub(crate) fn reclaimer(&self) -> &Reclaimer<F> {
        &self.0.reclaimer
    }

    pub(crate) fn lines(&self) -> &Lines<F> {
        &self.0.lines
    }
}

/// Whether an operation was refused before anything was sent, so that there is nothing to release.
pub(crate) fn was_refused(error: &LockError) -> bool {
    error.code() == ErrorCode::Aborted && !error.outcome_unknown()
}

/// What to look up.
enum Target {
    Key(LockKey),
    Id(LockId),
}

impl<F: FenceToken> fmt::Debug for Locks<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("backend", &self.0.store.backend)
            .field("settings", &self.0.store.settings)
            .field("observers", &self.0.store.observers)
            .field("pending", &self.0.store.background.len())
            .finish()
    }
}
