//! Faults of deadlines, clean-up and closing; and of what a store has room for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::backend::AcquireResult;
use syncguard_core::{ErrorCode, ExtendResult, LockError, LockId, ReleaseResult, Ttl};

use super::broken::{Fault, past_deadline};
use super::store::{Answer, Ask, Store, now_ms};

/// Queues a call after its deadline, and sends it nonetheless.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendsTheLate;

impl Fault for SendsTheLate {
    async fn acquire_late(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let (memory, key, id, ttl) = (store.memory.clone(), ask.key.clone(), *ask.id, ask.ttl);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            memory.acquire(&key, &id, ttl).await
        });
        Err(past_deadline())
    }
}

/// Does not say whether it has sent a call after its deadline.
#[derive(Debug, Clone, Default)]
pub(crate) struct DoubtsTheLate;

impl Fault for DoubtsTheLate {
    async fn acquire_late(&self, _: &Store, _: Ask<'_>) -> Answer<AcquireResult> {
        Err(past_deadline().with_outcome_unknown())
    }
}

/// Purges by the wrong comparison: live locks.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgesTheLive;

impl Fault for PurgesTheLive {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        for row in store.unreleased() {
            let _ = store.memory.release(&row.lock_id).await?;
        }
        store.memory.purge_expired(limit).await
    }
}

/// Purges at the expiry, where the tolerance begins: all locks, or those that were never extended.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgesTheOverdue<const EXTENDED: bool>;

impl<const EXTENDED: bool> Fault for PurgesTheOverdue<EXTENDED> {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        for row in store.unreleased() {
            let extended = store
                .row_of(&row.lock_id)
                .is_some_and(|row| row.extends > 0);
            if row.expires_at_ms <= now_ms() && (EXTENDED || !extended) {
                let _ = store.memory.release(&row.lock_id).await?;
            }
        }
        store.memory.purge_expired(limit).await
    }
}

/// Purges the counters of expired locks, of keys from this length on.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgesFences<const LENGTH: usize>;

impl<const LENGTH: usize> Fault for PurgesFences<LENGTH> {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        for row in store.unreleased() {
            if row.key.as_str().len() >= LENGTH && store.holder(&row.key).await.is_none() {
                store.memory.set_fence_counter(&row.key, 0);
            }
        }
        store.memory.purge_expired(limit).await
    }
}

/// Purges all at once.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgesPastTheLimit;

impl Fault for PurgesPastTheLimit {
    async fn purge_expired(&self, store: &Store, _: u32) -> Answer<u64> {
        store.memory.purge_expired(u32::MAX).await
    }
}

/// Releases the locks of a client that is closed.
#[derive(Debug, Clone, Default)]
pub(crate) struct CloseReleases(Arc<Mutex<Vec<LockId>>>);

impl Fault for CloseReleases {
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

    async fn close(&self, store: &Store) -> Answer<()> {
        let own = std::mem::take(&mut *self.0.lock().unwrap());
        for id in own {
            let _ = store.memory.release(&id).await?;
        }
        Ok(())
    }
}

/// Closes what all clients share.
#[derive(Debug, Clone, Default)]
pub(crate) struct CloseEndsTheOthers(Arc<AtomicBool>);

impl Fault for CloseEndsTheOthers {
    async fn close(&self, _: &Store) -> Answer<()> {
        self.0.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        if self.0.load(Ordering::SeqCst) {
            return Err(LockError::new(ErrorCode::ServiceUnavailable, "closed"));
        }
        store.memory.extend(id, ttl).await
    }
}

const ROOM: usize = 4_900;

/// Has room for some thousands of locks, and makes room by forgetting the oldest.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForgetsTheOldest(Arc<Mutex<VecDeque<LockId>>>);

impl Fault for ForgetsTheOldest {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        let oldest = {
            let mut kept = self.0.lock().unwrap();
            if !answer.is_locked() && !kept.contains(ask.id) {
                kept.push_back(*ask.id);
            }
            if kept.len() > ROOM {
                kept.pop_front()
            } else {
                None
            }
        };
        if let Some(id) = oldest {
            let _ = store.memory.release(&id).await?;
        }
        Ok(answer)
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        self.0.lock().unwrap().retain(|kept| kept != id);
        store.memory.release(id).await
    }
}

/// Has room for some thousands of locks, and refuses more.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsFull(ForgetsTheOldest);

impl Fault for IsFull {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if self.0.0.lock().unwrap().len() >= ROOM {
            return Err(LockError::new(ErrorCode::RateLimited, "no room left"));
        }
        self.0.acquire(store, ask).await
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        self.0.release(store, id).await
    }
}

/// Purges by the expiry of the grant.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgesTheExtended;

impl Fault for PurgesTheExtended {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        for row in store.unreleased() {
            let row = store.row_of(&row.lock_id).unwrap();
            if row.first_expiry_ms < now_ms() - 2_000 {
                let _ = store.memory.release(&row.info.lock_id).await?;
            }
        }
        store.memory.purge_expired(limit).await
    }
}

/// Purges one more than it may.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgesOneMore;

impl Fault for PurgesOneMore {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        store.memory.purge_expired(limit + 1).await
    }
}
