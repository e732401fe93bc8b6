//! The object-safe twin of [`LockBackend`]: one box per call.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::backend::{
    AcquireRequest, AcquireResult, Capabilities, CloseRequest, ExtendRequest, FenceToken,
    IsLockedRequest, ListPage, ListRequest, LockBackend, LookupRequest, PreflightRequest,
    PurgeRequest, ReleaseRequest, Reporter, Watch, WatchRequest,
};
use crate::{ExtendResult, Finding, LockError, LockInfoDebug, ReleaseResult};

pub(crate) type BoxedResult<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, LockError>> + Send + 'a>>;

pub(crate) trait ErasedBackend<F: FenceToken>: fmt::Debug + Send + Sync {
    fn capabilities(&self) -> Capabilities;
    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> BoxedResult<'a, AcquireResult<F>>;
    fn release<'a>(&'a self, request: ReleaseRequest<'a>) -> BoxedResult<'a, ReleaseResult>;
    fn extend<'a>(&'a self, request: ExtendRequest<'a>) -> BoxedResult<'a, ExtendResult>;
    fn lookup_raw<'a>(
        &'a self,
        request: LookupRequest<'a>,
    ) -> BoxedResult<'a, Option<LockInfoDebug<F>>>;
    fn is_locked<'a>(&'a self, request: IsLockedRequest<'a>) -> BoxedResult<'a, bool>;
    fn watch<'a>(&'a self, request: WatchRequest<'a>) -> BoxedResult<'a, Option<Watch>>;
    fn list<'a>(&'a self, request: ListRequest<'a>) -> BoxedResult<'a, Option<ListPage<F>>>;
    fn attach(&self, reporter: Reporter);
    fn preflight(&self, request: PreflightRequest) -> BoxedResult<'_, Vec<Finding>>;
    fn purge_expired(&self, request: PurgeRequest) -> BoxedResult<'_, u64>;
    fn close(&self, request: CloseRequest) -> BoxedResult<'_, ()>;
}

impl<B: LockBackend> ErasedBackend<B::Fence> for B {
    fn capabilities(&self) -> Capabilities {
        LockBackend::capabilities(self)
    }

    fn acquire<'a>(
        &'a self,
        request: AcquireRequest<'a>,
    ) -> BoxedResult<'a, AcquireResult<B::Fence>> {
        Box::pin(LockBackend::acquire(self, request))
    }

    fn release<'a>(&'a self, request: ReleaseRequest<'a>) -> BoxedResult<'a, ReleaseResult> {
        Box::pin(LockBackend::release(self, request))
    }

    fn extend<'a>(&'a self, request: ExtendRequest<'a>) -> BoxedResult<'a, ExtendResult> {
        Box::pin(LockBackend::extend(self, request))
    }

    fn lookup_raw<'a>(
        &'a self,
        request: LookupRequest<'a>,
    ) -> BoxedResult<'a, Option<LockInfoDebug<B::Fence>>> {
        Box::pin(LockBackend::lookup_raw(self, request))
    }

    fn is_locked<'a>(&'a self, request: IsLockedRequest<'a>) -> BoxedResult<'a, bool> {
        Box::pin(LockBackend::is_locked(self, request))
    }

    fn watch<'a>(&'a self, request: WatchRequest<'a>) -> BoxedResult<'a, Option<Watch>> {
        Box::pin(LockBackend::watch(self, request))
    }

    fn list<'a>(&'a self, request: ListRequest<'a>) -> BoxedResult<'a, Option<ListPage<B::Fence>>> {
        Box::pin(LockBackend::list(self, request))
    }

    fn attach(&self, reporter: Reporter) {
        LockBackend::attach(self, reporter);
    }

    fn preflight(&self, request: PreflightRequest) -> BoxedResult<'_, Vec<Finding>> {
        Box::pin(LockBackend::preflight(self, request))
    }

    fn purge_expired(&self, request: PurgeRequest) -> BoxedResult<'_, u64> {
        Box::pin(LockBackend::purge_expired(self, request))
    }

    fn close(&self, request: CloseRequest) -> BoxedResult<'_, ()> {
        Box::pin(LockBackend::close(self, request))
    }
}
