//! The memory store with a fault.

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use syncguard_conformance::Harness;
use syncguard_core::{
    AcquireResult, AnyBackend, Capabilities, ExtendResult, Fence, LockBackend, LockError, LockId,
    LockInfo, LockInfoDebug, LockKey, Lookup, Managed, ManagedBackend, Observer, Policy,
    ReleaseResult, Ttl,
};
use syncguard_memory::MemoryStore;

pub(crate) type Answer<T> = Result<T, LockError>;

/// What an acquire asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) key: &'a LockKey,
    pub(crate) id: &'a LockId,
    pub(crate) ttl: Ttl,
}

/// What a fault works on: the store, and what a table that nobody cleans would still know.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) memory: MemoryStore,
    rows: Arc<Mutex<HashMap<LockId, Row>>>,
}

/// The last that was granted to an id.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) info: LockInfoDebug,
    pub(crate) released: bool,
}

impl Store {
    pub(crate) async fn acquire(&self, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.memory.acquire(ask.key, ask.id, ask.ttl).await
    }

    /// Takes the key, whoever holds it.
    pub(crate) async fn steal(&self, ask: Ask<'_>) -> Answer<AcquireResult> {
        if let Some(holder) = self.holder(ask.key).await {
            let _ = self.memory.release(&holder.lock_id).await?;
        }
        self.acquire(ask).await
    }

    /// Who holds the key now.
    pub(crate) async fn holder(&self, key: &LockKey) -> Option<LockInfoDebug> {
        self.memory.lookup_raw(Lookup::Key(key)).await.unwrap()
    }

    /// What the id holds now.
    pub(crate) async fn held_by(&self, id: &LockId) -> Option<LockInfoDebug> {
        self.memory.lookup_raw(Lookup::Id(id)).await.unwrap()
    }

    /// The last grant of an id, held or not.
    pub(crate) fn row_of(&self, id: &LockId) -> Option<Row> {
        self.rows.lock().unwrap().get(id).cloned()
    }

    /// The key that was last granted to this id, held or not.
    pub(crate) fn key_of(&self, id: &LockId) -> Option<LockKey> {
        self.row_of(id).map(|row| row.info.key)
    }

    /// The grants that nobody gave back, run out or not.
    pub(crate) fn unreleased(&self) -> Vec<LockInfoDebug> {
        let rows = self.rows.lock().unwrap();
        let unreleased = rows.values().filter(|row| !row.released);
        unreleased.map(|row| row.info.clone()).collect()
    }

    /// The latest grant on the key, unless it was given back.
    pub(crate) fn unreleased_on(&self, key: &LockKey) -> Option<LockInfoDebug> {
        let of_key = self.unreleased().into_iter().filter(|row| row.key == *key);
        of_key.max_by_key(|row| row.expires_at_ms)
    }
}

/// The store's time.
pub(crate) fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

/// The nearest TTL there is.
pub(crate) fn lasting(millis: i64) -> Ttl {
    Ttl::new(Duration::from_millis(millis.max(1).unsigned_abs())).unwrap_or(Ttl::MAX)
}

pub(crate) const NOT_EXTENDED: ExtendResult = ExtendResult::NotHeld { reason: None };
pub(crate) const NOT_RELEASED: ReleaseResult = ReleaseResult::NotHeld { reason: None };

/// One fault: the operations that it gets wrong.
pub(crate) trait Fault: Debug + Clone + Default + Send + Sync + 'static {
    /// Whether the shared policy stands around it.
    const MANAGED: bool = true;

    /// The fault as a new client has it.
    fn connect(&self) -> Self {
        self.clone()
    }

    fn acquire(
        &self,
        store: &Store,
        ask: Ask<'_>,
    ) -> impl Future<Output = Answer<AcquireResult>> + Send {
        store.acquire(ask)
    }

    fn release(
        &self,
        store: &Store,
        id: &LockId,
    ) -> impl Future<Output = Answer<ReleaseResult>> + Send {
        store.memory.release(id)
    }

    fn extend(
        &self,
        store: &Store,
        id: &LockId,
        ttl: Ttl,
    ) -> impl Future<Output = Answer<ExtendResult>> + Send {
        store.memory.extend(id, ttl)
    }

    fn is_locked(&self, store: &Store, key: &LockKey) -> impl Future<Output = Answer<bool>> + Send {
        store.memory.is_locked(key)
    }

    fn lookup_raw(
        &self,
        store: &Store,
        by: Lookup<'_>,
    ) -> impl Future<Output = Answer<Option<LockInfoDebug>>> + Send {
        store.memory.lookup_raw(by)
    }

    /// What is shown of a lock that was looked up.
    fn show(&self, info: &LockInfoDebug) -> LockInfo {
        info.sanitized()
    }
}

