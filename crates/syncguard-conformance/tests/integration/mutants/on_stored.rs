//! Faults that no answer shows: what is left in the store.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::backend::{AcquireResult, ListPage, Lookup, Watch};
use syncguard_core::{ExtendResult, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl};
use tokio::task::yield_now;

use super::broken::Fault;
use super::on_clearing::purgeable;
use super::store::{Answer, Ask, Part, Store, Wanted, now_ms};

const LATER: Duration = Duration::from_millis(300);

/// Leaves an entry that is removed later.
fn leave_for_a_while(store: &Store, part: Part, key: &LockKey, id: LockId) {
    store.leave(part, key, id.as_str());
    let store = store.clone();
    tokio::spawn(async move {
        tokio::time::sleep(LATER).await;
        store.remove(part, id.as_str());
    });
}

/// Removes the index entry in the background.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseUnindexesLater;

impl Fault for ReleaseUnindexesLater {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let held = store.held_by(id).await;
        if let Some(held) = held {
            leave_for_a_while(store, Part::IndexEntry, &held.key, *id);
        }
        store.memory.release(id).await
    }
}

/// Removes the lock, and not its index entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseLeavesTheIndex;

impl Fault for ReleaseLeavesTheIndex {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        if let Some(held) = store.held_by(id).await {
            store.leave(Part::IndexEntry, &held.key, id.as_str());
        }
        store.memory.release(id).await
    }
}

/// Keeps the counter with the lock, and between two locks in the client.
#[derive(Debug, Clone, Default)]
pub(crate) struct CounterGoesWithTheLock;

impl Fault for CounterGoesWithTheLock {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        store.remove(Part::NoCounter, ask.key.as_str());
        Ok(answer)
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        if let Some(held) = store.held_by(id).await {
            store.leave(Part::NoCounter, &held.key, held.key.as_str());
        }
        store.memory.release(id).await
    }
}

/// Counts by a row for each grant.
#[derive(Debug, Clone, Default)]
pub(crate) struct EveryGrantHasACounter;

impl Fault for EveryGrantHasACounter {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &answer
            && grant.fence.get() > 1
        {
            store.leave(Part::Counter, ask.key, ask.id.as_str());
        }
        Ok(answer)
    }
}

/// Keeps a counter for each client that acquires the key.
#[derive(Debug, Clone, Default)]
pub(crate) struct EveryClientHasACounter {
    clients: Arc<AtomicU64>,
    own: u64,
}

impl Fault for EveryClientHasACounter {
    fn connect(&self) -> Self {
        let own = self.clients.fetch_add(1, Ordering::SeqCst) + 1;
        let clients = Arc::clone(&self.clients);
        Self { clients, own }
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &answer
            && grant.fence.get() > 1
        {
            let name = format!("{} of {}", ask.key.as_str(), self.own);
            store.leave(Part::Counter, ask.key, name);
        }
        Ok(answer)
    }
}

/// Marks the row as released, and replaces it with the key's next lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct LatestLockStays;

impl Fault for LatestLockStays {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        store.remove(Part::Lock, ask.key.as_str());
        Ok(answer)
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        if let Some(held) = store.held_by(id).await {
            store.leave(Part::Lock, &held.key, held.key.as_str());
        }
        store.memory.release(id).await
    }
}

/// Writes an index entry that ends with the new TTL, beside the one that a release removes.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendIndexesAnew;

impl Fault for ExtendIndexesAnew {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        if let Some(held) = store.held_by(id).await {
            store.leave(Part::IndexEntry, &held.key, id.as_str());
        }
        store.memory.extend(id, ttl).await
    }
}

/// Indexes every extend by the new expiry, and a release removes only the entries of the grant and of the latest one.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseForgetsFormerExtends(Arc<Mutex<HashSet<LockId>>>);

