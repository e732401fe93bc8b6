//! [`AnyBackend`]: a backend chosen at run time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::{
    AcquireResult, Capabilities, ExtendResult, Fence, FenceToken, LockBackend, LockError, LockId,
    LockInfo, LockInfoDebug, LockKey, Lookup, ManagedBackend, Observer, Policy, ReleaseResult, Ttl,
};

/// Any managed backend behind one type, so that an application can choose its store at run time.
///
/// It costs one allocation per call.
///
/// ```
/// # use syncguard_core::{AnyBackend, LockOptions, lock};
/// # use syncguard_memory::MemoryBackend;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
/// let backend = AnyBackend::new(MemoryBackend::default());
/// lock(&backend, "payment:42", LockOptions::new(), async |lease| lease.fence()).await?;
/// # Ok(()) }
/// ```
pub struct AnyBackend<F: FenceToken = Fence>(Arc<dyn ErasedBackend<F>>);

impl<F: FenceToken> AnyBackend<F> {
    /// Erases a backend's type.
    pub fn new(backend: impl ManagedBackend<Fence = F>) -> Self {
        Self(Arc::new(backend))
    }
}

impl<F: FenceToken> Clone for AnyBackend<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: FenceToken> fmt::Debug for AnyBackend<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyBackend").field(&self.0).finish()
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send + 'a>>;

/// The object-safe twin of [`ManagedBackend`].
trait ErasedBackend<F: FenceToken>: fmt::Debug + Send + Sync {
    fn capabilities(&self) -> Capabilities;
    fn clock_skew_ms(&self) -> Option<i64>;
    fn acquire<'a>(
        &'a self,
        key: &'a LockKey,
        id: &'a LockId,
        ttl: Ttl,
    ) -> Answer<'a, AcquireResult<F>>;
    fn release<'a>(&'a self, id: &'a LockId) -> Answer<'a, ReleaseResult>;
    fn extend<'a>(&'a self, id: &'a LockId, ttl: Ttl) -> Answer<'a, ExtendResult>;
    fn is_locked<'a>(&'a self, key: &'a LockKey) -> Answer<'a, bool>;
    fn lookup_raw<'a>(&'a self, by: Lookup<'a>) -> Answer<'a, Option<LockInfoDebug<F>>>;
    fn lookup<'a>(&'a self, by: Lookup<'a>) -> Answer<'a, Option<LockInfo<F>>>;
    fn policy(&self) -> &Policy;
    fn observed_by(&self, observer: Arc<dyn Observer>) -> AnyBackend<F>;
}

impl<B: ManagedBackend> ErasedBackend<B::Fence> for B {
    fn capabilities(&self) -> Capabilities {
        LockBackend::capabilities(self)
    }

    fn clock_skew_ms(&self) -> Option<i64> {
        LockBackend::clock_skew_ms(self)
    }

    fn acquire<'a>(
        &'a self,
        key: &'a LockKey,
        id: &'a LockId,
        ttl: Ttl,
    ) -> Answer<'a, AcquireResult<B::Fence>> {
        Box::pin(LockBackend::acquire(self, key, id, ttl))
    }

    fn release<'a>(&'a self, id: &'a LockId) -> Answer<'a, ReleaseResult> {
        Box::pin(LockBackend::release(self, id))
    }

    fn extend<'a>(&'a self, id: &'a LockId, ttl: Ttl) -> Answer<'a, ExtendResult> {
        Box::pin(LockBackend::extend(self, id, ttl))
    }

    fn is_locked<'a>(&'a self, key: &'a LockKey) -> Answer<'a, bool> {
        Box::pin(LockBackend::is_locked(self, key))
    }

    fn lookup_raw<'a>(&'a self, by: Lookup<'a>) -> Answer<'a, Option<LockInfoDebug<B::Fence>>> {
        Box::pin(LockBackend::lookup_raw(self, by))
    }

    fn lookup<'a>(&'a self, by: Lookup<'a>) -> Answer<'a, Option<LockInfo<B::Fence>>> {
        Box::pin(LockBackend::lookup(self, by))
    }

    fn policy(&self) -> &Policy {
        ManagedBackend::policy(self)
    }

    fn observed_by(&self, observer: Arc<dyn Observer>) -> AnyBackend<B::Fence> {
        AnyBackend::new(ManagedBackend::observed_by(self.clone(), observer))
    }
}

#[deny(clippy::missing_trait_methods)]
impl<F: FenceToken> LockBackend for AnyBackend<F> {
    type Fence = F;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn clock_skew_ms(&self) -> Option<i64> {
        self.0.clock_skew_ms()
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult<F>, LockError> {
        self.0.acquire(key, id, ttl).await
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        self.0.release(id).await
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        self.0.extend(id, ttl).await
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        self.0.is_locked(key).await
    }

    async fn lookup_raw(&self, by: Lookup<'_>) -> Result<Option<LockInfoDebug<F>>, LockError> {
        self.0.lookup_raw(by).await
    }

    async fn lookup(&self, by: Lookup<'_>) -> Result<Option<LockInfo<F>>, LockError> {
        self.0.lookup(by).await
    }
}

impl<F: FenceToken> ManagedBackend for AnyBackend<F> {
    fn policy(&self) -> &Policy {
        self.0.policy()
    }

    fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        self.0.observed_by(observer)
    }
}
