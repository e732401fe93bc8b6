//! Faults of what a client keeps to itself.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use syncguard_core::backend::AcquireResult;
use syncguard_core::{ExtendResult, LockId, LockKey, ReleaseResult, Ttl};

use super::broken::{Fault, NOT_EXTENDED, NOT_RELEASED};
use super::store::{Answer, Ask, Store};

/// Ties locks to its connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocksEndWithIt(Arc<Mutex<Session>>);

#[derive(Debug, Default)]
struct Session(Vec<(Store, LockId)>);

impl Drop for Session {
    fn drop(&mut self) {
        for (store, id) in &self.0 {
            let _ = store.memory.release(id).now_or_never();
        }
    }
}

impl Fault for LocksEndWithIt {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if !answer.is_locked() {
            let mut session = self.0.lock().unwrap();
            session.0.push((store.clone(), *ask.id));
        }
        Ok(answer)
    }
}

/// The ids of its own grants.
#[derive(Debug, Clone, Default)]
struct Own(Arc<Mutex<HashSet<LockId>>>);

impl Own {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if !answer.is_locked() {
            self.0.lock().unwrap().insert(*ask.id);
        }
        Ok(answer)
    }

    fn contains(&self, id: &LockId) -> bool {
        self.0.lock().unwrap().contains(id)
    }
}

/// Releases only locks that the same client acquired.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleasesItsOwn(Own);

impl Fault for ReleasesItsOwn {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.0.acquire(store, ask).await
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        if self.0.contains(id) {
            return store.memory.release(id).await;
        }
        Ok(NOT_RELEASED)
    }
}

/// Extends only locks that the same client acquired.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendsItsOwn(Own);

impl Fault for ExtendsItsOwn {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.0.acquire(store, ask).await
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        if self.0.contains(id) {
            return store.memory.extend(id, ttl).await;
        }
        Ok(NOT_EXTENDED)
    }
}

/// Reads the store once, and then returns that result.
#[derive(Debug, Clone, Default)]
pub(crate) struct CachesIsLocked(Arc<Mutex<HashMap<LockKey, bool>>>);

impl Fault for CachesIsLocked {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let locked = store.memory.is_locked(key).await?;
        let mut cache = self.0.lock().unwrap();
        Ok(*cache.entry(key.clone()).or_insert(locked))
    }
}

/// The fault of another one, only in one client of so many.
#[derive(Debug, Clone, Default)]
pub(crate) struct OneOf<F, const CLIENTS: usize, const NTH: usize> {
    fault: F,
    connected: Arc<AtomicUsize>,
    strikes: bool,
}

impl<F: Fault, const CLIENTS: usize, const NTH: usize> Fault for OneOf<F, CLIENTS, NTH> {
    fn connect(&self) -> Self {
        let number = self.connected.fetch_add(1, Ordering::SeqCst);
        Self {
            strikes: number % CLIENTS == NTH,
            ..self.clone()
        }
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        match self.strikes {
            true => self.fault.acquire(store, ask).await,
            false => store.acquire(ask).await,
        }
    }
}
