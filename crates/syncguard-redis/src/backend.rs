//! [`RedisBackend`]: the contract, in scripts.

use std::fmt;
use std::sync::Arc;

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, CloseRequest, ExtendRequest, IsLockedRequest,
    ListPage, ListRequest, LockBackend, Lookup, LookupRequest, PreflightRequest, ReleaseRequest,
    TimeAuthority, Watch, WatchRequest,
};
use syncguard_core::{ExtendResult, Fence, Finding, LockError, LockInfoDebug, ReleaseResult};

use crate::cleanup::Cleanup;
use crate::list::list;
use crate::names::Names;
use crate::preflight;
use crate::record;
use crate::wake_ups::WakeUps;
use crate::wire::script::{self, ACQUIRE, EXTEND, READ_ID, READ_KEY, RELEASE};
use crate::wire::{Clients, ScriptCall};

/// Locks in Redis. Clones share their connections.
///
/// Pass it to [`Locks::new`](syncguard_core::Locks::new).
#[derive(Clone)]
pub struct RedisBackend {
    clients: Clients,
    names: Arc<Names>,
    cleanup: Option<Cleanup>,
    wake_ups: WakeUps,
}

impl RedisBackend {
    pub(crate) fn from_parts(clients: Clients, names: Names, cleanup_in_is_locked: bool) -> Self {
        Self {
            clients,
            names: Arc::new(names),
            cleanup: cleanup_in_is_locked.then(Cleanup::new),
            wake_ups: WakeUps::default(),
        }
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("prefix", &self.names.prefix())
            .field("clients", &self.clients.len())
            .field("cleanup_in_is_locked", &self.cleanup.is_some())
            .finish()
    }
}

impl LockBackend for RedisBackend {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new("redis", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        let AcquireRequest { key, id, ttl, .. } = request;
        let lock = self.names.lock(key)?;
        let fence = self.names.fence(&lock)?;
        let keys = [lock, self.names.index(id)?, fence];
        let (head, tail) = (record::head(id), record::tail(key));
        let ttl_and_tail = format!("{}{tail}", ttl.as_millis());
        let arguments = [head.into(), ttl_and_tail.into()];
        let call = ScriptCall::new(&ACQUIRE, keys, arguments, request.deadline);
        let reply = self.clients.run(id.as_str(), call).await?;
        script::acquired(reply, id)
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        let id = request.id;
        let (index, head) = (self.names.index(id)?, record::head(id));
        let call = ScriptCall::new(&RELEASE, [index], [head.into()], request.deadline);
        let reply = self.clients.run(id.as_str(), call).await?;
        script::released(&reply, self.clients.are_clustered())
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        let ExtendRequest { id, ttl, .. } = request;
        let (index, head) = (self.names.index(id)?, record::head(id));
        let arguments = [head.into(), ttl.as_millis().to_string().into()];
        let call = ScriptCall::new(&EXTEND, [index], arguments, request.deadline);
        let reply = self.clients.run(id.as_str(), call).await?;
        script::extended(&reply, self.clients.are_clustered())
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        let (affinity, script, name) = match request.by {
            Lookup::Key(key) => (key.as_str(), &*READ_KEY, self.names.lock(key)?),
            Lookup::Id(id) => (id.as_str(), &*READ_ID, self.names.index(id)?),
        };
        let call = ScriptCall::new(script, [name], [], request.deadline);
        let reply = self.clients.run(affinity, call).await?;
        let Some(reading) = script::read(&reply)? else {
            return Ok(None);
        };
        let lock = reading.lock()?;
        // An index can outlive its lock: only the stored lock says who owns it.
        let matches = match request.by {
            Lookup::Key(_) => true,
            Lookup::Id(id) => lock.lock_id == *id,
        };
        Ok(Some(lock).filter(|lock| matches && reading.is_live(lock)))
    }

    async fn is_locked(&self, request: IsLockedRequest<'_>) -> Result<bool, LockError> {
        let IsLockedRequest { key, deadline, .. } = request;
        let name = self.names.lock(key)?;
        let call = ScriptCall::new(&READ_KEY, [name.clone()], [], deadline);
        let reply = self.clients.run(key.as_str(), call).await?;
        let Some(reading) = script::read(&reply)? else {
            return Ok(false);
        };
        let lock = reading.lock()?;
        let live = reading.is_live(&lock);
        if let Some(cleanup) = self.cleanup.as_ref().filter(|_| !live) {
            cleanup.consider(&self.clients, &self.names, name, reading, &lock);
        }
        Ok(live)
    }

    /// Uses client tracking, on a connection that the first wait opens.
    async fn watch(&self, request: WatchRequest<'_>) -> Result<Option<Watch>, LockError> {
        let name = self.names.lock(request.key)?;
        self.wake_ups
            .watch(&self.clients, name, request.deadline)
            .await
    }

    /// Uses `SCAN`: a page reads up to 500 entries of the database. Pages may repeat a lock. A key that is
    /// stored under a hash is listed only without a prefix.
    async fn list(&self, request: ListRequest<'_>) -> Result<Option<ListPage>, LockError> {
        list(&self.clients, &self.names, request).await.map(Some)
    }

    /// Sends `INFO` and `CONFIG GET`, if the user has permission, and a script that checks permissions and
    /// writes nothing. On a cluster, the node that has the locks gets them. Then tries wake-ups and `SCAN`.
    async fn preflight(&self, request: PreflightRequest) -> Result<Vec<Finding>, LockError> {
        preflight::findings(&self.clients, &self.names, &self.wake_ups, request.deadline).await
    }

    /// Refuses further calls, waits for those in flight, and closes the connection that
    /// [`connect`](Self::connect) opened. A client or pool that the application passed in stays open.
    async fn close(&self, request: CloseRequest) -> Result<(), LockError> {
        let closed = self.clients.close(request.deadline).await;
        self.wake_ups.close().await;
        closed
    }
}
