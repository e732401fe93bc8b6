//! Faults of release.

use syncguard_core::{LockBackend as _, LockError, LockId, ReleaseResult};

use crate::broken::{Fault, Store};

/// Calls every release a success.
#[derive(Debug, Clone, Default)]
pub(crate) struct Twice;

impl Fault for Twice {
    async fn release(&self, store: &Store, id: &LockId) -> Result<ReleaseResult, LockError> {
        let _ = store.memory.release(id).await?;
        Ok(ReleaseResult::Released)
    }
}

/// Trusts its index, and frees whatever stands at the key that the id once held.
#[derive(Debug, Clone, Default)]
pub(crate) struct IgnoresOwner;

impl Fault for IgnoresOwner {
    async fn release(&self, store: &Store, id: &LockId) -> Result<ReleaseResult, LockError> {
        let Some(key) = store.key_of(id) else {
            return store.memory.release(id).await;
        };
        match store.holder(&key).await {
            Some(holder) => store.memory.release(&holder.lock_id).await,
            None => store.memory.release(id).await,
        }
    }
}

/// Removes the counter with the lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResetsFence;

impl Fault for ResetsFence {
    async fn release(&self, store: &Store, id: &LockId) -> Result<ReleaseResult, LockError> {
        let answer = store.memory.release(id).await?;
        if let Some(key) = store.key_of(id).filter(|_| answer.is_released()) {
            store.memory.set_fence_counter(&key, 0);
        }
        Ok(answer)
    }
}
