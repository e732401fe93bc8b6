//! [`Erased`]: a harness of any backend. Each case is compiled once for it, not once for each backend.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, CloseRequest, ExtendRequest, FenceToken,
    IsLockedRequest, ListPage, ListRequest, LockBackend, LookupRequest, PreflightRequest,
    PurgeRequest, ReleaseRequest, Reporter, Watch, WatchRequest,
};
use syncguard_core::{
    ExtendResult, Finding, LockError, LockInfoDebug, LockKey, LocksBuilder, ReleaseResult,
};

use crate::harness::Fence;
use crate::{Harness, Stored};

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send + 'a>>;

/// A harness whose backend's type is not known.
pub(crate) struct Erased<F: FenceToken>(Box<dyn AnyHarness<F>>);

impl<F: FenceToken> Erased<F> {
    pub(crate) fn new<H: Harness<Backend: LockBackend<Fence = F>>>(harness: Arc<H>) -> Self {
        Self(Box::new(harness))
    }
}

#[deny(clippy::missing_trait_methods)]
impl<F: FenceToken> Harness for Erased<F> {
    type Backend = ErasedBackend<F>;

    async fn connect(&self) -> Result<ErasedBackend<F>, LockError> {
        self.0.connect().await
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        self.0.set_fence_counter(key, counter).await
    }

    async fn stored(&self, beginning: &str) -> Result<Option<Stored>, LockError> {
        self.0.stored(beginning).await
    }

    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    fn one_call_at_a_time(&self) -> bool {
        self.0.one_call_at_a_time()
    }

    fn configure(&self, builder: LocksBuilder<F>) -> LocksBuilder<F> {
        self.0.configure(builder)
    }
}

/// The object-safe twin of [`Harness`].
trait AnyHarness<F: FenceToken>: Send + Sync {
    fn connect(&self) -> Answer<'_, ErasedBackend<F>>;
    fn set_fence_counter<'a>(&'a self, key: &'a LockKey, counter: u64) -> Answer<'a, bool>;
    fn stored<'a>(&'a self, beginning: &'a str) -> Answer<'a, Option<Stored>>;
    fn capacity(&self) -> usize;
    fn one_call_at_a_time(&self) -> bool;
    fn configure(&self, builder: LocksBuilder<F>) -> LocksBuilder<F>;
}

impl<H: Harness> AnyHarness<Fence<H>> for Arc<H> {
    fn connect(&self) -> Answer<'_, ErasedBackend<Fence<H>>> {
        Box::pin(async { Ok(ErasedBackend(Box::new(H::connect(self).await?))) })
    }

    fn set_fence_counter<'a>(&'a self, key: &'a LockKey, counter: u64) -> Answer<'a, bool> {
        Box::pin(H::set_fence_counter(self, key, counter))
    }

    fn stored<'a>(&'a self, beginning: &'a str) -> Answer<'a, Option<Stored>> {
        Box::pin(H::stored(self, beginning))
    }

    fn capacity(&self) -> usize {
        H::capacity(self)
    }

    fn one_call_at_a_time(&self) -> bool {
        H::one_call_at_a_time(self)
    }

    fn configure(&self, builder: LocksBuilder<Fence<H>>) -> LocksBuilder<Fence<H>> {
        H::configure(self, builder)
    }
}

/// A backend whose type is not known.
pub(crate) struct ErasedBackend<F: FenceToken>(Box<dyn AnyBackend<F>>);