impl Fault for ReleaseForgetsFormerExtends {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let again = !self.0.lock().unwrap().insert(*id);
        if let Some(held) = store.held_by(id).await.filter(|_| again) {
            store.leave(Part::IndexEntry, &held.key, id.as_str());
        }
        store.memory.extend(id, ttl).await
    }
}

/// Finds the lock, and in the next step writes its index entry, there or not.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendIndexesTheReleased;

impl Fault for ExtendIndexesTheReleased {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let read = store.held_by(id).await;
        yield_now().await;
        let answer = store.memory.extend(id, ttl).await?;
        if let Some(read) = read.filter(|_| answer.expires_at_ms().is_none()) {
            store.leave(Part::IndexEntry, &read.key, id.as_str());
        }
        Ok(answer)
    }
}

/// Finds the lock of the id, and in the next step marks the key as released by it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseMarksTheReleased;

impl Fault for ReleaseMarksTheReleased {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let read = store.held_by(id).await;
        yield_now().await;
        let answer = store.memory.release(id).await?;
        if let Some(read) = read.filter(|_| !answer.is_released()) {
            store.leave(Part::Other, &read.key, id.as_str());
        }
        Ok(answer)
    }
}

/// Purges the locks, and not their index entries.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgingLeavesTheIndex;

impl Fault for PurgingLeavesTheIndex {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        for lock in purgeable(store).await {
            store.leave(Part::IndexEntry, &lock.key, lock.lock_id.as_str());
        }
        store.memory.purge_expired(limit).await
    }
}

/// Purges the locks, and not the marks of those whose keys were refused to others.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgingLeavesTheRefused(Arc<Mutex<HashSet<LockKey>>>);

impl Fault for PurgingLeavesTheRefused {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if answer.is_locked() {
            self.0.lock().unwrap().insert(ask.key.clone());
        }
        Ok(answer)
    }

    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        for lock in purgeable(store).await {
            if self.0.lock().unwrap().contains(&lock.key) {
                store.leave(Part::Other, &lock.key, lock.lock_id.as_str());
            }
        }
        store.memory.purge_expired(limit).await
    }
}

/// Purges by an index of the first expiry, which an extend leaves.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgingSkipsTheExtended;

impl Fault for PurgingSkipsTheExtended {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        for lock in purgeable(store).await {
            if store
                .row_of(&lock.lock_id)
                .is_some_and(|row| row.extends > 0)
            {
                store.leave(Part::Lock, &lock.key, lock.lock_id.as_str());
            }
        }
        store.memory.purge_expired(limit).await
    }
}

/// Finds expired locks, and in the next step forgets the index entries of those whose keys have new holders.
#[derive(Debug, Clone, Default)]
pub(crate) struct PurgingForgetsTheTakenOver;

impl Fault for PurgingForgetsTheTakenOver {
    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        let found = purgeable(store).await;
        yield_now().await;
        for lock in found {
            if store.holder(&lock.key).await.is_some() {
                store.leave(Part::IndexEntry, &lock.key, lock.lock_id.as_str());
            }
        }
        store.memory.purge_expired(limit).await
    }
}

/// Replaces an expired lock, and leaves the index entry of the former holder.
#[derive(Debug, Clone, Default)]
pub(crate) struct TakeOverLeavesTheIndex;

impl Fault for TakeOverLeavesTheIndex {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let former = store.expired_on(ask.key).await;
        let answer = store.acquire(ask).await?;
        if let Some(former) = former.filter(|_| !answer.is_locked()) {
            store.leave(Part::IndexEntry, ask.key, former.lock_id.as_str());
        }
        Ok(answer)
    }
}

/// Replaces an expired lock, and leaves it if it had replaced one itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecondTakeOverLeavesTheLock(Arc<Mutex<HashSet<LockId>>>);

