//! Faults of what callers that wait rely on.

use std::time::Duration;

use syncguard_core::backend::{AcquireResult, TIME_TOLERANCE_MS, Watch, WatchKey};
use syncguard_core::{LockError, LockKey};

use super::broken::Fault;
use super::store::{Answer, Ask, Store, now_ms};

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
