//! The memory store with a fault.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use syncguard_conformance::{Harness, Stored};
use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, CloseRequest, ExtendRequest, IsLockedRequest,
    ListPage, ListPosition, ListRequest, LockBackend, Lookup, LookupRequest, PurgeRequest,
    ReleaseRequest, Watch, WatchRequest,
};
use syncguard_core::list::KeyPrefix;
use syncguard_core::{
    ErrorCode, ExtendResult, Fence, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl,
};
use syncguard_memory::{ManualClock, MemoryBackend};
use tokio::time::Instant;

pub(crate) type Answer<T> = Result<T, LockError>;

/// What an acquire asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) key: &'a LockKey,
    pub(crate) id: &'a LockId,
    pub(crate) ttl: Ttl,
}

/// What a listing asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) prefix: &'a KeyPrefix,
    pub(crate) after: Option<&'a ListPosition>,
    pub(crate) limit: u32,
}

/// The memory backend, called without requests: it needs no deadline. Its clock and that of the faults are one: a
/// fault of a millisecond strikes in the very millisecond.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    backend: MemoryBackend,
    clock: ManualClock,
    moving: Arc<Mutex<()>>,
}

impl Default for Memory {
    fn default() -> Self {
        let clock = ManualClock::new();
        Self {
            backend: MemoryBackend::with_clock(clock.clone()),
            clock,
            moving: Arc::default(),
        }
    }
}

impl Memory {
    /// The backend, at the present time.
    fn now(&self) -> &MemoryBackend {
        let _moving = self.moving.lock().unwrap();
        let passed = u64::try_from(now_ms() - self.clock.now_ms()).unwrap_or(0);
        if passed > 0 {
            self.clock.advance(Duration::from_millis(passed));
        }
        &self.backend
    }

    pub(crate) async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Answer<AcquireResult> {
        let request = AcquireRequest::new(key, id, ttl, Instant::now());
        self.now().acquire(request).await
    }

    pub(crate) async fn release(&self, id: &LockId) -> Answer<ReleaseResult> {
        self.now()
            .release(ReleaseRequest::new(id, Instant::now()))
            .await
    }

    pub(crate) async fn extend(&self, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let request = ExtendRequest::new(id, ttl, Instant::now());
        self.now().extend(request).await
    }

    pub(crate) async fn is_locked(&self, key: &LockKey) -> Answer<bool> {
        let request = IsLockedRequest::new(key, Instant::now());
        self.now().is_locked(request).await
    }

    pub(crate) async fn lookup_raw(&self, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let request = LookupRequest::new(by, Instant::now());
        self.now().lookup_raw(request).await
    }

    pub(crate) async fn watch(&self, key: &LockKey) -> Answer<Option<Watch>> {
        self.now()
            .watch(WatchRequest::new(key, Instant::now()))
            .await
    }

    pub(crate) async fn list(&self, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let Wanted {
            prefix,
            after,
            limit,
        } = wanted;
        let request = ListRequest::new(prefix, after, limit, Instant::now());
        self.now().list(request).await
    }

    pub(crate) async fn purge_expired(&self, limit: u32) -> Answer<u64> {
        let request = PurgeRequest::new(limit, Instant::now());
        self.now().purge_expired(request).await
    }

    fn kept(&self, beginning: &str) -> Stored {
        let kept = self.backend.kept(beginning);
        let mut stored = Stored::default();
        stored.locks = kept.locks;
        stored.index_entries = kept.ids;
        stored.fence_counters = kept.fence_counters;
        stored.others = kept.watched;
        stored
    }

    pub(crate) fn set_fence_counter(&self, key: &LockKey, counter: u64) {
        self.backend.set_fence_counter(key, counter);
    }
}

/// What a fault works on: the store, and what a table that nobody cleans would still know.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) memory: Memory,
    rows: Arc<Mutex<HashMap<LockId, Row>>>,
    left: Arc<Mutex<HashMap<(Part, String), LockKey>>>,
}

