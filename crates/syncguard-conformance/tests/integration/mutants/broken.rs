//! A fault, and the store that has it.

use std::fmt::Debug;
use std::future::Future;

use futures_util::future::BoxFuture;
use syncguard_conformance::{Harness, Stored};
use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, CloseRequest, ExtendRequest, IsLockedRequest,
    ListPage, ListRequest, LockBackend, Lookup, LookupRequest, PurgeRequest, ReleaseRequest, Watch,
    WatchRequest,
};
use syncguard_core::{
    ErrorCode, ExtendResult, Fence, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl,
};
use tokio::time::Instant;

use super::store::{Answer, Ask, Row, Store, Wanted};

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
                extends: 0,
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
            row.extends += 1;
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
    pub(crate) one_call_at_a_time: bool,
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
            one_call_at_a_time: false,
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

    fn one_call_at_a_time(&self) -> bool {
        self.one_call_at_a_time
    }
}
