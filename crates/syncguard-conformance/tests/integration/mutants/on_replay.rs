//! Faults of an acquire that is repeated with the same id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use syncguard_core::LockId;
use syncguard_core::backend::{AcquireResult, Grant};

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

/// Returns the first grant at a replay, even if the lock was extended.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForgetsExtensions(Arc<Mutex<HashMap<LockId, Grant>>>);

impl Fault for ForgetsExtensions {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let replayed = store.held_by(ask.id).await.is_some();
        let answer = store.acquire(ask).await?;
        let AcquireResult::Acquired(grant) = answer else {
            return Ok(answer);
        };
        let mut grants = self.0.lock().unwrap();
        if !replayed {
            grants.insert(*ask.id, grant);
        }
        Ok(AcquireResult::Acquired(grants[ask.id].clone()))
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