impl Fault for SecondTakeOverLeavesTheLock {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let former = store.expired_on(ask.key).await;
        let answer = store.acquire(ask).await?;
        if let Some(former) = former.filter(|_| !answer.is_locked()) {
            let mut successors = self.0.lock().unwrap();
            successors.insert(*ask.id);
            if successors.contains(&former.lock_id) {
                store.leave(Part::Lock, ask.key, former.lock_id.as_str());
            }
        }
        Ok(answer)
    }
}

/// Writes an index entry for an id that it refuses.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalsLeaveAnEntry;

impl Fault for RefusalsLeaveAnEntry {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if answer.is_locked() {
            store.leave(Part::IndexEntry, ask.key, ask.id.as_str());
        }
        Ok(answer)
    }
}

/// The same, if the lock's expiry has passed.
#[derive(Debug, Clone, Default)]
pub(crate) struct LateRefusalsLeaveAnEntry;

impl Fault for LateRefusalsLeaveAnEntry {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        let holder = store.holder(ask.key).await.filter(|_| answer.is_locked());
        if holder.is_some_and(|held| held.expires_at_ms <= now_ms()) {
            store.leave(Part::IndexEntry, ask.key, ask.id.as_str());
        }
        Ok(answer)
    }
}

/// Writes an index entry for an id before it finds the counter at its end.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExhaustedAcquiresLeaveAnEntry;

impl Fault for ExhaustedAcquiresLeaveAnEntry {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await;
        if answer.is_err() {
            store.leave(Part::IndexEntry, ask.key, ask.id.as_str());
        }
        answer
    }
}

/// Writes an index entry for an id that it refuses, and removes it in the background.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusalsAreClearedLater;

impl Fault for RefusalsAreClearedLater {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if answer.is_locked() {
            leave_for_a_while(store, Part::IndexEntry, ask.key, *ask.id);
        }
        Ok(answer)
    }
}

/// Notes at the key which id was refused last.
#[derive(Debug, Clone, Default)]
pub(crate) struct LatestRefusalIsKept;

impl Fault for LatestRefusalIsKept {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if answer.is_locked() {
            store.leave(Part::Other, ask.key, ask.key.as_str());
        }
        Ok(answer)
    }
}

/// Makes the counter of each key that it is asked about.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadsMakeCounters;

impl Fault for ReadsMakeCounters {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        if !store.has_counter(key) {
            store.leave(Part::Counter, key, key.as_str());
        }
        store.memory.is_locked(key).await
    }
}

/// Makes the counter of each key that is watched.
#[derive(Debug, Clone, Default)]
pub(crate) struct WatchesMakeCounters;

impl Fault for WatchesMakeCounters {
    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        if !store.has_counter(key) {
            store.leave(Part::Counter, key, key.as_str());
        }
        store.memory.watch(key).await
    }
}

/// Notes an expired lock that it is asked about, for a clean-up.
#[derive(Debug, Clone, Default)]
pub(crate) struct LateLookupsLeaveAnEntry;

impl Fault for LateLookupsLeaveAnEntry {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let found = store.memory.lookup_raw(by).await?;
        if let (Lookup::Id(id), None) = (by, &found)
            && let Some(row) = store.row_of(id).filter(|row| !row.released)
        {
            store.leave(Part::Other, &row.info.key, id.as_str());
        }
        Ok(found)
    }
}

/// Stores where a page ended, until the listing ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListingsLeaveACursor;

impl Fault for ListingsLeaveACursor {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let page = store.memory.list(wanted).await?.expect("it lists");
        let cursor = format!("cursor of {:?}", wanted.prefix.as_str());
        store.remove(Part::Other, &cursor);
        if let Some(last) = page.locks.last().filter(|_| page.next.is_some()) {
            store.leave(Part::Other, &last.key, &cursor);
        }
        Ok(Some(page))
    }
}

/// Leaves an entry for an id that holds nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailedExtendsLeaveAnEntry;

