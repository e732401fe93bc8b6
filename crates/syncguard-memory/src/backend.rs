//! The contract, implemented in memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::btree_map::{self, BTreeMap};
use std::collections::hash_map::{self, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, mem};

use foldhash::fast::RandomState;
use syncguard_core::backend::{
    AcquireRequest, AcquireResult, CLEANUP_GUARD_MS, Capabilities, ExtendRequest, FailureReason,
    Grant, IsLockedRequest, ListPage, ListPosition, ListRequest, LockBackend, Lookup,
    LookupRequest, MAX_PAGE_SIZE, PreflightRequest, PurgeRequest, ReleaseRequest, Reporter,
    TIME_TOLERANCE_MS, TimeAuthority, Watch, WatchKey, WatchRequest, Watcher, Watchers, is_live,
};
use syncguard_core::{
    ExtendResult, Fence, Finding, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult,
    Severity,
};

use crate::clock::{Clock, ManualClock};

/// A store of locks in this process. Clones share it.
#[derive(Clone)]
pub struct MemoryBackend {
    state: Arc<Mutex<State>>,
    watchers: Watchers,
    clock: Clock,
}

/// What a store keeps of some keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// Locks, and those that have expired and were not removed yet.
    pub locks: usize,
    /// Lock ids that lead to them.
    pub ids: usize,
    /// Fence counters. They stay.
    pub fence_counters: usize,
    /// Keys that a caller waits for.
    pub watched: usize,
}

/// Up to this many locks, expired ones are kept: a late release or extend can then say that the lease expired.
const LEAST_SWEPT: usize = 64;

/// Among more locks, an expired one is kept this long for the same reason, unless it is purged. Below 7.1 s, the
/// conformance suite could not tell a purge that deletes it from another call.
const KEPT_MS: i64 = 10_000;

/// The most entries that one call looks at to remove expired locks.
const SWEPT_AT_ONCE: usize = 16;

#[derive(Default)]
struct State {
    /// Ordered, for listings.
    locks: BTreeMap<LockKey, Record>,
    // Hashing by the standard library takes a sixth of a pair's time. This hash has a random seed, too.
    holders: HashMap<LockId, LockKey, RandomState>,
    fence_counters: HashMap<LockKey, u64, RandomState>,
    /// When locks expire, the earliest first. Every lock has an entry, which may be too early if the lock was
    /// extended. Entries of locks that were released stay for a while: to find them would cost more.
    expiries: BinaryHeap<Reverse<(i64, LockKey)>>,
}

/// A live lock, found by its id.
struct Held<'a> {
    holder: hash_map::OccupiedEntry<'a, LockId, LockKey>,
    lock: btree_map::OccupiedEntry<'a, LockKey, Record>,
}

#[derive(Clone, Copy)]
struct Record {
    id: LockId,
    expires_at_ms: i64,
    acquired_at_ms: i64,
    fence: Fence,
}

impl MemoryBackend {
    /// An empty store on the machine's monotonic clock: steps of the system's time do not affect it. If a
    /// test pauses Tokio's clock, the store follows that.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: Arc::default(),
            watchers: Watchers::default(),
            clock: Clock::machine(),
        }
    }

    /// An empty store on a clock that a test moves.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> Self {
        Self {
            state: Arc::default(),
            watchers: Watchers::default(),
            clock: Clock::Manual(clock),
        }
    }

    /// Sets the fence counter of a key, as if the store had granted that many locks. For tests.
    pub fn set_fence_counter(&self, key: &LockKey, counter: u64) {
        self.lock().fence_counters.insert(key.clone(), counter);
    }

    /// Counts what the store keeps of the keys that begin with this text. For tests.
    #[must_use]
    pub fn kept(&self, beginning: &str) -> Kept {
        let begins = |key: &&LockKey| key.as_str().starts_with(beginning);
        let state = self.lock();
        let watched = self.watchers.watched();
        Kept {
            locks: state.locks.keys().filter(begins).count(),
            ids: state.holders.values().filter(begins).count(),
            fence_counters: state.fence_counters.keys().filter(begins).count(),
            watched: watched
                .iter()
                .filter(|key| key.starts_with(beginning))
                .count(),
        }
    }

    fn is_held(&self, key: &LockKey) -> bool {
        let state = self.lock();
        let now_ms = self.clock.now_ms();
        let held = state.locks.get(key);
        held.is_some_and(|held| held.is_live(now_ms))
    }

    /// The state, consistent even if another holder of the mutex panicked: no method leaves it half
    /// changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locks = self.lock().locks.len();
        f.debug_struct("MemoryBackend")
            .field("locks", &locks)
            .field("clock", &self.clock)
            .finish()
    }
}