/// What a fault leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Lock,
    IndexEntry,
    Counter,
    /// The key's counter is missing.
    NoCounter,
    Other,
}

/// The last that was granted to an id.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) info: LockInfoDebug,
    pub(crate) released: bool,
    pub(crate) extended: bool,
    /// Its expiry before any extend.
    pub(crate) first_expiry_ms: i64,
}

impl Store {
    pub(crate) async fn acquire(&self, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.memory.acquire(ask.key, ask.id, ask.ttl).await
    }

    /// Acquires the key even if it is held.
    pub(crate) async fn steal(&self, ask: Ask<'_>) -> Answer<AcquireResult> {
        if let Some(holder) = self.holder(ask.key).await {
            let _ = self.memory.release(&holder.lock_id).await?;
        }
        self.acquire(ask).await
    }

    /// Who holds the key now.
    pub(crate) async fn holder(&self, key: &LockKey) -> Option<LockInfoDebug> {
        self.memory.lookup_raw(Lookup::Key(key)).await.unwrap()
    }

    /// What the id holds now.
    pub(crate) async fn held_by(&self, id: &LockId) -> Option<LockInfoDebug> {
        self.memory.lookup_raw(Lookup::Id(id)).await.unwrap()
    }

    /// Leaves something of a key behind, under a name.
    pub(crate) fn leave(&self, part: Part, key: &LockKey, name: impl Display) {
        let mut left = self.left.lock().unwrap();
        left.insert((part, name.to_string()), key.clone());
    }

    /// Removes what was left under this name.
    pub(crate) fn remove(&self, part: Part, name: impl Display) {
        let mut left = self.left.lock().unwrap();
        left.remove(&(part, name.to_string()));
    }

    /// What the store keeps, and what was left behind.
    fn stored(&self, beginning: &str) -> Stored {
        let mut stored = self.memory.kept(beginning);
        for ((part, _), key) in self.left.lock().unwrap().iter() {
            if key.as_str().starts_with(beginning) {
                match part {
                    Part::Lock => stored.locks += 1,
                    Part::IndexEntry => stored.index_entries += 1,
                    Part::Counter => stored.fence_counters += 1,
                    Part::NoCounter => stored.fence_counters -= 1,
                    Part::Other => stored.others += 1,
                }
            }
        }
        stored
    }

    /// Whether the key was ever granted.
    pub(crate) fn has_counter(&self, key: &LockKey) -> bool {
        self.memory.kept(key.as_str()).fence_counters > 0
    }

    /// Whether the store still keeps a lock on the key, live or not.
    pub(crate) fn keeps_lock(&self, key: &LockKey) -> bool {
        self.memory.kept(key.as_str()).locks > 0
    }

    /// The last grant of an id, held or not.
    pub(crate) fn row_of(&self, id: &LockId) -> Option<Row> {
        self.rows.lock().unwrap().get(id).cloned()
    }

    /// The row of the lock that holds the key now.
    pub(crate) async fn row_on(&self, key: &LockKey) -> Option<Row> {
        let holder = self.holder(key).await?;
        self.row_of(&holder.lock_id)
    }

    /// The row of a lease on the key that has expired, while nobody holds it.
    pub(crate) async fn expired_on(&self, key: &LockKey) -> Option<LockInfoDebug> {
        if self.holder(key).await.is_some() {
            return None;
        }
        self.unreleased_on(key)
    }

    /// The key that was last granted to this id, held or not.
    pub(crate) fn key_of(&self, id: &LockId) -> Option<LockKey> {
        self.row_of(id).map(|row| row.info.key)
    }

    /// The grants that nobody released, expired or not.
    pub(crate) fn unreleased(&self) -> Vec<LockInfoDebug> {
        let rows = self.rows.lock().unwrap();
        let unreleased = rows.values().filter(|row| !row.released);
        unreleased.map(|row| row.info.clone()).collect()
    }

