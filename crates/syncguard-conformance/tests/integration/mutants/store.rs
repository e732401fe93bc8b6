//! What a fault works on: the memory store, and a table that nobody cleans.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use syncguard_conformance::Stored;
use syncguard_core::backend::{
    AcquireRequest, AcquireResult, ExtendRequest, IsLockedRequest, ListPage, ListPosition,
    ListRequest, LockBackend, Lookup, LookupRequest, PurgeRequest, ReleaseRequest, Watch,
    WatchRequest,
};
use syncguard_core::list::KeyPrefix;
use syncguard_core::{ExtendResult, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl};
use syncguard_memory::{ManualClock, MemoryBackend};
use tokio::time::Instant;

pub(crate) type Answer<T> = Result<T, LockError>;

/// What an acquire asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) key: &'a LockKey,
    pub(crate) id: &'a LockId,
    pub(crate) ttl: Ttl,
}

/// What a listing asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) prefix: &'a KeyPrefix,
    pub(crate) after: Option<&'a ListPosition>,
    pub(crate) limit: u32,
}

/// The memory backend, called without requests: it needs no deadline. Its clock and that of the faults are one: a
/// fault of a millisecond strikes in the very millisecond.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    pub(super) backend: MemoryBackend,
    clock: ManualClock,
    moving: Arc<Mutex<()>>,
}

impl Default for Memory {
    fn default() -> Self {
        let clock = ManualClock::new();
        Self {
            backend: MemoryBackend::with_clock(clock.clone()),
            clock,
            moving: Arc::default(),
        }
    }
}

impl Memory {
    /// The backend, at the present time.
    fn now(&self) -> &MemoryBackend {
        let _moving = self.moving.lock().unwrap();
        let passed = u64::try_from(now_ms() - self.clock.now_ms()).unwrap_or(0);
        if passed > 0 {
            self.clock.advance(Duration::from_millis(passed));
        }
        &self.backend
    }

    pub(crate) async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Answer<AcquireResult> {
        let request = AcquireRequest::new(key, id, ttl, Instant::now());
        self.now().acquire(request).await
    }

    pub(crate) async fn release(&self, id: &LockId) -> Answer<ReleaseResult> {
        self.now()
            .release(ReleaseRequest::new(id, Instant::now()))
            .await
    }

    pub(crate) async fn extend(&self, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let request = ExtendRequest::new(id, ttl, Instant::now());
        self.now().extend(request).await
    }

    pub(crate) async fn is_locked(&self, key: &LockKey) -> Answer<bool> {
        let request = IsLockedRequest::new(key, Instant::now());
        self.now().is_locked(request).await
    }

    pub(crate) async fn lookup_raw(&self, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let request = LookupRequest::new(by, Instant::now());
        self.now().lookup_raw(request).await
    }

    pub(crate) async fn watch(&self, key: &LockKey) -> Answer<Option<Watch>> {
        self.now()
            .watch(WatchRequest::new(key, Instant::now()))
            .await
    }

    pub(crate) async fn list(&self, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let Wanted {
            prefix,
            after,
            limit,
        } = wanted;
        let request = ListRequest::new(prefix, after, limit, Instant::now());
        self.now().list(request).await
    }

    pub(crate) async fn purge_expired(&self, limit: u32) -> Answer<u64> {
        let request = PurgeRequest::new(limit, Instant::now());
        self.now().purge_expired(request).await
    }

    fn kept(&self, beginning: &str) -> Stored {
        crate::harness::counts(&self.backend, beginning)
    }

    pub(crate) fn set_fence_counter(&self, key: &LockKey, counter: u64) {
        self.backend.set_fence_counter(key, counter);
    }
}

/// What a fault works on: the store, and what a table that nobody cleans would still know.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) memory: Memory,
    pub(super) rows: Arc<Mutex<HashMap<LockId, Row>>>,
    left: Arc<Mutex<HashMap<(Part, String), LockKey>>>,
}

/// What a fault leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Lock,
    IndexEntry,
    Counter,
    /// The key's counter is missing.
    NoCounter,
    Other,
}