impl Record {
    fn is_live(&self, now_ms: i64) -> bool {
        is_live(self.expires_at_ms, now_ms, TIME_TOLERANCE_MS)
    }

    fn grant(&self) -> Grant {
        Grant::new(self.id, self.expires_at_ms, self.fence)
    }

    fn info(&self, key: &LockKey) -> LockInfoDebug {
        LockInfoDebug::new(
            key.clone(),
            self.id,
            self.expires_at_ms,
            self.acquired_at_ms,
            self.fence,
        )
    }
}

impl State {
    /// Removes locks that expired before `until_ms`, the earliest first: at most `limit`, among at most `entries` entries.
    /// Returns how many it removed.
    fn sweep(&mut self, until_ms: i64, limit: usize, mut entries: usize) -> usize {
        let mut removed = 0;
        while removed < limit
            && entries > 0
            && let Some(Reverse((at_ms, _))) = self.expiries.peek()
            && *at_ms < until_ms
            && let Some(Reverse((_, key))) = self.expiries.pop()
        {
            entries -= 1;
            match self.locks.get(&key).copied() {
                Some(held) if held.expires_at_ms >= until_ms => {
                    self.expiries.push(Reverse((held.expires_at_ms, key)));
                }
                Some(expired) => {
                    self.locks.remove(&key);
                    self.holders.remove(&expired.id);
                    removed += 1;
                }
                None => {}
            }
        }
        removed
    }

    /// Removes some expired locks if there are many locks: more than one acquire can add.
    fn sweep_sometimes(&mut self, now_ms: i64) {
        if self.locks.len() > LEAST_SWEPT {
            self.sweep(now_ms.saturating_sub(KEPT_MS), SWEPT_AT_ONCE, SWEPT_AT_ONCE);
        }
    }

    /// Adds the expiry of a lock. Once most entries are of released locks, removes those.
    fn add_expiry(&mut self, key: LockKey, expires_at_ms: i64) {
        self.expiries.push(Reverse((expires_at_ms, key)));
        if self.expiries.len() > 2 * self.locks.len() + LEAST_SWEPT {
            self.expiries.clear();
            let locks = self.locks.iter();
            let expiries = locks.map(|(key, held)| Reverse((held.expires_at_ms, key.clone())));
            self.expiries.extend(expiries);
        }
    }

    /// The lock that `id` holds, or the reason why it holds none. Removes an expired lock.
    fn held_by(&mut self, id: &LockId, now_ms: i64) -> Result<Held<'_>, FailureReason> {
        let hash_map::Entry::Occupied(holder) = self.holders.entry(*id) else {
            return Err(FailureReason::NotFound);
        };
        // Verify the owner: the index alone does not prove it.
        let held = match self.locks.entry(holder.get().clone()) {
            btree_map::Entry::Occupied(lock) if lock.get().id == *id => Held { holder, lock },
            _ => return Err(FailureReason::NotFound),
        };
        if held.lock.get().is_live(now_ms) {
            return Ok(held);
        }
        held.remove();
        Err(FailureReason::Expired)
    }
}

impl Held<'_> {
    /// Removes the lock, and returns its key.
    fn remove(self) -> LockKey {
        self.lock.remove();
        self.holder.remove()
    }
}