    /// The latest grant on the key, unless it was released.
    pub(crate) fn unreleased_on(&self, key: &LockKey) -> Option<LockInfoDebug> {
        let of_key = self.unreleased().into_iter().filter(|row| row.key == *key);
        of_key.max_by_key(|row| row.expires_at_ms)
    }
}

/// The store's time.
pub(crate) fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

/// The nearest TTL there is.
pub(crate) fn lasting(millis: i64) -> Ttl {
    Ttl::new(Duration::from_millis(millis.max(1).unsigned_abs())).unwrap_or(Ttl::MAX)
}

pub(crate) const NOT_EXTENDED: ExtendResult = ExtendResult::not_held(None);
pub(crate) const NOT_RELEASED: ReleaseResult = ReleaseResult::not_held(None);

/// One fault: the operations that it gets wrong.
pub(crate) trait Fault: Debug + Clone + Default + Send + Sync + 'static {
    /// The fault as a new client has it.
    fn connect(&self) -> Self {
        self.clone()
    }

    fn acquire(
        &self,
        store: &Store,
        ask: Ask<'_>,
    ) -> impl Future<Output = Answer<AcquireResult>> + Send {
        store.acquire(ask)
    }

    fn release(
        &self,
        store: &Store,
        id: &LockId,
    ) -> impl Future<Output = Answer<ReleaseResult>> + Send {
        store.memory.release(id)
    }

    fn extend(
        &self,
        store: &Store,
        id: &LockId,
        ttl: Ttl,
    ) -> impl Future<Output = Answer<ExtendResult>> + Send {
        store.memory.extend(id, ttl)
    }

    fn is_locked(&self, store: &Store, key: &LockKey) -> impl Future<Output = Answer<bool>> + Send {
        store.memory.is_locked(key)
    }

    fn lookup_raw(
        &self,
        store: &Store,
        by: Lookup<'_>,
    ) -> impl Future<Output = Answer<Option<LockInfoDebug>>> + Send {
        store.memory.lookup_raw(by)
    }

    fn watch(
        &self,
        store: &Store,
        key: &LockKey,
    ) -> impl Future<Output = Answer<Option<Watch>>> + Send {
        store.memory.watch(key)
    }

    fn list(
        &self,
        store: &Store,
        wanted: Wanted<'_>,
    ) -> impl Future<Output = Answer<Option<ListPage>>> + Send {
        store.memory.list(wanted)
    }

    /// An acquire whose deadline has passed.
    fn acquire_late(
        &self,
        _: &Store,
        _: Ask<'_>,
    ) -> impl Future<Output = Answer<AcquireResult>> + Send {
        std::future::ready(Err(past_deadline()))
    }

    fn purge_expired(&self, store: &Store, limit: u32) -> impl Future<Output = Answer<u64>> + Send {
        store.memory.purge_expired(limit)
    }

    fn close(&self, _: &Store) -> impl Future<Output = Answer<()>> + Send {
        std::future::ready(Ok(()))
    }
}

pub(crate) fn past_deadline() -> LockError {
    LockError::new(ErrorCode::NetworkTimeout, "the deadline has passed")
}

/// No fault.
#[derive(Debug, Clone, Default)]
pub(crate) struct NoFault;

impl Fault for NoFault {}

