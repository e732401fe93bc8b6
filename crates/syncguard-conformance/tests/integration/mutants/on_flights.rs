//! Faults of reads that meet another call under way.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use syncguard_core::backend::{AcquireResult, ListPage, Lookup};
use syncguard_core::{ExtendResult, LockId, LockInfoDebug, LockKey, Ttl};
use tokio::task::yield_now;

use super::broken::Fault;
use super::store::{Answer, Ask, Store, Wanted};

/// Runs something when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// What the reads that are under way have found.
#[derive(Debug, Clone)]
struct Flights<K, A>(Arc<Mutex<HashMap<K, A>>>);

impl<K, A> Default for Flights<K, A> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Hash + Eq + Clone, A: Clone> Flights<K, A> {
    /// What a read that is under way has found, or else what this one finds.
    async fn join(&self, wanted: K, read: impl Future<Output = Answer<A>>) -> Answer<A> {
        let joined = self.0.lock().unwrap().get(&wanted).cloned();
        if let Some(found) = joined {
            return Ok(found);
        }
        let found = read.await?;
        self.begin(&wanted, &found);
        let _end = OnDrop(|| {
            self.0.lock().unwrap().remove(&wanted);
        });
        yield_now().await;
        Ok(found)
    }

    fn begin(&self, wanted: &K, found: &A) {
        let mut flights = self.0.lock().unwrap();
        flights.insert(wanted.clone(), found.clone());
    }
}

/// Joins another `is_locked` of the client.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsLockedJoins(Flights<LockKey, bool>);

impl Fault for IsLockedJoins {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        self.0.join(key.clone(), store.memory.is_locked(key)).await
    }
}

/// Joins another lookup of the client by the same id.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookupJoins(Flights<LockId, Option<LockInfoDebug>>);

impl Fault for LookupJoins {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        match by {
            Lookup::Key(_) => store.memory.lookup_raw(by).await,
            Lookup::Id(id) => self.0.join(*id, store.memory.lookup_raw(by)).await,
        }
    }
}

/// Joins another listing of the client.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListingJoins(Flights<(String, u32), Option<ListPage>>);

impl Fault for ListingJoins {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        if wanted.after.is_some() {
            return store.memory.list(wanted).await;
        }
        let name = (wanted.prefix.as_str().to_owned(), wanted.limit);
        self.0.join(name, store.memory.list(wanted)).await
    }
}

/// Repeats what an `is_locked` of the client found that was dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsLockedRepeatsTheDropped(Arc<Mutex<HashMap<LockKey, bool>>>);

impl Fault for IsLockedRepeatsTheDropped {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let dropped = self.0.lock().unwrap().get(key).copied();
        if let Some(found) = dropped {
            return Ok(found);
        }
        let found = store.memory.is_locked(key).await?;
        let end = OnDrop(|| {
            self.0.lock().unwrap().insert(key.clone(), found);
        });
        yield_now().await;
        drop(end);
        self.0.lock().unwrap().remove(key);
        Ok(found)
    }
}

/// The locks whose index entries are not written yet.
#[derive(Debug, Clone, Default)]
struct Unindexed(Arc<Mutex<HashSet<LockId>>>);

impl Unindexed {
    /// Writes the index entry in the step after the call's.
    async fn during<A>(&self, id: &LockId, call: impl Future<Output = A>) -> A {
        self.0.lock().unwrap().insert(*id);
        let answer = call.await;
        yield_now().await;
        self.0.lock().unwrap().remove(id);
        answer
    }

    fn has(&self, id: &LockId) -> bool {
        self.0.lock().unwrap().contains(id)
    }

    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        match by {
            Lookup::Id(id) if self.has(id) => Ok(None),
            _ => store.memory.lookup_raw(by).await,
        }
    }
}

/// Writes the lock, and in the next step the entry by which a lookup finds it.
#[derive(Debug, Clone, Default)]
pub(crate) struct AcquireIndexesAfterwards(Unindexed);

impl Fault for AcquireIndexesAfterwards {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.0.during(ask.id, store.acquire(ask)).await
    }

    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        self.0.lookup_raw(store, by).await
    }
}

/// Replaces the entry by which a lookup finds the lock, in two steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendReindexes(Unindexed);

impl Fault for ExtendReindexes {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        self.0.during(id, store.memory.extend(id, ttl)).await
    }

    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        self.0.lookup_raw(store, by).await
    }
}

/// Replaces the entry by which a listing finds the lock, in two steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendRelists(Unindexed);

impl Fault for ExtendRelists {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        self.0.during(id, store.memory.extend(id, ttl)).await
    }

    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let mut page = store.memory.list(wanted).await?;
        if let Some(page) = &mut page {
            page.locks.retain(|lock| !self.0.has(&lock.lock_id));
        }
        Ok(page)
    }
}
