//! Faults of release.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::backend::AcquireResult;
use syncguard_core::{LockId, LockKey, ReleaseResult};

use super::broken::{Fault, NOT_RELEASED};
use super::store::{Answer, Ask, Store};

/// Calls every release a success.
#[derive(Debug, Clone, Default)]
pub(crate) struct Twice;

impl Fault for Twice {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let _ = store.memory.release(id).await?;
        Ok(ReleaseResult::Released)
    }
}

/// Returns `Released`, and removes the lock a while later.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsLazy(Arc<Mutex<HashSet<LockId>>>);

impl Fault for IsLazy {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let held = store.held_by(id).await.is_some();
        if !held || !self.0.lock().unwrap().insert(*id) {
            return Ok(NOT_RELEASED);
        }
        let (memory, id) = (store.memory.clone(), *id);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            memory.release(&id).await
        });
        Ok(ReleaseResult::Released)
    }
}

/// Trusts its index, and removes the current lock on the key that the id once held.
#[derive(Debug, Clone, Default)]
pub(crate) struct IgnoresOwner;

impl Fault for IgnoresOwner {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let holder = match store.key_of(id) {
            Some(key) => store.holder(&key).await,
            None => None,
        };
        let id = holder.map_or(*id, |holder| holder.lock_id);
        store.memory.release(&id).await
    }
}

/// Compares ids without regard to case, or takes a hyphen for an underscore.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoldsIds<const CASE: bool>;

impl<const CASE: bool> Fault for FoldsIds<CASE> {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let folded = |id: &LockId| match CASE {
            true => id.as_str().to_ascii_lowercase(),
            false => id.as_str().replace('-', "_"),
        };
        let like = |row: &LockId| folded(row) == folded(id);
        let ids = store.unreleased().into_iter().map(|row| row.lock_id);
        let id = ids.into_iter().find(like).unwrap_or(*id);
        store.memory.release(&id).await
    }
}

/// Frees all that its client holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct FreesAll(Arc<Mutex<Vec<LockId>>>);

impl Fault for FreesAll {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if !answer.is_locked() {
            self.0.lock().unwrap().push(*ask.id);
        }
        Ok(answer)
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let answer = store.memory.release(id).await;
        let all = std::mem::take(&mut *self.0.lock().unwrap());
        for id in all {
            let _ = store.memory.release(&id).await?;
        }
        answer
    }
}

/// Removes the counter with the lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResetsFence;

impl Fault for ResetsFence {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let answer = store.memory.release(id).await?;
        if let Some(key) = store.key_of(id).filter(|_| answer.is_released()) {
            store.memory.set_fence_counter(&key, 0);
        }
        Ok(answer)
    }
}

/// Increments the fence counter if it finds no lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct BurnsFence;

impl Fault for BurnsFence {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let answer = store.memory.release(id).await?;
        if let Some(row) = store.row_of(id).filter(|_| !answer.is_released()) {
            let burnt = row.info.fence.get() + 2;
            store.memory.set_fence_counter(&row.info.key, burnt);
        }
        Ok(answer)
    }
}

/// Remembers every key that an id was granted, and releases them all, even if others hold them by then.
#[derive(Debug, Clone, Default)]
pub(crate) struct FreesEveryKeyOfTheId(Arc<Mutex<HashMap<LockId, Vec<LockKey>>>>);

impl Fault for FreesEveryKeyOfTheId {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if !answer.is_locked() {
            let mut keys = self.0.lock().unwrap();
            keys.entry(*ask.id).or_default().push(ask.key.clone());
        }
        Ok(answer)
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let answer = store.memory.release(id).await?;
        let keys = self.0.lock().unwrap().remove(id).unwrap_or_default();
        for key in keys {
            if let Some(holder) = store.holder(&key).await {
                let _ = store.memory.release(&holder.lock_id).await?;
            }
        }
        Ok(answer)
    }
}

/// Returns a result without a call to the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct DoesNothing;

impl Fault for DoesNothing {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let held = store.held_by(id).await.is_some();
        Ok(if held {
            ReleaseResult::Released
        } else {
            NOT_RELEASED
        })
    }
}

/// Compares the row with that of the grant, so it does not find an extended lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForgetsTheExtended;

impl Fault for ForgetsTheExtended {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        if store.row_of(id).is_some_and(|row| row.extends > 0) {
            return Ok(NOT_RELEASED);
        }
        store.memory.release(id).await
    }
}

/// Removes the current lock on the key of its own expired lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct FreesTheSuccessorOfTheExpired;

impl Fault for FreesTheSuccessorOfTheExpired {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let answer = store.memory.release(id).await?;
        let expired = store.row_of(id).filter(|row| !row.released);
        if let Some(row) = expired.filter(|_| !answer.is_released())
            && let Some(holder) = store.holder(&row.info.key).await
        {
            let _ = store.memory.release(&holder.lock_id).await?;
        }
        Ok(answer)
    }
}

/// Removes the counter with a lock that was extended, or with one that has expired.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResetsTheFenceOf<const EXTENDED: bool>;

impl<const EXTENDED: bool> Fault for ResetsTheFenceOf<EXTENDED> {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let answer = store.memory.release(id).await?;
        let row = store.row_of(id).filter(|row| !row.released);
        if let Some(row) = row {
            let at_fault = match EXTENDED {
                true => answer.is_released() && row.extends > 0,
                false => !answer.is_released() && store.holder(&row.info.key).await.is_none(),
            };
            if at_fault {
                store.memory.set_fence_counter(&row.info.key, 0);
            }
        }
        Ok(answer)
    }
}