/// A [`Fault`] behind a pointer: all mutants are one type, so that the suite is compiled once.
trait ErasedFault: Debug + Send + Sync {
    fn acquire<'a>(
        &'a self,
        store: &'a Store,
        ask: Ask<'a>,
    ) -> BoxFuture<'a, Answer<AcquireResult>>;
    fn release<'a>(
        &'a self,
        store: &'a Store,
        id: &'a LockId,
    ) -> BoxFuture<'a, Answer<ReleaseResult>>;
    fn extend<'a>(
        &'a self,
        store: &'a Store,
        id: &'a LockId,
        ttl: Ttl,
    ) -> BoxFuture<'a, Answer<ExtendResult>>;
    fn is_locked<'a>(&'a self, store: &'a Store, key: &'a LockKey) -> BoxFuture<'a, Answer<bool>>;
    fn lookup_raw<'a>(
        &'a self,
        store: &'a Store,
        by: Lookup<'a>,
    ) -> BoxFuture<'a, Answer<Option<LockInfoDebug>>>;
    fn watch<'a>(
        &'a self,
        store: &'a Store,
        key: &'a LockKey,
    ) -> BoxFuture<'a, Answer<Option<Watch>>>;
    fn list<'a>(
        &'a self,
        store: &'a Store,
        wanted: Wanted<'a>,
    ) -> BoxFuture<'a, Answer<Option<ListPage>>>;
    fn acquire_late<'a>(
        &'a self,
        store: &'a Store,
        ask: Ask<'a>,
    ) -> BoxFuture<'a, Answer<AcquireResult>>;
    fn purge_expired<'a>(&'a self, store: &'a Store, limit: u32) -> BoxFuture<'a, Answer<u64>>;
    fn close<'a>(&'a self, store: &'a Store) -> BoxFuture<'a, Answer<()>>;
}

impl<F: Fault> ErasedFault for F {
    fn acquire<'a>(
        &'a self,
        store: &'a Store,
        ask: Ask<'a>,
    ) -> BoxFuture<'a, Answer<AcquireResult>> {
        Box::pin(Fault::acquire(self, store, ask))
    }

    fn release<'a>(
        &'a self,
        store: &'a Store,
        id: &'a LockId,
    ) -> BoxFuture<'a, Answer<ReleaseResult>> {
        Box::pin(Fault::release(self, store, id))
    }

    fn extend<'a>(
        &'a self,
        store: &'a Store,
        id: &'a LockId,
        ttl: Ttl,
    ) -> BoxFuture<'a, Answer<ExtendResult>> {
        Box::pin(Fault::extend(self, store, id, ttl))
    }

    fn is_locked<'a>(&'a self, store: &'a Store, key: &'a LockKey) -> BoxFuture<'a, Answer<bool>> {
        Box::pin(Fault::is_locked(self, store, key))
    }

    fn lookup_raw<'a>(
        &'a self,
        store: &'a Store,
        by: Lookup<'a>,
    ) -> BoxFuture<'a, Answer<Option<LockInfoDebug>>> {
        Box::pin(Fault::lookup_raw(self, store, by))
    }

    fn watch<'a>(
        &'a self,
        store: &'a Store,
        key: &'a LockKey,
    ) -> BoxFuture<'a, Answer<Option<Watch>>> {
        Box::pin(Fault::watch(self, store, key))
    }

    fn list<'a>(
        &'a self,
        store: &'a Store,
        wanted: Wanted<'a>,
    ) -> BoxFuture<'a, Answer<Option<ListPage>>> {
        Box::pin(Fault::list(self, store, wanted))
    }

    fn acquire_late<'a>(
        &'a self,
        store: &'a Store,
        ask: Ask<'a>,
    ) -> BoxFuture<'a, Answer<AcquireResult>> {
        Box::pin(Fault::acquire_late(self, store, ask))
    }

    fn purge_expired<'a>(&'a self, store: &'a Store, limit: u32) -> BoxFuture<'a, Answer<u64>> {
        Box::pin(Fault::purge_expired(self, store, limit))
    }

    fn close<'a>(&'a self, store: &'a Store) -> BoxFuture<'a, Answer<()>> {
        Box::pin(Fault::close(self, store))
    }
}

#[derive(Debug)]
pub(crate) struct Broken {
    store: Store,
    fault: Box<dyn ErasedFault>,
}

