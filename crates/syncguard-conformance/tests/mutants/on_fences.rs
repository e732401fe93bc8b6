//! Faults of the fence counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use syncguard_core::{AcquireResult, LockBackend as _, LockError, LockId, LockKey, Ttl};

use crate::broken::{Fault, Store};

/// Draws a fence before it looks whether the key is free.
#[derive(Debug, Clone, Default)]
pub(crate) struct BurntByContention(Arc<AtomicU64>);

impl Fault for BurntByContention {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let answer = store.memory.acquire(key, id, ttl).await?;
        if let Some(holder) = store.holder(key).await.filter(|_| answer.is_locked()) {
            let burnt = self.0.fetch_add(1, Ordering::SeqCst) + 1;
            store
                .memory
                .set_fence_counter(key, holder.fence.get() + burnt);
        }
        Ok(answer)
    }
}

/// Draws the fences of all keys from one counter.
#[derive(Debug, Clone, Default)]
pub(crate) struct PerStore(Arc<AtomicU64>);

impl Fault for PerStore {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        if store.holder(key).await.is_none() {
            let counter = self.0.fetch_add(1, Ordering::SeqCst);
            store.memory.set_fence_counter(key, counter);
        }
        store.memory.acquire(key, id, ttl).await
    }
}
