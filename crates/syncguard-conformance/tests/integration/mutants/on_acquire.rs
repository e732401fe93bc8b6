//! Faults of acquire.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::backend::{AcquireResult, TIME_TOLERANCE_MS};
use syncguard_core::{ErrorCode, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult};
use tokio::task::yield_now;

use super::broken::{Fault, NOT_RELEASED};
use super::store::{Answer, Ask, Part, Row, Store, lasting, now_ms};

/// Grants a held key to another id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Steals;

impl Fault for Steals {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        store.steal(ask).await
    }
}

/// Stores an id of its own, and returns the caller's.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrantsAnotherId;

impl Fault for GrantsAnotherId {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let id = &LockId::generate()?;
        let mut answer = store.acquire(Ask { id, ..ask }).await?;
        if let AcquireResult::Acquired(grant) = &mut answer {
            grant.lock_id = *ask.id;
        }
        Ok(answer)
    }
}

/// Tries again after a while before it says `Locked`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waits;

impl Fault for Waits {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if !answer.is_locked() {
            return Ok(answer);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        store.acquire(ask).await
    }
}

/// The same if the lock was extended, or if its expiry has passed.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitsWhere<const EXTENDED: bool>;

impl<const EXTENDED: bool> Fault for WaitsWhere<EXTENDED> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let row = store.row_on(ask.key).await;
        let waits = row.is_some_and(|row| match EXTENDED {
            true => row.extends > 0 && row.info.expires_at_ms > now_ms(),
            false => row.info.expires_at_ms <= now_ms(),
        });
        match waits {
            true => Waits.acquire(store, ask).await,
            false => store.acquire(ask).await,
        }
    }
}

/// Waits for the end of the tolerance, if that is no further away than this.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitsForTheEnd<const MILLIS: i64>;

impl<const MILLIS: i64> Fault for WaitsForTheEnd<MILLIS> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let holder = store.holder(ask.key).await;
        let dead_in_ms = holder.map(|held| held.expires_at_ms + TIME_TOLERANCE_MS - now_ms());
        if let Some(dead_in_ms @ 1..) = dead_in_ms.filter(|left| *left <= MILLIS) {
            tokio::time::sleep(Duration::from_millis(dead_in_ms.unsigned_abs())).await;
        }
        store.acquire(ask).await
    }
}

/// Returns `Locked`, and acquires the key once it is free.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiesInWait;

impl Fault for LiesInWait {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if answer.is_locked() {
            let (memory, key, id) = (store.memory.clone(), ask.key.clone(), *ask.id);
            tokio::spawn(async move {
                for _ in 0..200 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    if !memory.acquire(&key, &id, ask.ttl).await?.is_locked() {
                        break;
                    }
                }
                Answer::Ok(())
            });
        }
        Ok(answer)
    }
}

/// Gives the holder the contender's TTL.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContentionMovesTtl;

impl Fault for ContentionMovesTtl {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if let Some(holder) = store.holder(ask.key).await.filter(|_| answer.is_locked()) {
            let _ = store.memory.extend(&holder.lock_id, ask.ttl).await?;
        }
        Ok(answer)
    }
}

/// Writes its index entry before it checks whether the key is free.
#[derive(Debug, Clone, Default)]
pub(crate) struct IndexesLosers(Arc<Mutex<HashMap<LockId, LockKey>>>);

impl Fault for IndexesLosers {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.0.lock().unwrap().insert(*ask.id, ask.key.clone());
        store.acquire(ask).await
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let asked = self.0.lock().unwrap().remove(id);
        let holder = match asked {
            Some(key) => store.holder(&key).await,
            None => None,
        };
        let id = holder.map_or(*id, |holder| holder.lock_id);
        store.memory.release(&id).await
    }
}

/// Keeps a call whose future was dropped in a queue, and sends it long after its deadline. Or it does so soon, and only
/// while the key is held.
#[derive(Debug, Clone, Default)]
pub(crate) struct ArrivesLate<const CONTENDED: bool>;