impl LockBackend for Broken {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        self.store.memory.backend.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Answer<AcquireResult> {
        let AcquireRequest {
            key,
            id,
            ttl,
            deadline,
            ..
        } = request;
        let ask = Ask { key, id, ttl };
        if deadline <= Instant::now() {
            return self.fault.acquire_late(&self.store, ask).await;
        }
        let answer = self.fault.acquire(&self.store, ask).await?;
        if let AcquireResult::Acquired(grant) = &answer {
            let acquired_at_ms = grant.expires_at_ms - ttl.as_millis();
            let key = key.clone();
            let info =
                LockInfoDebug::new(key, *id, grant.expires_at_ms, acquired_at_ms, grant.fence);
            let row = Row {
                info,
                released: false,
                extended: false,
                first_expiry_ms: grant.expires_at_ms,
            };
            // A replay is no new row.
            let mut rows = self.store.rows.lock().unwrap();
            let known = rows.get(id).is_some_and(|row| {
                !row.released && row.info.key == *ask.key && row.info.fence == grant.fence
            });
            if !known {
                rows.insert(*id, row);
            }
        }
        Ok(answer)
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Answer<ReleaseResult> {
        let answer = self.fault.release(&self.store, request.id).await?;
        let mut rows = self.store.rows.lock().unwrap();
        if let Some(row) = rows.get_mut(request.id).filter(|_| answer.is_released()) {
            row.released = true;
        }
        Ok(answer)
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Answer<ExtendResult> {
        let ExtendRequest { id, ttl, .. } = request;
        let answer = self.fault.extend(&self.store, id, ttl).await?;
        let mut rows = self.store.rows.lock().unwrap();
        if let (Some(row), Some(expires_at_ms)) = (rows.get_mut(id), answer.expires_at_ms()) {
            row.info.expires_at_ms = expires_at_ms;
            row.extended = true;
        }
        Ok(answer)
    }

    async fn is_locked(&self, request: IsLockedRequest<'_>) -> Answer<bool> {
        self.fault.is_locked(&self.store, request.key).await
    }

    async fn lookup_raw(&self, request: LookupRequest<'_>) -> Answer<Option<LockInfoDebug>> {
        self.fault.lookup_raw(&self.store, request.by).await
    }

    async fn watch(&self, request: WatchRequest<'_>) -> Answer<Option<Watch>> {
        self.fault.watch(&self.store, request.key).await
    }

    async fn list(&self, request: ListRequest<'_>) -> Answer<Option<ListPage>> {
        let ListRequest {
            prefix,
            after,
            limit,
            ..
        } = request;
        let wanted = Wanted {
            prefix,
            after,
            limit,
        };
        self.fault.list(&self.store, wanted).await
    }

    async fn purge_expired(&self, request: PurgeRequest) -> Answer<u64> {
        self.fault.purge_expired(&self.store, request.limit).await
    }

    async fn close(&self, _: CloseRequest) -> Answer<()> {
        self.fault.close(&self.store).await
    }
}

/// Clients of one broken store.
pub(crate) struct BrokenHarness {
    store: Store,
    connect: Box<dyn Fn() -> Broken + Send + Sync>,
}

impl BrokenHarness {
    pub(crate) fn new<F: Fault>() -> Self {
        let (store, fault) = (Store::default(), F::default());
        Self {
            store: store.clone(),
            connect: Box::new(move || Broken {
                store: store.clone(),
                fault: Box::new(fault.connect()),
            }),
        }
    }
}

impl Harness for BrokenHarness {
    type Backend = Broken;

    async fn connect(&self) -> Answer<Broken> {
        Ok((self.connect)())
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Answer<bool> {
        self.store.memory.set_fence_counter(key, counter);
        Ok(true)
    }

    async fn stored(&self, beginning: &str) -> Answer<Option<Stored>> {
        Ok(Some(self.store.stored(beginning)))
    }

    fn capacity(&self) -> usize {
        5_000
    }
}
