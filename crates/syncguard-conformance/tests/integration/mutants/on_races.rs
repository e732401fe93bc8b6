//! Faults that show when calls meet: steps that are not one, and futures that are dropped.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use syncguard_core::backend::{AcquireResult, Lookup};
use syncguard_core::{
    ErrorCode, ExtendResult, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl,
};
use tokio::task::yield_now;

use super::broken::{Fault, NOT_RELEASED};
use super::store::{Answer, Ask, Store, lasting, now_ms};

/// Reads first, and acquires in the next step.
#[derive(Debug, Clone, Default)]
pub(crate) struct LooksThenTakes;

impl Fault for LooksThenTakes {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if store.memory.is_locked(ask.key).await? {
            return store.acquire(ask).await;
        }
        yield_now().await;
        store.steal(ask).await
    }
}

/// The same, but only if the key has no row yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct InsertsUnguarded(Arc<Mutex<HashSet<String>>>);

impl Fault for InsertsUnguarded {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let key = ask.key.as_str();
        let known = self.0.lock().unwrap().contains(key);
        if known {
            return store.acquire(ask).await;
        }
        yield_now().await;
        self.0.lock().unwrap().insert(key.to_owned());
        store.steal(ask).await
    }
}

/// The same, but only if the row of an expired lease exists.
#[derive(Debug, Clone, Default)]
pub(crate) struct TakesOverUnguarded;

impl Fault for TakesOverUnguarded {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let expired =
            store.unreleased_on(ask.key).is_some() && store.holder(ask.key).await.is_none();
        if !expired {
            return store.acquire(ask).await;
        }
        yield_now().await;
        store.steal(ask).await
    }
}

/// Reads the clock before it waits for its turn.
#[derive(Debug, Clone, Default)]
pub(crate) struct TimedBeforeTheWait(Arc<tokio::sync::Mutex<()>>);

impl Fault for TimedBeforeTheWait {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let asked = Instant::now();
        let _turn = self.0.lock().await;
        tokio::time::sleep(Duration::from_millis(3)).await;
        let mut answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &mut answer {
            let waited = i64::try_from(asked.elapsed().as_millis()).unwrap();
            let ttl = lasting(ask.ttl.as_millis() - waited);
            let shortened = store.memory.extend(ask.id, ttl).await?;
            grant.expires_at_ms = shortened.expires_at_ms().unwrap();
        }
        Ok(answer)
    }
}

/// The same, with one turn for all operations, each of them quick and in no order: waits are
/// about as long as a millisecond of the clock.
#[derive(Debug, Clone, Default)]
pub(crate) struct TimedBeforeAShortWait(Arc<tokio::sync::Mutex<()>>);

impl TimedBeforeAShortWait {
    async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        const WORK: Duration = Duration::from_micros(20);
        let turn = loop {
            match self.0.try_lock() {
                Ok(turn) => break turn,
                Err(_) => yield_now().await,
            }
        };
        let begun = Instant::now();
        while begun.elapsed() < WORK {
            yield_now().await;
        }
        turn
    }
}

impl Fault for TimedBeforeAShortWait {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let expires_at_ms = now_ms() + ask.ttl.as_millis();
        let _turn = self.turn().await;
        let mut answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &mut answer {
            grant.expires_at_ms = expires_at_ms;
        }
        Ok(answer)
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let _turn = self.turn().await;
        store.memory.release(id).await
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let _turn = self.turn().await;
        store.memory.extend(id, ttl).await
    }
}

/// Returns the store's conflict as an error to the loser of a race: on any key, or only on those of expired locks.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConflictIsAnError<const EXPIRED: bool>(Arc<AtomicU64>);

impl<const EXPIRED: bool> Fault for ConflictIsAnError<EXPIRED> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if EXPIRED && store.expired_on(ask.key).await.is_none() {
            return store.acquire(ask).await;
        }
        let version = self.0.load(Ordering::SeqCst);
        yield_now().await;
        let next = version + 1;
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        match self.0.compare_exchange(version, next, success, failure) {
            Ok(_) => store.acquire(ask).await,
            Err(_) => Err(LockError::new(
                ErrorCode::ServiceUnavailable,
                "could not serialize access",
            )),
        }
    }
}

