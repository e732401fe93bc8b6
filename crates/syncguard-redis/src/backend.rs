//! [`RedisStore`]: the contract, in scripts.

use std::fmt;
use std::sync::Arc;

use syncguard_core::{
    AcquireResult, Capabilities, ExtendResult, Fence, Grant, LockBackend, LockError, LockId,
    LockInfoDebug, LockKey, Lookup, ReleaseResult, TimeAuthority, Ttl,
};

use crate::cleanup::Cleanup;
use crate::client::Clients;
use crate::document;
use crate::keys::Names;
use crate::script::{self, ACQUIRE, Acquired, EXTEND, READ_ID, READ_KEY, RELEASE};

/// Locks in Redis. Clones share one client.
///
/// Wrap it in a [`RedisBackend`](crate::RedisBackend) to get deadlines, and locks given back
/// whatever happens to their callers.
#[derive(Clone)]
pub struct RedisStore {
    clients: Clients,
    names: Arc<Names>,
    cleanup: Option<Cleanup>,
}

impl RedisStore {
    pub(crate) fn from_parts(clients: Clients, names: Names, cleanup_in_is_locked: bool) -> Self {
        Self {
            clients,
            names: Arc::new(names),
            cleanup: cleanup_in_is_locked.then(Cleanup::default),
        }
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.names.prefix())
            .field("clients", &self.clients.len())
            .field("cleanup_in_is_locked", &self.cleanup.is_some())
            .finish()
    }
}

impl LockBackend for RedisStore {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new::<Fence>("redis", TimeAuthority::Server)
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let lock = self.names.lock(key)?;
        let fence = self.names.fence(&lock)?;
        let keys = vec![lock, self.names.index(id)?, fence];
        let (head, tail) = (document::head(id), document::tail(key));
        let arguments = [format!("{head}{}{tail}", ttl.as_millis()).into()];
        let answer = self
            .clients
            .run(id.as_str(), &ACQUIRE, keys, arguments)
            .await?;
        Ok(match script::acquired(answer)? {
            Acquired::Locked => AcquireResult::Locked,
            Acquired::Granted {
                fence,
                expires_at_ms,
            } => AcquireResult::Acquired(Grant {
                lock_id: *id,
                expires_at_ms,
                fence,
            }),
        })
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        let keys = vec![self.names.index(id)?];
        let arguments = [document::head(id).into()];
        let answer = self
            .clients
            .run(id.as_str(), &RELEASE, keys, arguments)
            .await?;
        Ok(
            match script::released(&answer, self.clients.are_clustered())? {
                Ok(()) => ReleaseResult::Released,
                Err(reason) => ReleaseResult::NotHeld {
                    reason: Some(reason),
                },
            },
        )
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        let keys = vec![self.names.index(id)?];
        let arguments = [format!("{}{}", document::head(id), ttl.as_millis()).into()];
        let answer = self
            .clients
            .run(id.as_str(), &EXTEND, keys, arguments)
            .await?;
        Ok(
            match script::extended(&answer, self.clients.are_clustered())? {
                Ok(expires_at_ms) => ExtendResult::Extended { expires_at_ms },
                Err(reason) => ExtendResult::NotHeld {
                    reason: Some(reason),
                },
            },
        )
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        let name = self.names.lock(key)?;
        let answer = self
            .clients
            .run(key.as_str(), &READ_KEY, vec![name.clone()], [])
            .await?;
        let Some(reading) = script::read(&answer)? else {
            return Ok(false);
        };
        let lock = reading.lock()?;
        let live = reading.is_live(&lock);
        if let Some(cleanup) = self.cleanup.as_ref().filter(|_| !live) {
            cleanup.consider(&self.clients, &self.names, name, reading, &lock);
        }
        Ok(live)
    }

    async fn lookup_raw(&self, by: Lookup<'_>) -> Result<Option<LockInfoDebug>, LockError> {
        let answer = match by {
            Lookup::Key(key) => {
                let keys = vec![self.names.lock(key)?];
                self.clients.run(key.as_str(), &READ_KEY, keys, []).await?
            }
            Lookup::Id(id) => {
                let keys = vec![self.names.index(id)?];
                self.clients.run(id.as_str(), &READ_ID, keys, []).await?
            }
        };
        let Some(reading) = script::read(&answer)? else {
            return Ok(None);
        };
        let lock = reading.lock()?;
        // An index can outlive its lock: the owner is what the lock says.
        let asked_for = match by {
            Lookup::Key(_) => true,
            Lookup::Id(id) => lock.lock_id == *id,
        };
        Ok(Some(lock).filter(|lock| asked_for && reading.is_live(lock)))
    }
}