/// Sends what is left in it some time after it is dropped.
struct Queue<'a>(Option<(&'a Store, Ask<'a>)>, Duration);

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        let (Some((store, ask)), pause) = (self.0.take(), self.1) else {
            return;
        };
        let (memory, key, id) = (store.memory.clone(), ask.key.clone(), *ask.id);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            // Again and again, as a driver does that retries.
            for _ in 0..100 {
                let _ = memory.acquire(&key, &id, ask.ttl).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
    }
}

impl<const CONTENDED: bool> Fault for ArrivesLate<CONTENDED> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let queues = !CONTENDED || store.holder(ask.key).await.is_some();
        let pause = Duration::from_millis(if CONTENDED { 20 } else { 5_000 });
        let mut queue = Queue(queues.then_some((store, ask)), pause);
        tokio::time::sleep(Duration::from_millis(2)).await;
        queue.0 = None;
        store.acquire(ask).await
    }
}

/// Marks the key in its client while it asks: after an acquire that was dropped, that client finds it held.
#[derive(Debug, Clone, Default)]
pub(crate) struct StaysUnderWay(Arc<Mutex<HashSet<LockKey>>>);

impl Fault for StaysUnderWay {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if !self.0.lock().unwrap().insert(ask.key.clone()) {
            return Ok(AcquireResult::locked());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        let answer = store.acquire(ask).await;
        self.0.lock().unwrap().remove(ask.key);
        answer
    }
}

/// Writes the index in a second step: an acquire that is dropped before it leaves a lock that no
/// release finds.
#[derive(Debug, Clone, Default)]
pub(crate) struct IndexesLater(Arc<Mutex<HashSet<LockId>>>);

impl Fault for IndexesLater {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.0.lock().unwrap().insert(*ask.id);
        answer
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        if !self.0.lock().unwrap().contains(id) {
            return Ok(NOT_RELEASED);
        }
        store.memory.release(id).await
    }
}

/// Keeps one lock per id: an acquire of a second key removes the first lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct MovesTheLock;

impl Fault for MovesTheLock {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if elsewhere(store, ask).await.is_some() {
            let _ = store.memory.release(ask.id).await?;
        }
        store.acquire(ask).await
    }
}

/// Counts an id that holds any key as the holder of each key that it asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrantsWhatOthersHold;

impl Fault for GrantsWhatOthersHold {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if elsewhere(store, ask).await.is_some() {
            return store.steal(ask).await;
        }
        store.acquire(ask).await
    }
}

/// The lock that the id holds on another key.
pub(crate) async fn elsewhere(store: &Store, ask: Ask<'_>) -> Option<LockInfoDebug> {
    let held = store.held_by(ask.id).await;
    held.filter(|held| held.key != *ask.key)
}

/// What a store does wrong when it refuses a second key to an id.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Harm {
    GivesTheFirstLockTheTtl,
    LeavesACounter,
    RemovesTheCounter,
}

async fn refuse_second(store: &Store, ask: Ask<'_>, harm: Harm) -> Answer<AcquireResult> {
    if elsewhere(store, ask).await.is_none() {
        return store.acquire(ask).await;
    }
    match harm {
        Harm::GivesTheFirstLockTheTtl => {
            let _ = store.memory.extend(ask.id, ask.ttl).await?;
        }
        Harm::LeavesACounter => store.leave(Part::Counter, ask.key, ask.key.as_str()),
        Harm::RemovesTheCounter => store.memory.set_fence_counter(ask.key, 0),
    }
    Err(LockError::invalid_argument("the id holds another key"))
}

/// Refuses a second key to an id, and gives the lock on the first one the TTL.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecondKeyMovesTheFirst;

impl Fault for SecondKeyMovesTheFirst {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        refuse_second(store, ask, Harm::GivesTheFirstLockTheTtl).await
    }
}

/// Refuses a second key to an id after it has made the counter of that key.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecondKeyLeavesACounter;

impl Fault for SecondKeyLeavesACounter {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        refuse_second(store, ask, Harm::LeavesACounter).await
    }
}

/// Refuses a second key to an id after it has removed the expired lock on that key, with its counter.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecondKeyResetsTheFence;

impl Fault for SecondKeyResetsTheFence {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        refuse_second(store, ask, Harm::RemovesTheCounter).await
    }
}

/// Fails with the conflict if an id acquires two keys at once.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecondKeyConflicts(Arc<Mutex<HashMap<LockId, LockKey>>>);

