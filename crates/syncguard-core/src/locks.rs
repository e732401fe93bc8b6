//! [`Locks`]: the handle that applications hold.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::backend::erased::ErasedBackend;
use crate::backend::{
    Capabilities, CloseRequest, ExtendRequest, FenceToken, IsLockedRequest, LockBackend, Lookup,
    LookupRequest, PreflightRequest, PurgeRequest, ReleaseRequest, Reporter,
};
use crate::builder::{LocksBuilder, Settings};
use crate::call::{Limits, Subject, aborted, current_runtime};
use crate::error::Operation;
use crate::observe::{Listeners, Observer, Observers, ReleaseErrorHandler, ReleaseFailure};
use crate::reclaim::Reclaim;
use crate::{
    ErrorCode, ExtendResult, Fence, Finding, LockError, LockId, LockInfo, LockInfoDebug, LockKey,
    LockRequest, ReleaseResult, Request, TryLockRequest, Ttl,
};

/// How many expired locks one call to the store deletes.
const PURGE_LIMIT: u32 = 500;

/// Distributed locks on one store. Clones are cheap and share everything.
///
/// A `Locks` keeps the promises of this crate around a [`LockBackend`]: every operation has a
/// deadline, whatever an abandoned acquire may have taken is released in the background, and
/// errors carry their context. No backend type is part of its signature, so an application can
/// choose its store at run time.
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
pub struct Locks<F: FenceToken = Fence>(Arc<Shared<F>>);

/// A store and who observes what is done through this handle.
struct Shared<F: FenceToken> {
    store: Arc<Store<F>>,
    observers: Observers,
}

/// What all handles on one store share.
pub(crate) struct Store<F: FenceToken> {
    backend: Box<dyn ErasedBackend<F>>,
    capabilities: Capabilities,
    settings: Settings,
    background: TaskTracker,
    listeners: Arc<Listeners>,
}

impl<F: FenceToken> Store<F> {
    pub(crate) fn new(backend: Box<dyn ErasedBackend<F>>, settings: Settings) -> Self {
        let capabilities = backend.capabilities();
        let listeners = Arc::<Listeners>::default();
        backend.attach(Reporter::new(capabilities.backend, &listeners));
        let background = TaskTracker::new();
        // A closed tracker still takes tasks; only a closed one can be waited for.
        background.close();
        Self {
            backend,
            capabilities,
            settings,
            background,
            listeners,
        }
    }
}

impl<F: FenceToken> Locks<F> {
    /// Locks on this backend, with the default configuration.
    pub fn new(backend: impl LockBackend<Fence = F>) -> Self {
        Self::builder(backend).build()
    }

    /// Configures locks on this backend.
    pub fn builder(backend: impl LockBackend<Fence = F>) -> LocksBuilder<F> {
        LocksBuilder::new(backend)
    }

    pub(crate) fn from_parts(store: Arc<Store<F>>, observers: Observers) -> Self {
        for observer in observers.iter() {
            store.listeners.add(observer);
        }
        Self(Arc::new(Shared { store, observers }))
    }

    /// A handle on the same store, background work and [`drain`](Self::drain) whose calls `observer`
    /// observes too. Calls through this handle and its guards stay as they were.
    #[must_use]
    pub fn observed_by(&self, observer: Arc<dyn Observer>) -> Self {
        self.0.store.listeners.add(&observer);
        Self(Arc::new(Shared {
            store: Arc::clone(&self.0.store),
            observers: self.0.observers.with(observer),
        }))
    }

    /// Waits for `key` and acquires it, as locking a mutex does.
    ///
    /// Await the request for a [`LockGuard`](crate::LockGuard), or
    /// [`run`](LockRequest::run) a section under the lock.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use syncguard_core::{Fence, LockError, Locks};
    /// # use syncguard_memory::MemoryBackend;
    /// # async fn charge(fence: Fence) -> u32 { 1 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// # let locks = Locks::new(MemoryBackend::default());
    /// let guard = locks.lock("payment:42").await?;
    /// # drop(guard);
    /// let receipt = locks
    ///     .lock("payment:42")
    ///     .ttl(Duration::from_secs(60))
    ///     .timeout(Duration::from_secs(5))
    ///     .run(async |lease| charge(lease.fence()).await)
    ///     .await?;
    /// assert_eq!(receipt.into_value(), 1);
    /// # Ok(()) }
    /// ```
    pub fn lock<K>(&self, key: K) -> LockRequest<F>
    where
        K: TryInto<LockKey>,
        LockError: From<K::Error>,
    {
        LockRequest::new(self.clone(), parse(key))
    }

    /// Acquires `key` if it is free, in one attempt. It never waits for the holder.
    ///
    /// Await the request for an `Option<LockGuard>`, [`attempt`](TryLockRequest::attempt) it to learn
    /// for how long the key stays held, or [`run`](TryLockRequest::run) a section if it is free.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use syncguard_core::{LockError, Locks};
    /// # use syncguard_memory::MemoryBackend;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// # let locks = Locks::new(MemoryBackend::default());
    /// if let Some(guard) = locks.try_lock("report:daily").ttl(Duration::from_secs(60)).await? {
    ///     // ... the work, passing guard.fence() to whatever it writes to ...
    ///     guard.release().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_lock<K>(&self, key: K) -> TryLockRequest<F>
    where
        K: TryInto<LockKey>,
        LockError: From<K::Error>,
    {
        TryLockRequest::new(self.clone(), parse(key))
    }

