//! Faults of what callers that wait rely on.

use std::collections::HashMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::backend::{
    AcquireResult, TIME_TOLERANCE_MS, Watch, WatchKey, Watcher, Watchers,
};
use syncguard_core::{LockError, LockId, LockKey, ReleaseResult};
use tokio::sync::Notify;

use super::broken::Fault;
use super::store::{Answer, Ask, Row, Store, now_ms};

/// Says when the lease ends, and honours the tolerance after that.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForgetsTheTolerance;

impl Fault for ForgetsTheTolerance {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        Ok(match store.acquire(ask).await? {
            AcquireResult::Locked {
                free_in: Some(free_in),
                ..
            } => {
                let tolerance = Duration::from_millis(TIME_TOLERANCE_MS.unsigned_abs());
                AcquireResult::locked_for(free_in.saturating_sub(tolerance))
            }
            answer => answer,
        })
    }
}

/// Says that every key is free in a moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct PromisesTooMuch;

impl Fault for PromisesTooMuch {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        Ok(match store.acquire(ask).await? {
            AcquireResult::Locked { .. } => AcquireResult::locked_for(Duration::from_millis(1)),
            answer => answer,
        })
    }
}

/// Says that a key stays held for a minute.
#[derive(Debug, Clone, Default)]
pub(crate) struct PromisesTooLittle;

impl Fault for PromisesTooLittle {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        Ok(match store.acquire(ask).await? {
            AcquireResult::Locked { .. } => AcquireResult::locked_for(Duration::from_secs(60)),
            answer => answer,
        })
    }
}

struct Deaf;

impl WatchKey for Deaf {
    async fn changed(&mut self) -> Result<(), LockError> {
        std::future::pending().await
    }
}

/// Its watch notices no release.
#[derive(Debug, Clone, Default)]
pub(crate) struct HearsNothing;

impl Fault for HearsNothing {
    async fn watch(&self, _: &Store, _: &LockKey) -> Answer<Option<Watch>> {
        Ok(Some(Watch::new(Deaf)))
    }
}

struct Once(Watch, bool);

impl WatchKey for Once {
    async fn changed(&mut self) -> Result<(), LockError> {
        if self.1 {
            std::future::pending::<()>().await;
        }
        self.1 = true;
        self.0.changed().await
    }
}

/// Its watch notices one release, and no later one.
#[derive(Debug, Clone, Default)]
pub(crate) struct HearsOnce;

impl Fault for HearsOnce {
    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        let watch = store.memory.watch(key).await?;
        Ok(watch.map(|watch| Watch::new(Once(watch, false))))
    }
}

/// Its watch notices releases, but does not read whether the key is free already.
#[derive(Debug, Clone, Default)]
pub(crate) struct DoesNotLook;

impl Fault for DoesNotLook {
    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        if store.holder(key).await.is_none() {
            return Ok(Some(Watch::new(Deaf)));
        }
        store.memory.watch(key).await
    }
}

/// Says how long the lease would last if it had not been extended.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForgetsExtends;

impl Fault for ForgetsExtends {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        let row = store.row_on(ask.key).await;
        Ok(match row.filter(|_| answer.is_locked()) {
            Some(row) => {
                let left_ms = row.first_expiry_ms + TIME_TOLERANCE_MS - now_ms();
                let left_ms = u64::try_from(left_ms).unwrap_or_default().max(1);
                AcquireResult::locked_for(Duration::from_millis(left_ms))
            }
            None => answer,
        })
    }
}

/// States a time from what is left of the lease and the tolerance, in milliseconds.
pub(crate) trait Statement: Debug + Clone + Default + Send + Sync + 'static {
    fn stated_ms(left_ms: u64) -> u64;
}

/// Says so.
#[derive(Debug, Clone, Default)]
pub(crate) struct States<S>(PhantomData<S>);

impl<S: Statement> Fault for States<S> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        Ok(match store.acquire(ask).await? {
            AcquireResult::Locked {
                free_in: Some(free_in),
                ..
            } => {
                let left_ms = u64::try_from(free_in.as_millis()).unwrap();
                let stated = Duration::from_millis(S::stated_ms(left_ms).max(1));
                AcquireResult::locked_for(stated)
            }
            answer => answer,
        })
    }
}

/// Rounds down to 50 ms.
#[derive(Debug, Clone, Default)]
pub(crate) struct InSteps;

impl Statement for InSteps {
    fn stated_ms(left_ms: u64) -> u64 {
        left_ms / 50 * 50
    }
}

/// Rounds long times up to whole five seconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct LongInSteps;

impl Statement for LongInSteps {
    fn stated_ms(left_ms: u64) -> u64 {
        match left_ms {
            ..=5_000 => left_ms,
            _ => left_ms.div_ceil(5_000) * 5_000,
        }
    }
}

/// Counts in 32 bits.
#[derive(Debug, Clone, Default)]
pub(crate) struct In32Bits;

impl Statement for In32Bits {
    fn stated_ms(left_ms: u64) -> u64 {
        left_ms % (1 << 32)
    }
}

/// Takes an overdue key for free.
#[derive(Debug, Clone, Default)]
pub(crate) struct SoonInTheTolerance;

impl Statement for SoonInTheTolerance {
    fn stated_ms(left_ms: u64) -> u64 {
        match left_ms {
            ..=1_000 => 1,
            _ => left_ms,
        }
    }
}

/// Says how long the lease lasts, however much of it has passed.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatesTheWholeLease;