/// No fault.
#[derive(Debug, Clone, Default)]
pub(crate) struct NoFault;

impl Fault for NoFault {}

#[derive(Debug, Clone, Default)]
pub(crate) struct Broken<F> {
    store: Store,
    fault: F,
    policy: Policy,
}

#[deny(clippy::missing_trait_methods)]
impl<F: Fault> LockBackend for Broken<F> {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        self.store.memory.capabilities()
    }

    fn clock_skew_ms(&self) -> Option<i64> {
        None
    }

    async fn acquire(&self, key: &LockKey, id: &LockId, ttl: Ttl) -> Answer<AcquireResult> {
        let answer = self
            .fault
            .acquire(&self.store, Ask { key, id, ttl })
            .await?;
        if let AcquireResult::Acquired(grant) = &answer {
            let info = LockInfoDebug {
                key: key.clone(),
                lock_id: *id,
                expires_at_ms: grant.expires_at_ms,
                acquired_at_ms: grant.expires_at_ms - ttl.as_millis(),
                fence: grant.fence,
            };
            let released = false;
            let mut rows = self.store.rows.lock().unwrap();
            rows.insert(*id, Row { info, released });
        }
        Ok(answer)
    }

    async fn release(&self, id: &LockId) -> Answer<ReleaseResult> {
        let answer = self.fault.release(&self.store, id).await?;
        let mut rows = self.store.rows.lock().unwrap();
        if let Some(row) = rows.get_mut(id).filter(|_| answer.is_released()) {
            row.released = true;
        }
        Ok(answer)
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let answer = self.fault.extend(&self.store, id, ttl).await?;
        let mut rows = self.store.rows.lock().unwrap();
        if let (Some(row), Some(expires_at_ms)) = (rows.get_mut(id), answer.expires_at_ms()) {
            row.info.expires_at_ms = expires_at_ms;
        }
        Ok(answer)
    }

    async fn is_locked(&self, key: &LockKey) -> Answer<bool> {
        self.fault.is_locked(&self.store, key).await
    }

    async fn lookup_raw(&self, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        self.fault.lookup_raw(&self.store, by).await
    }

    async fn lookup(&self, by: Lookup<'_>) -> Answer<Option<LockInfo>> {
        let found = self.lookup_raw(by).await?;
        Ok(found.map(|info| self.fault.show(&info)))
    }
}

impl<F: Fault> ManagedBackend for Broken<F> {
    fn policy(&self) -> &Policy {
        &self.policy
    }

    fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.policy = self.policy.with_observer(observer);
        self
    }
}

/// Clients of one broken store. All mutants are one type here: the suite is compiled once.
pub(crate) struct BrokenHarness {
    memory: MemoryStore,
    connect: Box<dyn Fn() -> AnyBackend + Send + Sync>,
}

impl BrokenHarness {
    pub(crate) fn new<F: Fault>() -> Self {
        let (store, fault) = (Store::default(), F::default());
        Self {
            memory: store.memory.clone(),
            connect: Box::new(move || {
                let client = Broken {
                    store: store.clone(),
                    fault: fault.connect(),
                    policy: Policy::new(),
                };
                if F::MANAGED {
                    AnyBackend::new(Managed::new(client))
                } else {
                    AnyBackend::new(client)
                }
            }),
        }
    }
}

impl Harness for BrokenHarness {
    type Backend = AnyBackend;

    async fn connect(&self) -> Answer<AnyBackend> {
        Ok((self.connect)())
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Answer<bool> {
        self.memory.set_fence_counter(key, counter);
        Ok(true)
    }
}