impl Fault for FailedExtendsLeaveAnEntry {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let answer = store.memory.extend(id, ttl).await?;
        if let Some(key) = store
            .key_of(id)
            .filter(|_| answer.expires_at_ms().is_none())
        {
            store.leave(Part::IndexEntry, &key, id.as_str());
        }
        Ok(answer)
    }
}

/// The same, if the lease has expired.
#[derive(Debug, Clone, Default)]
pub(crate) struct LateExtendsLeaveAnEntry;

impl Fault for LateExtendsLeaveAnEntry {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let answer = store.memory.extend(id, ttl).await?;
        let row = store.row_of(id).filter(|row| !row.released);
        if let Some(row) = row.filter(|_| answer.expires_at_ms().is_none()) {
            store.leave(Part::IndexEntry, &row.info.key, id.as_str());
        }
        Ok(answer)
    }
}

/// The same, if the lock was taken over.
#[derive(Debug, Clone, Default)]
pub(crate) struct OverrunExtendsLeaveAnEntry;

impl Fault for OverrunExtendsLeaveAnEntry {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let answer = store.memory.extend(id, ttl).await?;
        let row = store.row_of(id).filter(|row| !row.released);
        if let Some(row) = row.filter(|_| answer.expires_at_ms().is_none())
            && store.holder(&row.info.key).await.is_some()
        {
            store.leave(Part::IndexEntry, &row.info.key, id.as_str());
        }
        Ok(answer)
    }
}

/// Stores each id whose release found no lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailedReleasesLeaveATombstone;

impl Fault for FailedReleasesLeaveATombstone {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let answer = store.memory.release(id).await?;
        if let Some(key) = store.key_of(id).filter(|_| !answer.is_released()) {
            store.leave(Part::Other, &key, id.as_str());
        }
        Ok(answer)
    }
}

/// Never ends a watch.
#[derive(Debug, Clone, Default)]
pub(crate) struct WatchesAreKept;

impl Fault for WatchesAreKept {
    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        store.leave(Part::Other, key, key.as_str());
        store.memory.watch(key).await
    }
}

/// Writes the index entry first, and the lock in the next step.
#[derive(Debug, Clone, Default)]
pub(crate) struct AbandonedAcquiresLeaveTheIndex;

impl Fault for AbandonedAcquiresLeaveTheIndex {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        store.leave(Part::IndexEntry, ask.key, ask.id.as_str());
        // `Locks` polls a call twice before it waits for it.
        for _ in 0..3 {
            yield_now().await;
        }
        let answer = store.acquire(ask).await;
        store.remove(Part::IndexEntry, ask.id.as_str());
        answer
    }
}

/// Removes the lock first, and its index entry in the next step.
#[derive(Debug, Clone, Default)]
pub(crate) struct AbandonedReleasesLeaveTheIndex;

impl Fault for AbandonedReleasesLeaveTheIndex {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let held = store.held_by(id).await;
        let answer = store.memory.release(id).await;
        if let Some(held) = held {
            store.leave(Part::IndexEntry, &held.key, id.as_str());
            // `Locks` polls a call twice before it waits for it.
            for _ in 0..3 {
                yield_now().await;
            }
            store.remove(Part::IndexEntry, id.as_str());
        }
        answer
    }
}

/// Marks a key while several ask for it at once, and the mark stays if one of them is refused.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContendersLeaveMarks(Arc<Mutex<HashMap<String, u64>>>);

impl Fault for ContendersLeaveMarks {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let count = |by: fn(u64) -> u64| {
            let mut asking = self.0.lock().unwrap();
            let count = asking.entry(ask.key.as_str().to_owned()).or_default();
            *count = by(*count);
            *count
        };
        let alone = count(|count| count + 1) == 1;
        yield_now().await;
        let answer = store.acquire(ask).await;
        count(|count| count - 1);
        if !alone && answer.as_ref().is_ok_and(AcquireResult::is_locked) {
            store.leave(Part::Other, ask.key, ask.key.as_str());
        }
        answer
    }
}
