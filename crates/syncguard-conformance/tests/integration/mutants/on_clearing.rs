//! Faults of calls that remove expired locks in more than one step.

use syncguard_core::backend::{CLEANUP_GUARD_MS, ListPage, Lookup};
use syncguard_core::{ExtendResult, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl};
use tokio::task::yield_now;

use super::broken::Fault;
use super::store::{Answer, Store, Wanted, now_ms};

/// Removes, in the next step, whatever lock has the key of a lock that it has found expired.
async fn clear(store: &Store, expired: Option<LockInfoDebug>) -> Answer<()> {
    let Some(expired) = expired else {
        return Ok(());
    };
    yield_now().await;
    if let Some(holder) = store.holder(&expired.key).await {
        let _ = store.memory.release(&holder.lock_id).await?;
    }
    Ok(())
}

/// The lock of this id, if it has expired and nobody holds its key.
async fn expired_of(store: &Store, id: &LockId) -> Option<LockInfoDebug> {
    let key = store.key_of(id)?;
    let expired = store.expired_on(&key).await;
    expired.filter(|lock| lock.lock_id == *id)
}

/// `is_locked` removes the expired lock that it finds, by key, in a step of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsLockedClears;

impl Fault for IsLockedClears {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let locked = store.memory.is_locked(key).await?;
        clear(store, store.expired_on(key).await).await?;
        Ok(locked)
    }
}

/// The same in lookups by key, or in those by id.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookupClears<const BY_KEY: bool>;

impl<const BY_KEY: bool> Fault for LookupClears<BY_KEY> {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let found = store.memory.lookup_raw(by).await?;
        let expired = match by {
            Lookup::Key(key) if BY_KEY => store.expired_on(key).await,
            Lookup::Id(id) if !BY_KEY => expired_of(store, id).await,
            _ => None,
        };
        clear(store, expired).await?;
        Ok(found)
    }
}

/// The same in listings.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListingClears;

impl Fault for ListingClears {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let page = store.memory.list(wanted).await?;
        for lock in store.unreleased() {
            if wanted.prefix.begins(&lock.key) {
                clear(store, store.expired_on(&lock.key).await).await?;
            }
        }
        Ok(page)
    }
}

/// The same in extend.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendClears;

impl Fault for ExtendClears {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let answer = store.memory.extend(id, ttl).await?;
        clear(store, expired_of(store, id).await).await?;
        Ok(answer)
    }
}

/// The same in release.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseClears;

impl Fault for ReleaseClears {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let answer = store.memory.release(id).await?;
        clear(store, expired_of(store, id).await).await?;
        Ok(answer)
    }
}

/// The locks that have expired and that a purge finds now.
pub(crate) async fn purgeable(store: &Store) -> Vec<LockInfoDebug> {
    let mut purgeable = Vec::new();
    for lock in store.unreleased() {
        let is_old = lock.expires_at_ms + CLEANUP_GUARD_MS < now_ms();
        if is_old && store.holder(&lock.key).await.is_none() {
            purgeable.push(lock);
        }
    }
    purgeable
}

/// Finds expired locks, and in the next step deletes whatever locks have their keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgeDeletesByKey;

impl Fault for PurgeDeletesByKey {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        let found = purgeable(store).await;
        yield_now().await;
        for lock in found {
            if let Some(holder) = store.holder(&lock.key).await {
                let _ = store.memory.release(&holder.lock_id).await?;
            }
        }
        store.memory.purge_expired(limit).await
    }
}

/// Removes an expired lock, and in the next step writes the counter of its key back as it was.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClearingRestoresTheCounter;

impl Fault for ClearingRestoresTheCounter {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let locked = store.memory.is_locked(key).await?;
        if let Some(expired) = store.expired_on(key).await {
            yield_now().await;
            let counter = expired.fence.get();
            store.memory.set_fence_counter(key, counter);
        }
        Ok(locked)
    }
}
