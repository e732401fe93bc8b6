//! Faults of an acquire that is repeated with the same id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use syncguard_core::backend::{AcquireResult, FENCE_MAX, Grant};
use syncguard_core::{ExtendResult, Fence, LockId, LockInfoDebug, LockKey, Ttl};

use super::broken::Fault;
use super::store::{Answer, Ask, Store};

/// Does not recognise a replay.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsRefused;

impl Fault for IsRefused {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if store.holder(ask.key).await.is_some() {
            return Ok(AcquireResult::locked());
        }
        store.acquire(ask).await
    }
}

/// Extends the lock at a replay, but returns the old grant.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extends;

impl Fault for Extends {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let replayed = store.held_by(ask.id).await.is_some();
        let answer = store.acquire(ask).await?;
        if replayed {
            let _ = store.memory.extend(ask.id, ask.ttl).await?;
        }
        Ok(answer)
    }
}

/// Makes a new grant, with a new fence.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsGrantedAnew;

impl Fault for IsGrantedAnew {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let _ = store.memory.release(ask.id).await?;
        store.acquire(ask).await
    }
}

/// Returns the first grant at a replay, even if the lock was extended: the first one of the lock, or of its id.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsTheFirst<const OF_ID: bool>(Arc<Mutex<HashMap<LockId, Grant>>>);

impl<const OF_ID: bool> Fault for IsTheFirst<OF_ID> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let replayed = store.held_by(ask.id).await.is_some();
        let answer = store.acquire(ask).await?;
        let AcquireResult::Acquired(grant) = answer else {
            return Ok(answer);
        };
        let mut grants = self.0.lock().unwrap();
        if replayed {
            return Ok(AcquireResult::Acquired(grants[ask.id].clone()));
        }
        if !(OF_ID && grants.contains_key(ask.id)) {
            grants.insert(*ask.id, grant.clone());
        }
        Ok(AcquireResult::Acquired(grant))
    }
}

/// Returns at a replay the expiry that the latest extend has replaced, from the second extend on.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForgetsTheLatestExtension(Arc<Mutex<HashMap<LockId, i64>>>);

impl Fault for ForgetsTheLatestExtension {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let mut answer = store.acquire(ask).await?;
        let replaced_ms = self.0.lock().unwrap().get(ask.id).copied();
        if let (AcquireResult::Acquired(grant), Some(replaced_ms)) = (&mut answer, replaced_ms) {
            grant.expires_at_ms = replaced_ms;
        }
        Ok(answer)
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        if let Some(row) = store.row_of(id).filter(|row| row.extends > 0) {
            self.0.lock().unwrap().insert(*id, row.info.expires_at_ms);
        }
        store.memory.extend(id, ttl).await
    }
}

/// Finds the counter at its end before it recognises a replay.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsExhausted;

impl Fault for IsExhausted {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let held = store.held_by(ask.id).await;
        if held.is_some_and(|held| held.fence.get() == FENCE_MAX) {
            return Err(Fence::exhausted());
        }
        store.acquire(ask).await
    }
}

/// Returns an earlier grant from memory, without reading the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsAnsweredFromMemory(Arc<Mutex<HashMap<LockId, Grant>>>);

impl Fault for IsAnsweredFromMemory {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let known = self.0.lock().unwrap().get(ask.id).cloned();
        if let Some(grant) = known {
            return Ok(AcquireResult::Acquired(grant));
        }
        let answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &answer {
            self.0.lock().unwrap().insert(*ask.id, grant.clone());
        }
        Ok(answer)
    }
}

/// Grants a key to an id that once held it, even if another id holds it now.
#[derive(Debug, Clone, Default)]
pub(crate) struct OustsTheSuccessor;

impl Fault for OustsTheSuccessor {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if store.key_of(ask.id).as_ref() == Some(ask.key) {
            return store.steal(ask).await;
        }
        store.acquire(ask).await
    }
}

/// Returns the expired grant at a replay.
#[derive(Debug, Clone, Default)]
pub(crate) struct RevivesTheExpired;

impl Fault for RevivesTheExpired {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let expired = store.expired_on(ask.key).await;
        match expired.filter(|former| former.lock_id == *ask.id) {
            Some(former) => {
                let grant = Grant::new(*ask.id, former.expires_at_ms, former.fence);
                Ok(AcquireResult::Acquired(grant))
            }
            None => store.acquire(ask).await,
        }
    }
}

/// Whether a lock expired, was taken over, and its key is free now.
pub(crate) fn was_taken_over(store: &Store, key: &LockKey, id: &LockId) -> Option<LockInfoDebug> {
    let former = store.row_of(id).filter(|row| !row.released)?.info;
    let last = store.last_row_on(key)?;
    (former.key == *key && last.released && last.info.lock_id != *id).then_some(former)
}

/// Returns the expired grant at a replay, once its successor has released the key.
#[derive(Debug, Clone, Default)]
pub(crate) struct RevivesTheTakenOver;

impl Fault for RevivesTheTakenOver {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let Some(former) = was_taken_over(store, ask.key, ask.id) else {
            return store.acquire(ask).await;
        };
        let grant = Grant::new(*ask.id, former.expires_at_ms, former.fence);
        Ok(AcquireResult::Acquired(grant))
    }
}

/// Rounds the expiry that a replay returns.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsOffByOne;

impl Fault for IsOffByOne {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let replayed = store.held_by(ask.id).await.is_some();
        let mut answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &mut answer {
            grant.expires_at_ms += i64::from(replayed);
        }
        Ok(answer)
    }
}