/// The object-safe twin of [`LockBackend`].
trait AnyBackend<F: FenceToken>: fmt::Debug + Send + Sync {
    fn capabilities(&self) -> Capabilities;
    fn attach(&self, reporter: Reporter);
    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> Answer<'a, AcquireResult<F>>;
    fn release<'a>(&'a self, request: ReleaseRequest<'a>) -> Answer<'a, ReleaseResult>;
    fn extend<'a>(&'a self, request: ExtendRequest<'a>) -> Answer<'a, ExtendResult>;
    fn lookup_raw<'a>(&'a self, request: LookupRequest<'a>)
    -> Answer<'a, Option<LockInfoDebug<F>>>;
    fn is_locked<'a>(&'a self, request: IsLockedRequest<'a>) -> Answer<'a, bool>;
    fn watch<'a>(&'a self, request: WatchRequest<'a>) -> Answer<'a, Option<Watch>>;
    fn list<'a>(&'a self, request: ListRequest<'a>) -> Answer<'a, Option<ListPage<F>>>;
    fn preflight(&self, request: PreflightRequest) -> Answer<'_, Vec<Finding>>;
    fn purge_expired(&self, request: PurgeRequest) -> Answer<'_, u64>;
    fn close(&self, request: CloseRequest) -> Answer<'_, ()>;
}

impl<F: FenceToken, B: LockBackend<Fence = F>> AnyBackend<F> for B {
    fn capabilities(&self) -> Capabilities {
        LockBackend::capabilities(self)
    }

    fn attach(&self, reporter: Reporter) {
        LockBackend::attach(self, reporter);
    }

    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> Answer<'a, AcquireResult<F>> {
        Box::pin(LockBackend::acquire(self, request))
    }

    fn release<'a>(&'a self, request: ReleaseRequest<'a>) -> Answer<'a, ReleaseResult> {
        Box::pin(LockBackend::release(self, request))
    }

    fn extend<'a>(&'a self, request: ExtendRequest<'a>) -> Answer<'a, ExtendResult> {
        Box::pin(LockBackend::extend(self, request))
    }

    fn lookup_raw<'a>(
        &'a self,
        request: LookupRequest<'a>,
    ) -> Answer<'a, Option<LockInfoDebug<F>>> {
        Box::pin(LockBackend::lookup_raw(self, request))
    }

    fn is_locked<'a>(&'a self, request: IsLockedRequest<'a>) -> Answer<'a, bool> {
        Box::pin(LockBackend::is_locked(self, request))
    }

    fn watch<'a>(&'a self, request: WatchRequest<'a>) -> Answer<'a, Option<Watch>> {
        Box::pin(LockBackend::watch(self, request))
    }

    fn list<'a>(&'a self, request: ListRequest<'a>) -> Answer<'a, Option<ListPage<F>>> {
        Box::pin(LockBackend::list(self, request))
    }

    fn preflight(&self, request: PreflightRequest) -> Answer<'_, Vec<Finding>> {
        Box::pin(LockBackend::preflight(self, request))
    }

    fn purge_expired(&self, request: PurgeRequest) -> Answer<'_, u64> {
        Box::pin(LockBackend::purge_expired(self, request))
    }

    fn close(&self, request: CloseRequest) -> Answer<'_, ()> {
        Box::pin(LockBackend::close(self, request))
    }
}

#[deny(clippy::missing_trait_methods)]
impl<F: FenceToken> LockBackend for ErasedBackend<F> {
    type Fence = F;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn attach(&self, reporter: Reporter) {
        self.0.attach(reporter);
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult<F>, LockError> {
        self.0.acquire(request).await
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        self.0.release(request).await
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        self.0.extend(request).await
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug<F>>, LockError> {
        self.0.lookup_raw(request).await
    }

    async fn is_locked(&self, request: IsLockedRequest<'_>) -> Result<bool, LockError> {
        self.0.is_locked(request).await
    }

    async fn watch(&self, request: WatchRequest<'_>) -> Result<Option<Watch>, LockError> {
        self.0.watch(request).await
    }

    async fn list(&self, request: ListRequest<'_>) -> Result<Option<ListPage<F>>, LockError> {
        self.0.list(request).await
    }

    async fn preflight(&self, request: PreflightRequest) -> Result<Vec<Finding>, LockError> {
        self.0.preflight(request).await
    }

    async fn purge_expired(&self, request: PurgeRequest) -> Result<u64, LockError> {
        self.0.purge_expired(request).await
    }

    async fn close(&self, request: CloseRequest) -> Result<(), LockError> {
        self.0.close(request).await
    }
}

impl<F: FenceToken> fmt::Debug for ErasedBackend<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
