//! Faults of deadlines, clean-up and closing; and of what a store has room for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::backend::{
    AcquireResult, CLEANUP_GUARD_MS, FailureReason, ListPage, Lookup, Watch, WatchKey,
};
use syncguard_core::{
    ErrorCode, ExtendResult, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl,
};

use super::broken::{Fault, past_deadline};
use super::store::{Answer, Ask, Store, Wanted, now_ms};

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

/// Purges the counters of expired locks, of keys from this length on: of all, or only of those that were granted once.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgesFences<const LENGTH: usize, const FIRST: bool>;

impl<const LENGTH: usize, const FIRST: bool> Fault for PurgesFences<LENGTH, FIRST> {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        for row in store.unreleased() {
            let counts = row.key.as_str().len() >= LENGTH && (!FIRST || row.fence.get() == 1);
            if counts && store.holder(&row.key).await.is_none() {
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

/// Releases the locks of a client that is closed: those that it acquired, or those that it extended.
#[derive(Debug, Clone, Default)]
pub(crate) struct CloseReleases<const EXTENDED: bool>(Arc<Mutex<Vec<LockId>>>);

impl<const EXTENDED: bool> Fault for CloseReleases<EXTENDED> {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if !EXTENDED && !answer.is_locked() {
            self.0.lock().unwrap().push(*ask.id);
        }
        Ok(answer)
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        if EXTENDED {
            self.0.lock().unwrap().push(*id);
        }
        store.memory.extend(id, ttl).await
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
            return Err(closed());
        }
        store.memory.extend(id, ttl).await
    }
}

fn closed() -> LockError {
    LockError::new(ErrorCode::ServiceUnavailable, "closed")
}

/// Ends all watches.
#[derive(Debug, Clone, Default)]
pub(crate) struct CloseEndsWatches(Arc<AtomicBool>);

struct Ends(Watch, Arc<AtomicBool>);

impl WatchKey for Ends {
    async fn changed(&mut self) -> Result<(), LockError> {
        self.0.changed().await?;
        if self.1.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

impl Fault for CloseEndsWatches {
    async fn close(&self, _: &Store) -> Answer<()> {
        self.0.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        let watch = store.memory.watch(key).await?;
        Ok(watch.map(|watch| Watch::new(Ends(watch, Arc::clone(&self.0)))))
    }
}

/// Once it is closed, it refuses all calls but one: `r`elease, `e`xtend, `i`s_locked, loo`k`up, `l`ist or `p`urge.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClosesAllBut<const OPEN: char>(Arc<AtomicBool>);

impl<const OPEN: char> ClosesAllBut<OPEN> {
    fn admit(&self, call: char) -> Answer<()> {
        if self.0.load(Ordering::SeqCst) && call != OPEN {
            return Err(closed());
        }
        Ok(())
    }
}

impl<const OPEN: char> Fault for ClosesAllBut<OPEN> {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn close(&self, _: &Store) -> Answer<()> {
        self.0.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.admit('a')?;
        store.acquire(ask).await
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        self.admit('r')?;
        store.memory.release(id).await
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        self.admit('e')?;
        store.memory.extend(id, ttl).await
    }

    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        self.admit('i')?;
        store.memory.is_locked(key).await
    }

    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        self.admit('k')?;
        store.memory.lookup_raw(by).await
    }

    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        self.admit('w')?;
        store.memory.watch(key).await
    }

    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        self.admit('l')?;
        store.memory.list(wanted).await
    }

    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        self.admit('p')?;
        store.memory.purge_expired(limit).await
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

/// Purges by the expiry of the grant, once no more than this is left of the lease.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgesTheExtended<const LEFT_MS: i64>;

impl<const LEFT_MS: i64> Fault for PurgesTheExtended<LEFT_MS> {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        for row in store.unreleased() {
            let row = store.row_of(&row.lock_id).unwrap();
            let left_ms = row.info.expires_at_ms - now_ms();
            if row.first_expiry_ms < now_ms() - 2_000 && left_ms <= LEFT_MS {
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

/// Takes a limit of zero for none.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgesAllForNone;

impl Fault for PurgesAllForNone {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        let limit = if limit == 0 { u32::MAX } else { limit };
        store.memory.purge_expired(limit).await
    }
}

/// Purges ten at a time, and returns no more than its limit.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgesInBatches;

impl Fault for PurgesInBatches {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        let batches = limit.div_ceil(10) * 10;
        let purged = store.memory.purge_expired(batches).await?;
        Ok(purged.min(limit.into()))
    }
}

/// Counts one less if it purged two or more.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgeCountsOneLess;

impl Fault for PurgeCountsOneLess {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        let purged = store.memory.purge_expired(limit).await?;
        Ok(purged - u64::from(purged > 1))
    }
}

/// Looks at locks in the order in which their grants would have expired, and at no more than its limit: live locks that
/// were extended keep it from those behind them.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgeStopsAtTheExtended;

impl Fault for PurgeStopsAtTheExtended {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        let unreleased = store.unreleased().into_iter();
        let mut rows: Vec<_> = unreleased
            .filter_map(|lock| store.row_of(&lock.lock_id))
            .collect();
        rows.sort_by_key(|row| row.first_expiry_ms);
        let dead_by = now_ms() - CLEANUP_GUARD_MS;
        let (mut read, mut purged) = (0, 0);
        for row in rows {
            if read == limit {
                break;
            }
            if row.info.expires_at_ms < dead_by {
                // A release removes an expired lock. With any other answer, the lock was gone before.
                let answer = store.memory.release(&row.info.lock_id).await?;
                if answer != ReleaseResult::not_held(Some(FailureReason::Expired)) {
                    continue;
                }
                purged += 1;
            }
            read += 1;
        }
        Ok(purged)
    }
}