    /// Releases the lock that an id holds, from any process.
    ///
    /// It is idempotent: again, it answers `NotHeld`, and it never touches a successor's lock.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed id, `Aborted`, or a failure of the store. The background then
    /// repeats the release.
    ///
    /// # Cancel safety
    /// Safe: once begun, a dropped release goes on in the background.
    pub fn release<I>(&self, id: I) -> Request<ReleaseResult>
    where
        I: TryInto<LockId>,
        LockError: From<I::Error>,
    {
        let (locks, id) = (self.clone(), parse(id));
        Request::new(move |limits| async move {
            let id = locks.admit(Subject::new(Operation::Release), id)?;
            locks.release_lock(&id, None, &limits, None).await
        })
    }

    /// Makes the lock that an id holds last for `ttl` from now, from any process.
    ///
    /// It replaces the remaining time and may shorten it. It is idempotent, but for the time that it
    /// counts from.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed id or a bad TTL, `Aborted`, or a failure of the store.
    ///
    /// # Cancel safety
    /// Safe, but whether the lease was extended is then unknown. It is never shorter than the shorter
    /// of the two.
    pub fn extend<I, T>(&self, id: I, ttl: T) -> Request<ExtendResult>
    where
        I: TryInto<LockId>,
        T: TryInto<Ttl>,
        LockError: From<I::Error> + From<T::Error>,
    {
        let (locks, id, ttl) = (self.clone(), parse(id), parse(ttl));
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::Extend);
            let id = &locks.admit(subject, id)?;
            let subject = subject.lock_id(id);
            let ttl = locks.admit(subject, ttl)?;
            let send = |deadline| {
                locks
                    .backend()
                    .extend(ExtendRequest::new(id, ttl, deadline))
            };
            locks.call(subject.ttl(ttl), &limits, send).await
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
        let (locks, key) = (self.clone(), parse(key));
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::IsLocked);
            let key = &locks.admit(subject, key)?;
            let send = |deadline| {
                locks
                    .backend()
                    .is_locked(IsLockedRequest::new(key, deadline))
            };
            locks.call(subject.key(key), &limits, send).await
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

    /// As [`get_by_key`](Self::get_by_key), with the raw key and id. They are sensitive: for debugging
    /// only.
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

    /// As [`get_by_id`](Self::get_by_id), with the raw key and id. They are sensitive: for debugging
    /// only.
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
    /// For diagnostics and user interfaces. Never `if owns { write }`: the answer can be out of date
    /// when it arrives. Release and extend verify the owner themselves, and a resource that checks
    /// fences needs no such question.
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
        let locks = self.clone();
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::Lookup);
            let by = locks.admit(subject, by)?;
            let (subject, by) = match &by {
                Target::Key(key) => (subject.key(key), Lookup::Key(key)),
                Target::Id(id) => (subject.lock_id(id), Lookup::Id(id)),
            };
            let send = |deadline| locks.backend().lookup_raw(LookupRequest::new(by, deadline));
            locks.call(subject, &limits, send).await.map(answer)
        })
    }

    /// Waits until all background releases have ended: those of dropped guards and of operations that
    /// were abandoned or whose outcome is unknown. Call it before the process or its runtime ends.
    ///
    /// It covers this handle, its clones, and handles that [`observed_by`](Self::observed_by) made of
    /// them; never a `Locks` that was built separately.
    ///
    /// # Errors
    /// `NetworkTimeout` if some were still pending after `timeout`; they go on. `Aborted`. `Internal`
    /// outside a Tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping the request stops the waiting, not the releases.
    pub fn drain(&self, timeout: Duration) -> Request<()> {
        let locks = self.clone();
        Request::new(move |limits: Limits| async move {
            current_runtime()?;
            if limits.is_cancelled() {
                return Err(aborted());
            }
            let drained = tokio::time::timeout(timeout, locks.0.store.background.wait());
            tokio::select! {
                biased;
                () = limits.cancelled(), if limits.token.is_some() => Err(aborted()),
                drained = drained => drained.map_err(|_| {
                    let pending = locks.pending();
                    let message = format!(
                        "{pending} background releases still pending after {timeout:.1?}; locks that \
                         are never released expire with their TTL"
                    );
                    LockError::new(ErrorCode::NetworkTimeout, message)
                }),
            }
        })
    }

    /// How many background releases are pending.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.0.store.background.len()
    }

    /// What the backend is and can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.0.store.capabilities
    }

    /// Looks at how the store is configured. The gravest findings come first; without any, or with
    /// none above [`Severity::Info`](crate::Severity::Info), the store is in order.
    ///
    /// Ask once when a program starts, not at every operation: it takes a few round trips. It changes
    /// no lock, no fence and no setting of the store.
    ///
    /// ```
    /// # use syncguard_core::{LockError, Locks, Severity};
    /// # use syncguard_memory::MemoryBackend;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// # let locks = Locks::new(MemoryBackend::default());
    /// for finding in locks.preflight().await? {
    ///     println!("{finding}");
    ///     assert!(finding.severity() < Severity::Error);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Aborted`, or a failure of the store: what keeps every operation from working, such as a server
    /// that cannot be reached or a wrong password.
    ///
    /// # Cancel safety
    /// Safe: it changes nothing.
    pub fn preflight(&self) -> Request<Vec<Finding>> {
        let locks = self.clone();
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::Preflight);
            let send = |deadline| locks.backend().preflight(PreflightRequest::new(deadline));
            let mut findings = locks.bounded(subject, &limits, send).await?;
            findings.sort_by_key(|finding: &Finding| std::cmp::Reverse(finding.severity()));
            Ok(findings)
        })
    }

    /// Deletes locks that expired, and returns how many. It never deletes a fence counter.
    ///
    /// Expired locks do no harm but take room where the store does not forget them itself: see the
    /// backend's documentation. It works in steps, each bounded by the operation timeout.
    ///
    /// # Errors
    /// `Aborted`, or a failure of the store. What was deleted until then stays deleted.
    ///
    /// # Cancel safety
    /// Safe: it stops between two steps, or in one.
    pub fn purge_expired(&self) -> Request<u64> {
        let locks = self.clone();
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::PurgeExpired);
            let mut purged = 0_u64;
            loop {
                let send = |deadline| {
                    let request = PurgeRequest::new(PURGE_LIMIT, deadline);
                    locks.backend().purge_expired(request)
                };
                let step = locks.bounded(subject, &limits, send).await?;
                purged = purged.saturating_add(step);
                if step < PURGE_LIMIT.into() {
                    return Ok(purged);
                }
            }
        })
    }

    /// Closes the connections that the backend itself opened. Operations of all clones then fail with
    /// `ServiceUnavailable`. [Drain](Self::drain) first.
    ///
    /// A client or pool that the application passed to the backend stays open.
    ///
    /// # Errors
    /// `Aborted`, or a failure to close in an orderly way within the operation timeout.
    ///
    /// # Cancel safety
    /// Safe; connections then close with the last clone at the latest.
    pub fn close(&self) -> Request<()> {
        let locks = self.clone();
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::Close);
            let send = |deadline| locks.backend().close(CloseRequest::new(deadline));
            locks.bounded(subject, &limits, send).await
        })
    }

    /// Releases a lock. If that fails or is dropped half-way, the background repeats it.
    pub(crate) async fn release_lock(
        &self,
        id: &LockId,
        key: Option<&LockKey>,
        limits: &Limits,
        on_error: Option<&ReleaseErrorHandler>,
    ) -> Result<ReleaseResult, LockError> {
        let subject = Subject::new(Operation::Release).key(key).lock_id(id);
        if limits.is_cancelled() {
            return Err(self.refused(subject, aborted()));
        }
        let runtime = current_runtime().map_err(|error| self.refused(subject, error))?;
        let watch = self.watch(subject);
        let reclaim = Reclaim::of_release(self, runtime, id, key, on_error);
        let result = self
            .bounded(subject, limits, |deadline| {
                self.backend().release(ReleaseRequest::new(id, deadline))
            })
            .await;
        if result.is_ok() {
            reclaim.disarm();
        }
        watch.end(&result);
        result
    }

    pub(crate) fn backend(&self) -> &dyn ErasedBackend<F> {
        self.0.store.backend.as_ref()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.store.settings
    }

    pub(crate) fn observers(&self) -> &Observers {
        &self.0.observers
    }

    /// The time of the clock that leases are watched by.
    pub(crate) fn now(&self) -> Duration {
        self.settings().clock.now()
    }

    /// Runs work in the background that [`drain`](Self::drain) waits for.
    pub(crate) fn spawn(&self, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.store.background.spawn_on(work, runtime));
    }

    /// Hands a failed release to the request's handler, or else to that of this `Locks`.
    pub(crate) fn report(&self, failure: &ReleaseFailure, handler: Option<&ReleaseErrorHandler>) {
        match handler.or(self.settings().on_release_error.as_ref()) {
            Some(handler) => handler.call(failure),
            None => tracing::warn!(
                code = %failure.error().code(),
                outcome_unknown = failure.error().outcome_unknown(),
                stage = %failure.stage(),
                "failed to release lock; unless a retry succeeds, it expires with its TTL"
            ),
        }
    }
}

/// What to look up.
enum Target {
    Key(LockKey),
    Id(LockId),
}

pub(crate) fn parse<T, A>(argument: A) -> Result<T, LockError>
where
    A: TryInto<T>,
    LockError: From<A::Error>,
{
    argument.try_into().map_err(LockError::from)
}

impl<F: FenceToken> Clone for Locks<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: FenceToken> fmt::Debug for Locks<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("backend", &self.0.store.backend)
            .field("settings", &self.0.store.settings)
            .field("observers", &self.0.observers)
            .field("pending", &self.pending())
            .finish()
    }
}