impl Fault for StatesTheWholeLease {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        let row = store.row_on(ask.key).await;
        Ok(match row.filter(|_| answer.is_locked()) {
            Some(row) => {
                let lease_ms = row.first_expiry_ms - row.info.acquired_at_ms + TIME_TOLERANCE_MS;
                AcquireResult::locked_for(Duration::from_millis(lease_ms.unsigned_abs()))
            }
            None => answer,
        })
    }
}

/// Which releases wake nobody.
pub(crate) trait Silent: Debug + Clone + Default + Send + Sync + 'static {
    fn is_silent(store: &Store, row: &Row) -> bool;
}

/// Does not report some releases.
#[derive(Debug, Clone, Default)]
pub(crate) struct Misses<S>(Watchers, PhantomData<S>);

impl<S: Silent> Fault for Misses<S> {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let row = store.row_of(id);
        let row = row.filter(|row| !S::is_silent(store, row));
        let answer = store.memory.release(id).await?;
        if let Some(row) = row.filter(|_| answer.is_released()) {
            self.0.wake(row.info.key.as_str());
        }
        Ok(answer)
    }

    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        Ok(Some(Watch::new(Reported {
            watcher: self.0.watch(key.as_str()),
            store: store.clone(),
            key: key.clone(),
        })))
    }
}

struct Reported {
    watcher: Watcher,
    store: Store,
    key: LockKey,
}

impl WatchKey for Reported {
    async fn changed(&mut self) -> Result<(), LockError> {
        if self.store.memory.is_locked(&self.key).await? {
            self.watcher.woken().await;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Extended;

impl Silent for Extended {
    fn is_silent(_: &Store, row: &Row) -> bool {
        row.extends > 0 && row.info.expires_at_ms > now_ms()
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Overdue;

impl Silent for Overdue {
    fn is_silent(_: &Store, row: &Row) -> bool {
        row.info.expires_at_ms <= now_ms()
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct TakenOver;

impl Silent for TakenOver {
    fn is_silent(store: &Store, row: &Row) -> bool {
        let unreleased = store.unreleased();
        let mut others = unreleased
            .iter()
            .filter(|other| other.lock_id != row.info.lock_id);
        others
            .any(|other| other.key == row.info.key && other.fence.get() + 1 == row.info.fence.get())
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct LongKeys;

impl Silent for LongKeys {
    fn is_silent(_: &Store, row: &Row) -> bool {
        row.info.key.as_str().len() > 200
    }
}

/// Reports a release to one watch of the key.
#[derive(Debug, Clone, Default)]
pub(crate) struct WakesOne(Arc<Mutex<HashMap<LockKey, Arc<Notify>>>>);

impl WakesOne {
    fn of(&self, key: &LockKey) -> Arc<Notify> {
        let mut of_keys = self.0.lock().unwrap();
        Arc::clone(of_keys.entry(key.clone()).or_default())
    }
}

impl Fault for WakesOne {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let answer = store.memory.release(id).await?;
        if let Some(key) = store.key_of(id).filter(|_| answer.is_released()) {
            self.of(&key).notify_one();
        }
        Ok(answer)
    }

    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        Ok(Some(Watch::new(OneOfMany {
            released: self.of(key),
            store: store.clone(),
            key: key.clone(),
        })))
    }
}

struct OneOfMany {
    released: Arc<Notify>,
    store: Store,
    key: LockKey,
}

impl WatchKey for OneOfMany {
    async fn changed(&mut self) -> Result<(), LockError> {
        if self.store.memory.is_locked(&self.key).await? {
            self.released.notified().await;
        }
        Ok(())
    }
}

/// The end of a watch ends the others of its key on the same client.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndsTheOthers(Arc<Mutex<HashMap<LockKey, Arc<AtomicU64>>>>);

impl Fault for EndsTheOthers {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        let watch = store.memory.watch(key).await?;
        let ended = Arc::clone(self.0.lock().unwrap().entry(key.clone()).or_default());
        let known = ended.load(Ordering::SeqCst);
        Ok(watch.map(|watch| {
            Watch::new(Ends {
                watch,
                ended,
                known,
            })
        }))
    }
}

struct Ends {
    watch: Watch,
    ended: Arc<AtomicU64>,
    known: u64,
}

impl WatchKey for Ends {
    async fn changed(&mut self) -> Result<(), LockError> {
        self.watch.changed().await?;
        if self.ended.load(Ordering::SeqCst) != self.known {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Reads the key when it is first asked. Later, it reports what is released while it is asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct LooksOnce(Misses<Nothing>);

#[derive(Debug, Clone, Default)]
pub(crate) struct Nothing;

impl Silent for Nothing {
    fn is_silent(_: &Store, _: &Row) -> bool {
        false
    }
}

impl Fault for LooksOnce {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        self.0.release(store, id).await
    }

    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        Ok(Some(Watch::new(Looked {
            fault: self.0.clone(),
            store: store.clone(),
            key: key.clone(),
            looked: false,
        })))
    }
}

struct Looked {
    fault: Misses<Nothing>,
    store: Store,
    key: LockKey,
    looked: bool,
}

impl WatchKey for Looked {
    async fn changed(&mut self) -> Result<(), LockError> {
        let mut watcher = self.fault.0.watch(self.key.as_str());
        let looked = std::mem::replace(&mut self.looked, true);
        if looked || self.store.memory.is_locked(&self.key).await? {
            watcher.woken().await;
        }
        Ok(())
    }
}

/// Serves some watches of each client, and never ends them.
#[derive(Debug, Clone, Default)]
pub(crate) struct HasSlots(Arc<AtomicUsize>);

impl Fault for HasSlots {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        const SLOTS: usize = 32;
        if self.0.fetch_add(1, Ordering::SeqCst) >= SLOTS {
            return Ok(Some(Watch::new(Deaf)));
        }
        store.memory.watch(key).await
    }
}