impl LockBackend for MemoryBackend {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new("memory", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        let AcquireRequest { key, id, ttl, .. } = request;
        let mut state = self.lock();
        let now_ms = self.clock.now_ms();
        state.sweep_sometimes(now_ms);
        if let Some(held) = state.locks.get(key).filter(|held| held.is_live(now_ms)) {
            let ours = held.id == *id;
            return Ok(if ours {
                AcquireResult::Acquired(held.grant())
            } else {
                let free_at_ms = held.expires_at_ms.saturating_add(TIME_TOLERANCE_MS);
                let free_in_ms = u64::try_from(free_at_ms.saturating_sub(now_ms)).unwrap_or(1);
                AcquireResult::locked_for(Duration::from_millis(free_in_ms))
            });
        }
        let counter = state.fence_counters.entry(key.clone()).or_insert(0);
        let next = counter.saturating_add(1);
        let fence = Fence::from_counter(next)?;
        // Nothing can fail from here on.
        *counter = next;
        let held = Record {
            id: *id,
            expires_at_ms: now_ms.saturating_add(ttl.as_millis()),
            acquired_at_ms: now_ms,
            fence,
        };
        if let Some(expired) = state.locks.insert(key.clone(), held) {
            state.holders.remove(&expired.id);
        }
        state.holders.insert(*id, key.clone());
        state.add_expiry(key.clone(), held.expires_at_ms);
        Ok(AcquireResult::Acquired(held.grant()))
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        let mut state = self.lock();
        let now_ms = self.clock.now_ms();
        let result = match state.held_by(request.id, now_ms) {
            Ok(held) => {
                self.watchers.wake(held.remove().as_str());
                ReleaseResult::Released
            }
            Err(reason) => ReleaseResult::not_held(Some(reason)),
        };
        state.sweep_sometimes(now_ms);
        Ok(result)
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        let mut state = self.lock();
        let now_ms = self.clock.now_ms();
        let result = match state.held_by(request.id, now_ms) {
            Ok(mut held) => {
                let expires_at_ms = now_ms.saturating_add(request.ttl.as_millis());
                let before = mem::replace(&mut held.lock.get_mut().expires_at_ms, expires_at_ms);
                if expires_at_ms < before {
                    let key = held.lock.key().clone();
                    state.add_expiry(key, expires_at_ms);
                }
                ExtendResult::extended(expires_at_ms)
            }
            Err(reason) => ExtendResult::not_held(Some(reason)),
        };
        state.sweep_sometimes(now_ms);
        Ok(result)
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        let state = self.lock();
        let now_ms = self.clock.now_ms();
        let (key, asked) = match request.by {
            Lookup::Key(key) => (Some(key), None),
            Lookup::Id(id) => (state.holders.get(id), Some(*id)),
        };
        let found = key.and_then(|key| Some((key, state.locks.get(key)?)));
        Ok(found
            .filter(|(_, held)| held.is_live(now_ms))
            .filter(|(_, held)| asked.is_none_or(|id| id == held.id))
            .map(|(key, held)| held.info(key)))
    }

    async fn is_locked(&self, request: IsLockedRequest<'_>) -> Result<bool, LockError> {
        Ok(self.is_held(request.key))
    }

    async fn watch(&self, request: WatchRequest<'_>) -> Result<Option<Watch>, LockError> {
        Ok(Some(Watch::new(Watched {
            key: request.key.clone(),
            watcher: self.watchers.watch(request.key.as_str()),
            backend: self.clone(),
        })))
    }

    async fn list(&self, request: ListRequest<'_>) -> Result<Option<ListPage>, LockError> {
        let ListRequest {
            prefix,
            after,
            limit,
            ..
        } = request;
        let from = match after {
            Some(position) => Bound::Excluded(LockKey::new(position.as_str())?),
            None => LockKey::new(prefix.as_str()).map_or(Bound::Unbounded, Bound::Included),
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let state = self.lock();
        let now_ms = self.clock.now_ms();
        let of_prefix = state
            .locks
            .range((from, Bound::Unbounded))
            .take_while(|(key, _)| prefix.begins(key));
        let mut locks = Vec::new();
        for (looked_at, (key, held)) in (1..).zip(of_prefix) {
            if held.is_live(now_ms) {
                locks.push(held.info(key));
            }
            if locks.len() == limit || looked_at == MAX_PAGE_SIZE {
                let here = ListPosition::new(key.as_str().to_owned());
                return Ok(Some(ListPage::new(locks, Some(here))));
            }
        }
        Ok(Some(ListPage::new(locks, None)))
    }

    fn attach(&self, reporter: Reporter) {
        if let Clock::Manual(clock) = &self.clock {
            clock.attach(reporter);
        }
    }

    async fn purge_expired(&self, request: PurgeRequest) -> Result<u64, LockError> {
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        let mut state = self.lock();
        let until_ms = self.clock.now_ms().saturating_sub(CLEANUP_GUARD_MS);
        let purged = state.sweep(until_ms, limit, usize::MAX);
        Ok(u64::try_from(purged).unwrap_or(u64::MAX))
    }

    async fn preflight(&self, _: PreflightRequest) -> Result<Vec<Finding>, LockError> {
        Ok(vec![Finding::new(
            Severity::Info,
            "memory-one-process",
            "locks and fences live in this process, and end with it",
            "nothing, in a single process or in tests; between processes use another store",
        )])
    }
}

/// A key that a caller waits for.
struct Watched {
    key: LockKey,
    watcher: Watcher,
    backend: MemoryBackend,
}

impl WatchKey for Watched {
    async fn changed(&mut self) -> Result<(), LockError> {
        if self.backend.is_held(&self.key) {
            self.watcher.woken().await;
        }
        Ok(())
    }
}