impl Fault for SecondKeyConflicts {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let earlier = self.0.lock().unwrap().insert(*ask.id, ask.key.clone());
        yield_now().await;
        self.0.lock().unwrap().remove(ask.id);
        if earlier.is_some_and(|earlier| earlier != *ask.key) {
            return Err(LockError::new(ErrorCode::Internal, "duplicate key"));
        }
        store.acquire(ask).await
    }
}

/// Returns a grant that it does not store.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrantIsNotKept;

impl Fault for GrantIsNotKept {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        let _ = store.memory.release(ask.id).await?;
        Ok(answer)
    }
}

/// Returns a grant that it stores a little later.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrantIsKeptLater;

impl Fault for GrantIsKeptLater {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if !answer.is_locked() {
            let _ = store.memory.release(ask.id).await?;
            let (memory, key, id, ttl) = (store.memory.clone(), ask.key.clone(), *ask.id, ask.ttl);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                memory.acquire(&key, &id, ttl).await
            });
        }
        Ok(answer)
    }
}

/// Grants the key beside the one that was asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrantsAnotherKey;

impl Fault for GrantsAnotherKey {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let key = LockKey::new(&format!("{}'", ask.key.as_str()));
        let key = key.unwrap_or_else(|_| ask.key.clone());
        store.acquire(Ask { key: &key, ..ask }).await
    }
}

/// Reuses an expired lock, and leaves the former id in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct TakeOverKeepsTheFormerId;

impl Fault for TakeOverKeepsTheFormerId {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let Some(former) = store.expired_on(ask.key).await else {
            return store.acquire(ask).await;
        };
        let id = &former.lock_id;
        let mut answer = store.acquire(Ask { id, ..ask }).await?;
        if let AcquireResult::Acquired(grant) = &mut answer {
            grant.lock_id = *ask.id;
        }
        Ok(answer)
    }
}

/// Refuses because of a lock, and removes that lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalReleases;

impl Fault for RefusalReleases {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if let Some(holder) = store.holder(ask.key).await.filter(|_| answer.is_locked()) {
            let _ = store.memory.release(&holder.lock_id).await?;
        }
        Ok(answer)
    }
}

/// Refuses because of a lock, and gives that lock the expiry that `moved` returns, if any.
async fn refuse_and_move(
    store: &Store,
    ask: Ask<'_>,
    moved: impl Fn(Row) -> Option<i64>,
) -> Answer<AcquireResult> {
    let answer = store.acquire(ask).await?;
    let row = store.row_on(ask.key).await.filter(|_| answer.is_locked());
    if let Some(row) = row {
        let id = row.info.lock_id;
        if let Some(expires_at_ms) = moved(row) {
            let left = lasting(expires_at_ms - now_ms());
            let _ = store.memory.extend(&id, left).await?;
        }
    }
    Ok(answer)
}

/// Refuses because of a lock, and shortens that lock by a millisecond.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalShortens;

impl Fault for RefusalShortens {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        refuse_and_move(store, ask, |row| Some(row.info.expires_at_ms - 1)).await
    }
}

/// Refuses because of an extended lock, and gives that lock its first expiry.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalUndoesExtends;

impl Fault for RefusalUndoesExtends {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let first = |row: Row| (row.extends > 0).then_some(row.first_expiry_ms);
        refuse_and_move(store, ask, first).await
    }
}

/// Refuses because of a lock that lasts for more than an hour, and rounds its expiry to seconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalRoundsTheLong;

impl Fault for RefusalRoundsTheLong {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let rounded = |row: Row| {
            let expires_at_ms = row.info.expires_at_ms;
            let is_long = expires_at_ms - now_ms() > 3_600_000;
            is_long.then_some(expires_at_ms / 1_000 * 1_000)
        };
        refuse_and_move(store, ask, rounded).await
    }
}

/// Grants a held key to another id if the holder has extended its lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct StealsTheExtended;

impl Fault for StealsTheExtended {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let row = store.row_on(ask.key).await;
        if row.is_some_and(|row| row.extends > 0 && row.info.lock_id != *ask.id) {
            return store.steal(ask).await;
        }
        store.acquire(ask).await
    }
}