/// Refuses every key while an acquire is under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusesMeanwhile(Arc<AtomicU64>);

impl Fault for RefusesMeanwhile {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if self.0.fetch_add(1, Ordering::SeqCst) > 0 {
            self.0.fetch_sub(1, Ordering::SeqCst);
            return Ok(AcquireResult::locked());
        }
        yield_now().await;
        let answer = store.acquire(ask).await;
        self.0.fetch_sub(1, Ordering::SeqCst);
        answer
    }
}

/// Returns what it read before, not what it removed: of any lock, or only of one that was extended.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseCountsTwice<const EXTENDED: bool>;

impl<const EXTENDED: bool> Fault for ReleaseCountsTwice<EXTENDED> {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        if EXTENDED && store.row_of(id).is_none_or(|row| row.extends == 0) {
            return store.memory.release(id).await;
        }
        let held = store.held_by(id).await.is_some();
        yield_now().await;
        let _ = store.memory.release(id).await?;
        Ok(if held {
            ReleaseResult::Released
        } else {
            NOT_RELEASED
        })
    }
}

/// Checks the owner, and then removes whatever lock the key has.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseRemovesByKey(Arc<AtomicU64>);

impl Fault for ReleaseRemovesByKey {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let Some(held) = store.held_by(id).await else {
            return Ok(NOT_RELEASED);
        };
        let nth = self.0.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2 + nth % 4 * 3)).await;
        let Some(holder) = store.holder(&held.key).await else {
            return Ok(NOT_RELEASED);
        };
        let answer = store.memory.release(&holder.lock_id).await?;
        Ok(if holder.lock_id == *id {
            answer
        } else {
            NOT_RELEASED
        })
    }
}

/// Ignores a release while one of the same id is under way, and forgets to end that when the
/// future is dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseIsOnceOnly(Arc<Mutex<HashSet<LockId>>>);

impl Fault for ReleaseIsOnceOnly {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        if !self.0.lock().unwrap().insert(*id) {
            return Ok(NOT_RELEASED);
        }
        // `Locks` polls a call twice before it waits for it.
        for _ in 0..3 {
            yield_now().await;
        }
        let answer = store.memory.release(id).await;
        self.0.lock().unwrap().remove(id);
        answer
    }
}

/// Reads the row, and writes it back with a new expiry, there or not.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendWritesBack;

impl Fault for ExtendWritesBack {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let read = store.held_by(id).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let answer = store.memory.extend(id, ttl).await?;
        let Some(read) = read.filter(|_| answer.expires_at_ms().is_none()) else {
            return Ok(answer);
        };
        let key = &read.key;
        let written = store.acquire(Ask { key, id, ttl }).await?;
        Ok(written
            .granted()
            .map_or(answer, |grant| ExtendResult::extended(grant.expires_at_ms)))
    }
}

/// Removes the row and inserts it anew, in two steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendDeletesFirst;

impl Fault for ExtendDeletesFirst {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let Some(held) = store.held_by(id).await else {
            return store.memory.extend(id, ttl).await;
        };
        let _ = store.memory.release(id).await?;
        yield_now().await;
        let key = &held.key;
        store.memory.set_fence_counter(key, held.fence.get() - 1);
        let _ = store.acquire(Ask { key, id, ttl }).await?;
        store.memory.extend(id, ttl).await
    }
}

/// Writes back in the next step a lock that was released in between.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendWritesBackAtOnce;

impl Fault for ExtendWritesBackAtOnce {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let read = store.held_by(id).await;
        yield_now().await;
        let answer = store.memory.extend(id, ttl).await?;
        if let Some(read) = read.filter(|_| answer.expires_at_ms().is_none()) {
            let key = &read.key;
            let _ = store.acquire(Ask { key, id, ttl }).await?;
        }
        Ok(answer)
    }
}

/// Reads the key of the id, and in the next step extends the lock that holds that key.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendExtendsTheSuccessor;

