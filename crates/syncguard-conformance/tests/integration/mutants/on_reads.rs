//! Faults of the reads, and of the clean-up that they may start.

use std::sync::{Arc, Mutex};

use syncguard_core::backend::{AcquireResult, Lookup, TIME_TOLERANCE_MS};
use syncguard_core::{LockId, LockInfoDebug, LockKey, Ttl, hash_key};

use super::broken::Fault;
use super::store::{Answer, Ask, Store, now_ms};

/// Says that every key is held.
#[derive(Debug, Clone, Default)]
pub(crate) struct AlwaysLocked;

impl Fault for AlwaysLocked {
    async fn is_locked(&self, _: &Store, _: &LockKey) -> Answer<bool> {
        Ok(true)
    }
}

/// Says that every key is free.
#[derive(Debug, Clone, Default)]
pub(crate) struct NeverLocked;

impl Fault for NeverLocked {
    async fn is_locked(&self, _: &Store, _: &LockKey) -> Answer<bool> {
        Ok(false)
    }
}

/// Counts a key as held if another key, with which it begins, is held.
#[derive(Debug, Clone, Default)]
pub(crate) struct MatchesPrefixes;

impl Fault for MatchesPrefixes {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        for row in store.unreleased() {
            if key.as_str().starts_with(row.key.as_str())
                && store.memory.is_locked(&row.key).await?
            {
                return Ok(true);
            }
        }
        store.memory.is_locked(key).await
    }
}

/// Extends what it looks at.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeepsAlive;

impl Fault for KeepsAlive {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let Some(holder) = store.holder(key).await else {
            return Ok(false);
        };
        let _ = store.memory.extend(&holder.lock_id, Ttl::MAX).await?;
        Ok(true)
    }
}

/// Increments the fence counter at each read.
#[derive(Debug, Clone, Default)]
pub(crate) struct BurnsFence;

impl Fault for BurnsFence {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let found = store.memory.lookup_raw(by).await?;
        if let Some(info) = &found {
            let burnt = info.fence.get() + 1;
            store.memory.set_fence_counter(&info.key, burnt);
        }
        Ok(found)
    }
}

/// Shows the current lock on the key that the id once held.
#[derive(Debug, Clone, Default)]
pub(crate) struct IgnoresOwner;

impl Fault for IgnoresOwner {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
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

/// Shows the newest lock, whichever id is asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsTheNewest(Arc<Mutex<Option<LockId>>>);

impl Fault for ShowsTheNewest {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if !answer.is_locked() {
            *self.0.lock().unwrap() = Some(*ask.id);
        }
        Ok(answer)
    }

    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let newest = *self.0.lock().unwrap();
        match (by, newest) {
            (Lookup::Id(_), Some(id)) => Ok(store.held_by(&id).await),
            _ => store.memory.lookup_raw(by).await,
        }
    }
}

/// Shows the time of acquisition by the client's wall clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsLocalTime;

impl Fault for ShowsLocalTime {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let mut found = store.memory.lookup_raw(by).await?;
        if let Some(info) = &mut found {
            info.acquired_at_ms += 3_600_000;
        }
        Ok(found)
    }
}

/// Finds released locks by their id.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsTheReleased;

impl Fault for ShowsTheReleased {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        match (store.memory.lookup_raw(by).await?, by) {
            (None, Lookup::Id(id)) => Ok(store.row_of(id).map(|row| row.info)),
            (found, _) => Ok(found),
        }
    }
}

/// Finds expired locks by their key.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsTheExpired;

impl Fault for ShowsTheExpired {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        match (store.memory.lookup_raw(by).await?, by) {
            (None, Lookup::Key(key)) => Ok(store.unreleased_on(key)),
            (found, _) => Ok(found),
        }
    }
}

/// Hashes the name under which the store has the key.
#[derive(Debug, Clone, Default)]
pub(crate) struct HashesTheStorageKey;

impl Fault for HashesTheStorageKey {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let mut found = store.memory.lookup_raw(by).await?;
        if let Some(info) = &mut found {
            info.key_hash = hash_key(&format!("syncguard:{}", info.key.as_str()));
        }
        Ok(found)
    }
}

/// Deletes everything when it finds an expired lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct CleansLiveLocks;

impl Fault for CleansLiveLocks {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let locked = store.memory.is_locked(key).await?;
        if !locked && store.unreleased_on(key).is_some() {
            for row in store.unreleased() {
                let _ = store.memory.release(&row.lock_id).await?;
            }
        }
        Ok(locked)
    }
}

/// Deletes the counter with an expired lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct CleansFences;

impl Fault for CleansFences {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let locked = store.memory.is_locked(key).await?;
        if !locked && store.unreleased_on(key).is_some() {
            store.memory.set_fence_counter(key, 0);
        }
        Ok(locked)
    }
}

/// Whether a lock would be live had nobody extended it.
fn by_the_first_expiry(store: &Store, held: &LockInfoDebug) -> bool {
    let row = store.row_of(&held.lock_id);
    row.is_none_or(|row| row.first_expiry_ms > now_ms() - TIME_TOLERANCE_MS)
}

/// Goes by the expiry of the grant.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsLockedForgetsExtends;

impl Fault for IsLockedForgetsExtends {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let holder = store.holder(key).await;
        Ok(holder.is_some_and(|held| by_the_first_expiry(store, &held)))
    }
}

/// Goes by the expiry of the grant.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookupForgetsExtends;

impl Fault for LookupForgetsExtends {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let found = store.memory.lookup_raw(by).await?;
        Ok(found.filter(|held| by_the_first_expiry(store, held)))
    }
}

/// Counts a key as held while the row of an expired lock exists.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsLockedSeesTheExpired;

impl Fault for IsLockedSeesTheExpired {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let expired = store.expired_on(key).await;
        Ok(expired.is_some() || store.memory.is_locked(key).await?)
    }
}

/// Rounds the time of acquisition.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookupIsOffByOne;

impl Fault for LookupIsOffByOne {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let mut found = store.memory.lookup_raw(by).await?;
        if let Some(info) = &mut found {
            info.acquired_at_ms += 1;
        }
        Ok(found)
    }
}
