//! Faults of acquire.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use syncguard_core::{AcquireResult, LockBackend as _, LockError, LockId, LockKey, Ttl};

use crate::broken::{Fault, Store};

/// Takes a held key from its holder.
#[derive(Debug, Clone, Default)]
pub(crate) struct Steals;

impl Fault for Steals {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        if let Some(holder) = store.holder(key).await {
            let _ = store.memory.release(&holder.lock_id).await?;
        }
        store.memory.acquire(key, id, ttl).await
    }
}

/// Looks first and takes then.
#[derive(Debug, Clone, Default)]
pub(crate) struct NotAtomic;

impl Fault for NotAtomic {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        if store.memory.is_locked(key).await? {
            return store.memory.acquire(key, id, ttl).await;
        }
        tokio::task::yield_now().await;
        Steals.acquire(store, key, id, ttl).await
    }
}

/// Tries again after a while before it says `Locked`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waits;

impl Fault for Waits {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let answer = store.memory.acquire(key, id, ttl).await?;
        if !answer.is_locked() {
            return Ok(answer);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        store.memory.acquire(key, id, ttl).await
    }
}

/// Gives the holder the contender's TTL.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContentionMovesTtl;

impl Fault for ContentionMovesTtl {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let answer = store.memory.acquire(key, id, ttl).await?;
        if let Some(holder) = store.holder(key).await.filter(|_| answer.is_locked()) {
            let _ = store.memory.extend(&holder.lock_id, ttl).await?;
        }
        Ok(answer)
    }
}

/// Does not know its own id again.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayIsRefused;

impl Fault for ReplayIsRefused {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        if store.holder(key).await.is_some() {
            return Ok(AcquireResult::Locked);
        }
        store.memory.acquire(key, id, ttl).await
    }
}

/// Takes a replay for a renewal, but answers with the old grant.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayExtends;

impl Fault for ReplayExtends {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let replayed = store
            .holder(key)
            .await
            .is_some_and(|held| held.lock_id == *id);
        let answer = store.memory.acquire(key, id, ttl).await?;
        if replayed {
            let _ = store.memory.extend(id, ttl).await?;
        }
        Ok(answer)
    }
}

/// Counts in seconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct TtlInSeconds;

impl Fault for TtlInSeconds {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let seconds = ttl.as_duration().as_secs().max(1);
        let ttl = Ttl::new(Duration::from_secs(seconds))?;
        store.memory.acquire(key, id, ttl).await
    }
}

/// Answers with an expiry one second later than the store's.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpiryIsLate;

impl Fault for ExpiryIsLate {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let mut answer = store.memory.acquire(key, id, ttl).await?;
        if let AcquireResult::Acquired(grant) = &mut answer {
            grant.expires_at_ms += 1_000;
        }
        Ok(answer)
    }
}

/// Queues the call where dropping its future does not reach it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ArrivesLate;

impl Fault for ArrivesLate {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let (store, key, id) = (store.clone(), key.clone(), *id);
        let queued = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            store.memory.acquire(&key, &id, ttl).await
        });
        queued.await.unwrap()
    }
}

/// Allows the tolerance twice: once in the expiry that it keeps, once in the comparison.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToleranceDoubled;

impl Fault for ToleranceDoubled {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now_ms = i64::try_from(now.as_millis()).unwrap();
        let free = !store.memory.is_locked(key).await?;
        if free
            && store
                .last_expiry(key)
                .is_some_and(|expiry| expiry > now_ms - 2_000)
        {
            return Ok(AcquireResult::Locked);
        }
        store.memory.acquire(key, id, ttl).await
    }

    async fn release(
        &self,
        store: &Store,
        id: &LockId,
    ) -> Result<syncguard_core::ReleaseResult, LockError> {
        store.forget(id);
        store.memory.release(id).await
    }
}

/// Tells the log what it locks.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogsTheKey;

impl Fault for LogsTheKey {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        tracing::debug!(key = key.as_str(), "acquiring");
        store.memory.acquire(key, id, ttl).await
    }
}
