//! Faults of the last milliseconds of a lease.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use syncguard_core::backend::AcquireResult;
use syncguard_core::{ExtendResult, LockId, LockInfoDebug, ReleaseResult, Ttl};

use super::broken::{Fault, NOT_EXTENDED, NOT_RELEASED};
use super::store::{Answer, Ask, Store, now_ms};

fn ends_within(held: &LockInfoDebug, millis: i64) -> bool {
    let left_ms = held.expires_at_ms - now_ms();
    (1..=millis).contains(&left_ms)
}

/// Grants a key some milliseconds before its lease ends, if that was extended, or if it never was.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrantsBefore<const MILLIS: i64, const EXTENDED: bool>(
    Arc<Mutex<HashSet<LockId>>>,
);

impl<const MILLIS: i64, const EXTENDED: bool> Fault for GrantsBefore<MILLIS, EXTENDED> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let holder = store.holder(ask.key).await;
        let ends = holder.filter(|held| ends_within(held, MILLIS));
        let extended = |id: &LockId| self.0.lock().unwrap().contains(id);
        if ends.is_some_and(|held| extended(&held.lock_id) == EXTENDED) {
            return store.steal(ask).await;
        }
        store.acquire(ask).await
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        self.0.lock().unwrap().insert(*id);
        store.memory.extend(id, ttl).await
    }
}

/// Does not extend a lease that is about to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendGivesUpBefore;

impl Fault for ExtendGivesUpBefore {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let held = store.held_by(id).await;
        if held.is_some_and(|held| ends_within(&held, 10)) {
            return Ok(NOT_EXTENDED);
        }
        store.memory.extend(id, ttl).await
    }
}

/// Does not release a lease that is about to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseGivesUpBefore;

impl Fault for ReleaseGivesUpBefore {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let held = store.held_by(id).await;
        if held.is_some_and(|held| ends_within(&held, 10)) {
            return Ok(NOT_RELEASED);
        }
        store.memory.release(id).await
    }
}

/// Does not recognise a replay of a lease that is about to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayGivesUpBefore;

impl Fault for ReplayGivesUpBefore {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let held = store.held_by(ask.id).await;
        if held.is_some_and(|held| ends_within(&held, 10)) {
            return Ok(AcquireResult::locked());
        }
        store.acquire(ask).await
    }
}

/// Does not write an extend that changes the expiry by only a few milliseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShortExtendsAreNotDone;

impl Fault for ShortExtendsAreNotDone {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        if ttl.as_millis() > 10 || store.held_by(id).await.is_none() {
            return store.memory.extend(id, ttl).await;
        }
        Ok(ExtendResult::extended(now_ms() + ttl.as_millis()))
    }
}
