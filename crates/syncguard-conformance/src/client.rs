//! [`Client`]: one client of the store, by both of its sides.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, CloseRequest, ExtendRequest, IsLockedRequest,
    ListPage, ListPosition, ListRequest, LockBackend, Lookup, LookupRequest, PurgeRequest,
    ReleaseRequest, Watch, WatchRequest,
};
use syncguard_core::list::KeyPrefix;
use syncguard_core::{
    ErrorCode, ExtendResult, LockError, LockId, LockInfoDebug, LockKey, Locks, ReleaseResult, Ttl,
};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout_at};

/// Deadline of one call of the bare backend. Far above what a call takes on a slow machine.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// One client of the store: the bare backend, called with ids that the case chooses and with the suite's own
/// deadline; and [`Locks`] over the same backend, for cases about policy. Clones are one client.
pub struct Client<B: LockBackend> {
    backend: Arc<B>,
    locks: Locks<B::Fence>,
}

impl<B: LockBackend> Client<B> {
    pub(crate) fn new(backend: Arc<B>, locks: Locks<B::Fence>) -> Self {
        Self { backend, locks }
    }

    /// Locks over this client, with the default deadlines.
    #[must_use]
    pub fn locks(&self) -> &Locks<B::Fence> {
        &self.locks
    }

    /// What the backend is and can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    /// Calls [`LockBackend::acquire`].
    ///
    /// # Errors
    /// The backend's, or `NetworkTimeout` if it does not answer.
    pub async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult<B::Fence>, LockError> {
        let acquire = |deadline| {
            self.backend
                .acquire(AcquireRequest::new(key, id, ttl, deadline))
        };
        bounded(acquire).await
    }

    /// Calls [`LockBackend::release`].
    ///
    /// # Errors
    /// The backend's, or `NetworkTimeout` if it does not answer.
    pub async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        bounded(|deadline| self.backend.release(ReleaseRequest::new(id, deadline))).await
    }

    /// Calls [`LockBackend::extend`].
    ///
    /// # Errors
    /// The backend's, or `NetworkTimeout` if it does not answer.
    pub async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        bounded(|deadline| self.backend.extend(ExtendRequest::new(id, ttl, deadline))).await
    }

    /// Calls [`LockBackend::is_locked`].
    ///
    /// # Errors
    /// The backend's, or `NetworkTimeout` if it does not answer.
    pub async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        bounded(|deadline| self.backend.is_locked(IsLockedRequest::new(key, deadline))).await
    }

    /// Calls [`LockBackend::watch`].
    ///
    /// # Errors
    /// The backend's, or `NetworkTimeout` if it does not answer.
    pub async fn watch(&self, key: &LockKey) -> Result<Option<Watch>, LockError> {
        bounded(|deadline| self.backend.watch(WatchRequest::new(key, deadline))).await
    }

    /// Calls [`LockBackend::lookup_raw`].
    ///
    /// # Errors
    /// The backend's, or `NetworkTimeout` if it does not answer.
    pub async fn lookup_raw(
        &self,
        by: Lookup<'_>,
    ) -> Result<Option<LockInfoDebug<B::Fence>>, LockError> {
        bounded(|deadline| self.backend.lookup_raw(LookupRequest::new(by, deadline))).await
    }

    /// Calls [`LockBackend::list`].
    ///
    /// # Errors
    /// The backend's, or `NetworkTimeout` if it does not answer.
    pub async fn list(
        &self,
        prefix: &KeyPrefix,
        after: Option<&ListPosition>,
        limit: u32,
    ) -> Result<Option<ListPage<B::Fence>>, LockError> {
        let list = |deadline| {
            self.backend
                .list(ListRequest::new(prefix, after, limit, deadline))
        };
        bounded(list).await
    }

    /// Calls [`LockBackend::purge_expired`].
    ///
    /// # Errors
    /// The backend's, or `NetworkTimeout` if it does not answer.
    pub async fn purge_expired(&self, limit: u32) -> Result<u64, LockError> {
        let purge = |deadline| {
            self.backend
                .purge_expired(PurgeRequest::new(limit, deadline))
        };
        bounded(purge).await
    }

    /// Calls [`LockBackend::close`].
    ///
    /// # Errors
    /// The backend's, or `NetworkTimeout` if it does not answer.
    pub async fn close(&self) -> Result<(), LockError> {
        bounded(|deadline| self.backend.close(CloseRequest::new(deadline))).await
    }

    /// The backend, for calls with a deadline of the case's own.
    pub(crate) fn backend(&self) -> &B {
        &self.backend
    }
}

async fn bounded<T, O>(call: impl FnOnce(Instant) -> O) -> Result<T, LockError>
where
    O: Future<Output = Result<T, LockError>>,
{
    let deadline = Instant::now() + CALL_TIMEOUT;
    let answer = timeout_at(deadline, call(deadline)).await;
    // A store that answers at once never yields: other tasks would not run, and a case would miss its timeout.
    consume_budget().await;
    answer.unwrap_or_else(|_| {
        let message = format!("no answer of the backend within {CALL_TIMEOUT:?}");
        let error = LockError::new(ErrorCode::NetworkTimeout, message);
        Err(error.with_outcome_unknown())
    })
}

impl<B: LockBackend> Clone for Client<B> {
    fn clone(&self) -> Self {
        Self {
            backend: Arc::clone(&self.backend),
            locks: self.locks.clone(),
        }
    }
}

impl<B: LockBackend> fmt::Debug for Client<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.backend).finish()
    }
}
