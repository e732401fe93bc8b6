//! Faults of the second after an expiry. The memory store takes a lease for live there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use syncguard_core::backend::{AcquireResult, Lookup};
use syncguard_core::{
    ErrorCode, ExtendResult, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl,
};
use tokio::task::yield_now;

use super::broken::{Fault, NOT_EXTENDED, NOT_RELEASED};
use super::store::{Answer, Ask, Row, Store, lasting, now_ms};

fn is_overdue(held: &LockInfoDebug) -> bool {
    is_overdue_by(held, 0)
}

/// Whether the lease expired so many milliseconds ago.
fn is_overdue_by(held: &LockInfoDebug, millis: i64) -> bool {
    held.expires_at_ms + millis <= now_ms()
}

/// Counts a lease as dead at its expiry, or so many milliseconds later, only in `is_locked`.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsLockedEnds<const AFTER: i64>;

impl<const AFTER: i64> Fault for IsLockedEnds<AFTER> {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let holder = store.holder(key).await;
        Ok(holder.is_some_and(|held| !is_overdue_by(&held, AFTER)))
    }
}

/// The same in lookups by key.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookupByKeyEnds<const AFTER: i64>;

impl<const AFTER: i64> Fault for LookupByKeyEnds<AFTER> {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let by_key = matches!(by, Lookup::Key(_));
        let found = store.memory.lookup_raw(by).await?;
        Ok(found.filter(|held| !(by_key && is_overdue_by(held, AFTER))))
    }
}

/// The same in lookups by id.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookupByIdEnds<const AFTER: i64>;

impl<const AFTER: i64> Fault for LookupByIdEnds<AFTER> {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let by_id = matches!(by, Lookup::Id(_));
        let found = store.memory.lookup_raw(by).await?;
        Ok(found.filter(|held| !(by_id && is_overdue_by(held, AFTER))))
    }
}

/// The same in acquire: the key is granted.
#[derive(Debug, Clone, Default)]
pub(crate) struct AcquireEnds<const AFTER: i64>;

impl<const AFTER: i64> Fault for AcquireEnds<AFTER> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let holder = store.holder(ask.key).await;
        if holder.is_some_and(|held| is_overdue_by(&held, AFTER) && held.lock_id != *ask.id) {
            return store.steal(ask).await;
        }
        store.acquire(ask).await
    }
}

/// The same in a replay: a new grant.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayEnds<const AFTER: i64>;

impl<const AFTER: i64> Fault for ReplayEnds<AFTER> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let held = store.held_by(ask.id).await;
        if held.is_some_and(|held| is_overdue_by(&held, AFTER)) {
            return store.steal(ask).await;
        }
        store.acquire(ask).await
    }
}

/// The same in extend.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendEnds<const AFTER: i64>;

impl<const AFTER: i64> Fault for ExtendEnds<AFTER> {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let held = store.held_by(id).await;
        if held.is_some_and(|held| is_overdue_by(&held, AFTER)) {
            return Ok(NOT_EXTENDED);
        }
        store.memory.extend(id, ttl).await
    }
}

/// The same in release.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseEnds<const AFTER: i64>;

impl<const AFTER: i64> Fault for ReleaseEnds<AFTER> {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let held = store.held_by(id).await;
        if held.is_some_and(|held| is_overdue_by(&held, AFTER)) {
            return Ok(NOT_RELEASED);
        }
        store.memory.release(id).await
    }
}

/// The fault of another one, only on locks that were extended so often.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extended<F, const LEAST: u32, const MOST: u32>(F);

impl<F, const LEAST: u32, const MOST: u32> Extended<F, LEAST, MOST> {
    fn strikes(row: Option<Row>) -> bool {
        row.is_some_and(|row| (LEAST..=MOST).contains(&row.extends))
    }
}

impl<F: Fault, const LEAST: u32, const MOST: u32> Fault for Extended<F, LEAST, MOST> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if Self::strikes(store.unreleased_row_on(ask.key)) {
            return self.0.acquire(store, ask).await;
        }
        store.acquire(ask).await
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        if Self::strikes(store.row_of(id)) {
            return self.0.extend(store, id, ttl).await;
        }
        store.memory.extend(id, ttl).await
    }

    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        if Self::strikes(store.unreleased_row_on(key)) {
            return self.0.is_locked(store, key).await;
        }
        store.memory.is_locked(key).await
    }
}

/// Removes what it finds overdue.
async fn remove_overdue(store: &Store, found: Option<LockInfoDebug>) -> Answer<()> {
    if let Some(held) = found.filter(is_overdue) {
        let _ = store.memory.release(&held.lock_id).await?;
    }
    Ok(())
}

/// Removes the lock that it has just called live.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsLockedRemoves;

impl Fault for IsLockedRemoves {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let locked = store.memory.is_locked(key).await?;
        remove_overdue(store, store.holder(key).await).await?;
        Ok(locked)
    }
}

/// Removes the lock that it has just shown.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookupRemoves;

impl Fault for LookupRemoves {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let found = store.memory.lookup_raw(by).await?;
        remove_overdue(store, found.clone()).await?;
        Ok(found)
    }
}

/// Removes the lock for which it has just refused.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalRemoves;

