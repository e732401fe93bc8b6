//! Faults of extend.

use std::time::Duration;

use syncguard_core::{
    AcquireResult, ExtendResult, LockBackend as _, LockError, LockId, Lookup, Ttl,
};

use crate::broken::{Fault, Store};

/// Adds to the remaining time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Adds;

impl Fault for Adds {
    async fn extend(
        &self,
        store: &Store,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<ExtendResult, LockError> {
        let held = store.memory.lookup_raw(Lookup::Id(id)).await?;
        let answer = store.memory.extend(id, ttl).await?;
        let (Some(held), Some(expires_at_ms)) = (held, answer.expires_at_ms()) else {
            return Ok(answer);
        };
        let remaining = held.expires_at_ms - (expires_at_ms - ttl.as_millis());
        let sum = u64::try_from(remaining + ttl.as_millis()).unwrap();
        let sum = Ttl::new(Duration::from_millis(sum)).unwrap_or(Ttl::MAX);
        store.memory.extend(id, sum).await
    }
}

/// Answers with what the client reckons.
#[derive(Debug, Clone, Default)]
pub(crate) struct Estimates;

impl Fault for Estimates {
    async fn extend(
        &self,
        store: &Store,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<ExtendResult, LockError> {
        Ok(match store.memory.extend(id, ttl).await? {
            ExtendResult::Extended { expires_at_ms } => ExtendResult::Extended {
                expires_at_ms: expires_at_ms + 2,
            },
            not_held => not_held,
        })
    }
}

/// Writes the lock whether or not it is there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Resurrects;

impl Fault for Resurrects {
    async fn extend(
        &self,
        store: &Store,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<ExtendResult, LockError> {
        let answer = store.memory.extend(id, ttl).await?;
        let (None, Some(key)) = (answer.expires_at_ms(), store.key_of(id)) else {
            return Ok(answer);
        };
        match store.memory.acquire(&key, id, ttl).await? {
            AcquireResult::Acquired(grant) => Ok(ExtendResult::Extended {
                expires_at_ms: grant.expires_at_ms,
            }),
            AcquireResult::Locked => Ok(answer),
        }
    }
}

/// Trusts its index, and extends whoever holds the key now.
#[derive(Debug, Clone, Default)]
pub(crate) struct IgnoresOwner;

impl Fault for IgnoresOwner {
    async fn extend(
        &self,
        store: &Store,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<ExtendResult, LockError> {
        let Some(key) = store.key_of(id) else {
            return store.memory.extend(id, ttl).await;
        };
        match store.holder(&key).await {
            Some(holder) => store.memory.extend(&holder.lock_id, ttl).await,
            None => store.memory.extend(id, ttl).await,
        }
    }
}
