//! Faults of the reads.

use syncguard_core::{LockBackend as _, LockError, LockInfoDebug, LockKey, Lookup, Ttl};

use crate::broken::{Fault, Store};

/// Rather safe than right.
#[derive(Debug, Clone, Default)]
pub(crate) struct AlwaysLocked;

impl Fault for AlwaysLocked {
    async fn is_locked(&self, _: &Store, _: &LockKey) -> Result<bool, LockError> {
        Ok(true)
    }
}

/// Extends what it looks at.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeepsAlive;

impl Fault for KeepsAlive {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Result<bool, LockError> {
        let Some(holder) = store.holder(key).await else {
            return Ok(false);
        };
        let _ = store.memory.extend(&holder.lock_id, Ttl::MAX).await?;
        Ok(true)
    }
}

/// Shows whatever stands at the key that the id once held.
#[derive(Debug, Clone, Default)]
pub(crate) struct IgnoresOwner;

impl Fault for IgnoresOwner {
    async fn lookup_raw(
        &self,
        store: &Store,
        by: Lookup<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        let key = match by {
            Lookup::Key(key) => Some(key.clone()),
            Lookup::Id(id) => store.key_of(id),
        };
        match key {
            Some(key) => Ok(store.holder(&key).await),
            None => Ok(None),
        }
    }
}
