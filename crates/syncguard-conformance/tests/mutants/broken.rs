//! The memory store with a fault.

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex};

use syncguard_conformance::Harness;
use syncguard_core::{
    AcquireResult, AnyBackend, Capabilities, ExtendResult, Fence, LockBackend, LockError, LockId,
    LockInfoDebug, LockKey, Lookup, Managed, ReleaseResult, Ttl,
};
use syncguard_memory::MemoryStore;

/// What a fault works on: the store, and what an index that nobody cleans would still know.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) memory: MemoryStore,
    /// Every id that was ever granted a key, and until when.
    granted: Arc<Mutex<HashMap<LockId, (LockKey, i64)>>>,
}

impl Store {
    /// The key that was last granted to this id, held or not.
    pub(crate) fn key_of(&self, id: &LockId) -> Option<LockKey> {
        let granted = self.granted.lock().unwrap();
        granted.get(id).map(|(key, _)| key.clone())
    }

    /// The latest expiry that was ever granted on this key.
    pub(crate) fn last_expiry(&self, key: &LockKey) -> Option<i64> {
        let granted = self.granted.lock().unwrap();
        let of_key = granted.values().filter(|(granted, _)| granted == key);
        of_key.map(|(_, expires_at_ms)| *expires_at_ms).max()
    }

    pub(crate) fn forget(&self, id: &LockId) {
        self.granted.lock().unwrap().remove(id);
    }

    /// Who holds the key now.
    pub(crate) async fn holder(&self, key: &LockKey) -> Option<LockInfoDebug> {
        self.memory.lookup_raw(Lookup::Key(key)).await.unwrap()
    }
}

/// One fault: the operations that it gets wrong.
pub(crate) trait Fault: Debug + Clone + Default + Send + Sync + 'static {
    fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> impl Future<Output = Result<AcquireResult, LockError>> + Send {
        store.memory.acquire(key, id, ttl)
    }

    fn release(
        &self,
        store: &Store,
        id: &LockId,
    ) -> impl Future<Output = Result<ReleaseResult, LockError>> + Send {
        store.memory.release(id)
    }

    fn extend(
        &self,
        store: &Store,
        id: &LockId,
        ttl: Ttl,
    ) -> impl Future<Output = Result<ExtendResult, LockError>> + Send {
        store.memory.extend(id, ttl)
    }

    fn is_locked(
        &self,
        store: &Store,
        key: &LockKey,
    ) -> impl Future<Output = Result<bool, LockError>> + Send {
        store.memory.is_locked(key)
    }

    fn lookup_raw(
        &self,
        store: &Store,
        by: Lookup<'_>,
    ) -> impl Future<Output = Result<Option<LockInfoDebug>, LockError>> + Send {
        store.memory.lookup_raw(by)
    }
}

/// No fault.
#[derive(Debug, Clone, Default)]
pub(crate) struct None;

impl Fault for None {}

#[derive(Debug, Clone, Default)]
pub(crate) struct Broken<F> {
    store: Store,
    fault: F,
}

impl<F: Fault> LockBackend for Broken<F> {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        self.store.memory.capabilities()
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let answer = self.fault.acquire(&self.store, key, id, ttl).await?;
        if let AcquireResult::Acquired(grant) = &answer {
            let mut granted = self.store.granted.lock().unwrap();
            granted.insert(*id, (key.clone(), grant.expires_at_ms));
        }
        Ok(answer)
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        self.fault.release(&self.store, id).await
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        self.fault.extend(&self.store, id, ttl).await
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        self.fault.is_locked(&self.store, key).await
    }

    async fn lookup_raw(&self, by: Lookup<'_>) -> Result<Option<LockInfoDebug>, LockError> {
        self.fault.lookup_raw(&self.store, by).await
    }
}

/// Clients of one broken store. All mutants are one type here: the suite is compiled once.
pub(crate) struct BrokenHarness {
    memory: MemoryStore,
    connect: Box<dyn Fn() -> AnyBackend + Send + Sync>,
}

impl BrokenHarness {
    pub(crate) fn new<F: Fault>() -> Self {
        let broken = Broken::<F>::default();
        Self {
            memory: broken.store.memory.clone(),
            connect: Box::new(move || AnyBackend::new(Managed::new(broken.clone()))),
        }
    }
}

impl Harness for BrokenHarness {
    type Backend = AnyBackend;

    async fn connect(&self) -> Result<AnyBackend, LockError> {
        Ok((self.connect)())
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        self.memory.set_fence_counter(key, counter);
        Ok(true)
    }
}