/// The last that was granted to an id.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) info: LockInfoDebug,
    pub(crate) released: bool,
    pub(crate) extends: u32,
    /// Its expiry before any extend.
    pub(crate) first_expiry_ms: i64,
}

impl Store {
    pub(crate) async fn acquire(&self, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.memory.acquire(ask.key, ask.id, ask.ttl).await
    }

    /// Acquires the key even if it is held.
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

    /// Leaves something of a key behind, under a name.
    pub(crate) fn leave(&self, part: Part, key: &LockKey, name: impl Display) {
        let mut left = self.left.lock().unwrap();
        left.insert((part, name.to_string()), key.clone());
    }

    /// Removes what was left under this name.
    pub(crate) fn remove(&self, part: Part, name: impl Display) {
        let mut left = self.left.lock().unwrap();
        left.remove(&(part, name.to_string()));
    }

    /// What the store keeps, and what was left behind.
    pub(super) fn stored(&self, beginning: &str) -> Stored {
        let mut stored = self.memory.kept(beginning);
        for ((part, _), key) in self.left.lock().unwrap().iter() {
            if key.as_str().starts_with(beginning) {
                match part {
                    Part::Lock => stored.locks += 1,
                    Part::IndexEntry => stored.index_entries += 1,
                    Part::Counter => stored.fence_counters += 1,
                    Part::NoCounter => stored.fence_counters -= 1,
                    Part::Other => stored.others += 1,
                }
            }
        }
        stored
    }

    /// Whether the key was ever granted.
    pub(crate) fn has_counter(&self, key: &LockKey) -> bool {
        self.memory.kept(key.as_str()).fence_counters > 0
    }

    /// Whether the store still keeps a lock on the key, live or not.
    pub(crate) fn keeps_lock(&self, key: &LockKey) -> bool {
        self.memory.kept(key.as_str()).locks > 0
    }

    /// The last grant of an id, held or not.
    pub(crate) fn row_of(&self, id: &LockId) -> Option<Row> {
        self.rows.lock().unwrap().get(id).cloned()
    }

    /// The row of the lock that holds the key now.
    pub(crate) async fn row_on(&self, key: &LockKey) -> Option<Row> {
        let holder = self.holder(key).await?;
        self.row_of(&holder.lock_id)
    }

    /// The row of a lease on the key that has expired, while nobody holds it.
    pub(crate) async fn expired_on(&self, key: &LockKey) -> Option<LockInfoDebug> {
        if self.holder(key).await.is_some() {
            return None;
        }
        self.unreleased_on(key)
    }

    /// The row of the latest grant on the key, unless it was released.
    pub(crate) fn unreleased_row_on(&self, key: &LockKey) -> Option<Row> {
        self.row_of(&self.unreleased_on(key)?.lock_id)
    }

    /// The row of the latest grant on the key.
    pub(crate) fn last_row_on(&self, key: &LockKey) -> Option<Row> {
        let rows = self.rows.lock().unwrap();
        let of_key = rows.values().filter(|row| row.info.key == *key);
        of_key.max_by_key(|row| row.info.fence).cloned()
    }

    /// The key that was last granted to this id, held or not.
    pub(crate) fn key_of(&self, id: &LockId) -> Option<LockKey> {
        self.row_of(id).map(|row| row.info.key)
    }

    /// The grants that nobody released, expired or not.
    pub(crate) fn unreleased(&self) -> Vec<LockInfoDebug> {
        let rows = self.rows.lock().unwrap();
        let unreleased = rows.values().filter(|row| !row.released);
        unreleased.map(|row| row.info.clone()).collect()
    }

    /// The latest grant on the key, unless it was released.
    pub(crate) fn unreleased_on(&self, key: &LockKey) -> Option<LockInfoDebug> {
        let rows = self.rows.lock().unwrap();
        let unreleased = rows.values().filter(|row| !row.released);
        let of_key = unreleased
            .map(|row| &row.info)
            .filter(|lock| lock.key == *key);
        of_key.max_by_key(|lock| lock.expires_at_ms).cloned()
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