impl Fault for RefusalRemoves {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if answer.is_locked() {
            remove_overdue(store, store.holder(ask.key).await).await?;
        }
        Ok(answer)
    }
}

/// Grants an overdue lock again: with a new fence, or only with a new time of acquisition.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendTakesAnew<const KEEPS_FENCE: bool>;

impl<const KEEPS_FENCE: bool> Fault for ExtendTakesAnew<KEEPS_FENCE> {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let Some(held) = store.held_by(id).await.filter(is_overdue) else {
            return store.memory.extend(id, ttl).await;
        };
        if KEEPS_FENCE {
            let before = held.fence.get() - 1;
            store.memory.set_fence_counter(&held.key, before);
        }
        let key = &held.key;
        let grant = store.steal(Ask { key, id, ttl }).await?.granted().unwrap();
        Ok(ExtendResult::extended(grant.expires_at_ms))
    }
}

/// Adds to the expiry that has passed.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendAdds;

impl Fault for ExtendAdds {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let held = store.held_by(id).await.filter(is_overdue);
        let passed_ms = held.map_or(0, |held| now_ms() - held.expires_at_ms);
        let ttl = lasting(ttl.as_millis() - passed_ms);
        store.memory.extend(id, ttl).await
    }
}

/// Finds the lock overdue, and in the next step extends it or takes it from the one that came first: in the tolerance, or
/// after it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendIsUnguarded<const IN_TOLERANCE: bool>;

impl<const IN_TOLERANCE: bool> Fault for ExtendIsUnguarded<IN_TOLERANCE> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if IN_TOLERANCE {
            return AcquireEnds::<0>.acquire(store, ask).await;
        }
        store.acquire(ask).await
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let Some(held) = store.held_by(id).await.filter(is_overdue) else {
            return store.memory.extend(id, ttl).await;
        };
        yield_now().await;
        let key = &held.key;
        let grant = store.steal(Ask { key, id, ttl }).await?.granted().unwrap();
        Ok(ExtendResult::extended(grant.expires_at_ms))
    }
}

/// Extends a dead lock that nobody has taken over, whenever it died.
pub(crate) async fn revive(store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
    let expired = match store.key_of(id) {
        Some(key) => store.expired_on(&key).await,
        None => None,
    };
    let Some(dead) = expired.filter(|dead| dead.lock_id == *id) else {
        return store.memory.extend(id, ttl).await;
    };
    let key = &dead.key;
    store.memory.set_fence_counter(key, dead.fence.get() - 1);
    let grant = store.acquire(Ask { key, id, ttl }).await?.granted();
    Ok(grant.map_or(NOT_EXTENDED, |grant| {
        ExtendResult::extended(grant.expires_at_ms)
    }))
}

/// Finds the lock overdue, and in the next step extends it unless it was taken over.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendChecksTheOwnerAlone;

impl Fault for ExtendChecksTheOwnerAlone {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let live = store.held_by(id).await.is_some();
        yield_now().await;
        if live {
            return revive(store, id, ttl).await;
        }
        store.memory.extend(id, ttl).await
    }
}

/// Finds the lock overdue, and in the next step removes whatever lock the key has.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseRemovesTheSuccessor;

impl Fault for ReleaseRemovesTheSuccessor {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        if store.held_by(id).await.filter(is_overdue).is_some() {
            return super::on_races::ReleaseRemovesTheSuccessor
                .release(store, id)
                .await;
        }
        store.memory.release(id).await
    }
}

/// Removes overdue locks of other keys, once its client has been granted many.
#[derive(Debug, Clone, Default)]
pub(crate) struct AcquireSweeps(Arc<AtomicUsize>);

impl Fault for AcquireSweeps {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        const MANY: usize = 500;
        if self.0.load(Ordering::Relaxed) > MANY {
            for lock in store.unreleased().iter().filter(|lock| is_overdue(lock)) {
                let _ = store.memory.release(&lock.lock_id).await?;
            }
        }
        let answer = store.acquire(ask).await?;
        let granted = usize::from(!answer.is_locked());
        self.0.fetch_add(granted, Ordering::Relaxed);
        Ok(answer)
    }
}

/// Removes the counter with an overdue lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseResetsTheFence;

impl Fault for ReleaseResetsTheFence {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let held = store.held_by(id).await.filter(is_overdue);
        let answer = store.memory.release(id).await?;
        if let Some(held) = held.filter(|_| answer.is_released()) {
            store.memory.set_fence_counter(&held.key, 0);
        }
        Ok(answer)
    }
}

/// Finds the lock overdue, and fails in the next step if somebody has asked for a lock in between.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendConflicts(Arc<AtomicU64>);

impl Fault for ExtendConflicts {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.0.fetch_add(1, Ordering::SeqCst);
        store.acquire(ask).await
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        if store.held_by(id).await.filter(is_overdue).is_some() {
            let asked = self.0.load(Ordering::SeqCst);
            yield_now().await;
            if self.0.load(Ordering::SeqCst) != asked {
                let text = "could not serialize access";
                return Err(LockError::new(ErrorCode::ServiceUnavailable, text));
            }
        }
        store.memory.extend(id, ttl).await
    }
}