impl Fault for ExtendExtendsTheSuccessor {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let Some(read) = store.held_by(id).await else {
            return store.memory.extend(id, ttl).await;
        };
        yield_now().await;
        let holder = store.holder(&read.key).await;
        let id = holder.map_or(*id, |holder| holder.lock_id);
        store.memory.extend(&id, ttl).await
    }
}

/// Reads the key of the id, and in the next step removes whatever lock the key has.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseRemovesTheSuccessor;

impl Fault for ReleaseRemovesTheSuccessor {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let Some(read) = store.held_by(id).await else {
            return Ok(NOT_RELEASED);
        };
        yield_now().await;
        let Some(holder) = store.holder(&read.key).await else {
            return Ok(NOT_RELEASED);
        };
        let answer = store.memory.release(&holder.lock_id).await?;
        let own = holder.lock_id == *id;
        Ok(if own { answer } else { NOT_RELEASED })
    }
}

/// Reads lock and counter, and in the next step removes the lock and writes the counter back.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseRestoresTheCounter(Arc<Mutex<HashMap<LockKey, u64>>>);

impl Fault for ReleaseRestoresTheCounter {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &answer {
            let mut counters = self.0.lock().unwrap();
            counters.insert(ask.key.clone(), grant.fence.get());
        }
        Ok(answer)
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let Some(read) = store.held_by(id).await else {
            return Ok(NOT_RELEASED);
        };
        let counter = self.0.lock().unwrap().get(&read.key).copied();
        yield_now().await;
        if let Some(counter) = counter {
            self.0.lock().unwrap().insert(read.key.clone(), counter);
            store.memory.set_fence_counter(&read.key, counter);
        }
        store.memory.release(id).await
    }
}

/// Releases what it has read, unless it was extended in between.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseLosesToAnExtend;

impl Fault for ReleaseLosesToAnExtend {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let read = store.held_by(id).await;
        yield_now().await;
        if store.held_by(id).await != read {
            return Ok(NOT_RELEASED);
        }
        store.memory.release(id).await
    }
}

/// Finds its own lock, and in the next step acquires the key even if another id holds it by then.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayRestores;

impl Fault for ReplayRestores {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let read = store.held_by(ask.id).await;
        if read.is_none_or(|read| read.key != *ask.key) {
            return store.acquire(ask).await;
        }
        yield_now().await;
        let answer = store.acquire(ask).await?;
        if answer.is_locked() {
            return store.steal(ask).await;
        }
        Ok(answer)
    }
}

/// Reads the holder, and in the next step the rest.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookupIsTorn;

impl Fault for LookupIsTorn {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let Some(first) = store.memory.lookup_raw(by).await? else {
            return Ok(None);
        };
        yield_now().await;
        let Some(second) = store.holder(&first.key).await else {
            return Ok(None);
        };
        let LockInfoDebug {
            expires_at_ms,
            acquired_at_ms,
            fence,
            ..
        } = second;
        let (key, id) = (first.key, first.lock_id);
        let torn = LockInfoDebug::new(key, id, expires_at_ms, acquired_at_ms, fence);
        Ok(Some(torn))
    }
}

/// Reads the key of the id, and in the next step the lock that holds that key.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookupByIdFollowsTheKey;

impl Fault for LookupByIdFollowsTheKey {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let first = store.memory.lookup_raw(by).await?;
        match (first, by) {
            (Some(first), Lookup::Id(_)) => {
                yield_now().await;
                Ok(store.holder(&first.key).await)
            }
            (first, _) => Ok(first),
        }
    }
}

/// Reads twice, and finds nothing if the lock has changed in between.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookupMissesTheExtended;

impl Fault for LookupMissesTheExtended {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let first = store.memory.lookup_raw(by).await?;
        yield_now().await;
        let second = store.memory.lookup_raw(by).await?;
        let unchanged = first == second;
        Ok(second.filter(|_| unchanged))
    }
}

/// Reads twice, and takes the key for free if its lock has changed in between.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsLockedMissesTheExtended;

impl Fault for IsLockedMissesTheExtended {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let first = store.holder(key).await;
        yield_now().await;
        let second = store.holder(key).await;
        Ok(second.is_some() && first == second)
    }
}
