//! Faults of extend.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use syncguard_core::backend::AcquireResult;
use syncguard_core::{ExtendResult, LockId, Ttl};

use super::broken::{Fault, NOT_EXTENDED};
use super::on_replay::was_taken_over;
use super::store::{Answer, Ask, Store, lasting, now_ms};

/// Adds to the remaining time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Adds;

impl Fault for Adds {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let Some(held) = store.held_by(id).await else {
            return store.memory.extend(id, ttl).await;
        };
        let remaining = held.expires_at_ms - now_ms();
        let sum = lasting(remaining + ttl.as_millis());
        store.memory.extend(id, sum).await
    }
}

/// Keeps the later of two expiries.
#[derive(Debug, Clone, Default)]
pub(crate) struct NeverShortens;

impl Fault for NeverShortens {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let held = store.held_by(id).await;
        let later = held.filter(|held| held.expires_at_ms > now_ms() + ttl.as_millis());
        match later {
            Some(held) => Ok(ExtendResult::extended(held.expires_at_ms)),
            None => store.memory.extend(id, ttl).await,
        }
    }
}

/// Counts the new TTL from the grant.
#[derive(Debug, Clone, Default)]
pub(crate) struct CountsFromTheGrant;

impl Fault for CountsFromTheGrant {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let held = store.held_by(id).await;
        let passed = held.map_or(0, |held| now_ms() - held.acquired_at_ms);
        let ttl = lasting(ttl.as_millis() - passed);
        store.memory.extend(id, ttl).await
    }
}

/// Returns an expiry that the client has computed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Estimates;

impl Fault for Estimates {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        Ok(match store.memory.extend(id, ttl).await? {
            ExtendResult::Extended { expires_at_ms, .. } => {
                ExtendResult::extended(expires_at_ms + 1)
            }
            not_held => not_held,
        })
    }
}

/// Writes the lock even if it no longer exists.
#[derive(Debug, Clone, Default)]
pub(crate) struct Resurrects;

impl Fault for Resurrects {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let answer = store.memory.extend(id, ttl).await?;
        match store.key_of(id) {
            Some(key) if answer.expires_at_ms().is_none() => {
                write(store, Ask { key: &key, id, ttl }).await
            }
            _ => Ok(answer),
        }
    }
}

/// Writes an expired lock again, once its successor has released the key.
#[derive(Debug, Clone, Default)]
pub(crate) struct RevivesTheTakenOver;

impl Fault for RevivesTheTakenOver {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let key = store.key_of(id);
        match key.filter(|key| was_taken_over(store, key, id).is_some()) {
            Some(key) => write(store, Ask { key: &key, id, ttl }).await,
            None => store.memory.extend(id, ttl).await,
        }
    }
}

/// Checks whether the lock exists, not whether it has expired.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForgetsTheExpiry;

impl Fault for ForgetsTheExpiry {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let answer = store.memory.extend(id, ttl).await?;
        match store.row_of(id) {
            Some(row) if answer.expires_at_ms().is_none() && !row.released => {
                let key = &row.info.key;
                write(store, Ask { key, id, ttl }).await
            }
            _ => Ok(answer),
        }
    }
}

/// Returns a new expiry even if the id holds no lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct AlwaysSucceeds;

impl Fault for AlwaysSucceeds {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let answer = store.memory.extend(id, ttl).await?;
        let reckoned = now_ms() + ttl.as_millis();
        Ok(ExtendResult::extended(
            answer.expires_at_ms().unwrap_or(reckoned),
        ))
    }
}

/// Trusts its index, and extends the lock of the key's current holder.
#[derive(Debug, Clone, Default)]
pub(crate) struct IgnoresOwner;

impl Fault for IgnoresOwner {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let holder = match store.key_of(id) {
            Some(key) => store.holder(&key).await,
            None => None,
        };
        let id = holder.map_or(*id, |holder| holder.lock_id);
        store.memory.extend(&id, ttl).await
    }
}

/// Extends the lock and not the index by its id.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForgetsTheIndex(Arc<Mutex<HashMap<LockId, i64>>>);

impl Fault for ForgetsTheIndex {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &answer {
            let mut index = self.0.lock().unwrap();
            index.insert(*ask.id, grant.expires_at_ms);
        }
        Ok(answer)
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let indexed_until = self.0.lock().unwrap().get(id).copied();
        if indexed_until.is_some_and(|until| until <= now_ms()) {
            return Ok(NOT_EXTENDED);
        }
        store.memory.extend(id, ttl).await
    }
}

/// Acquires the lock again, with a new fence.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangesFence;

impl Fault for ChangesFence {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let Some(held) = store.held_by(id).await else {
            return store.memory.extend(id, ttl).await;
        };
        let key = &held.key;
        let _ = store.memory.release(id).await?;
        write(store, Ask { key, id, ttl }).await
    }
}

/// Writes the whole row if the TTL is longer than this: the time of acquisition is that of the extend.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangesAcquiredAt<const ABOVE_MS: i64>;

impl<const ABOVE_MS: i64> Fault for ChangesAcquiredAt<ABOVE_MS> {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let held = store.held_by(id).await;
        let Some(held) = held.filter(|_| ttl.as_millis() > ABOVE_MS) else {
            return store.memory.extend(id, ttl).await;
        };
        let key = &held.key;
        let _ = store.memory.release(id).await?;
        store.memory.set_fence_counter(key, held.fence.get() - 1);
        write(store, Ask { key, id, ttl }).await
    }
}

/// Increments the fence counter.
#[derive(Debug, Clone, Default)]
pub(crate) struct BurnsFence;

impl Fault for BurnsFence {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        if let Some(held) = store.held_by(id).await {
            let burnt = held.fence.get() + 1;
            store.memory.set_fence_counter(&held.key, burnt);
        }
        store.memory.extend(id, ttl).await
    }
}

/// Returns the expiry that it has replaced.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswersTheOldExpiry;

impl Fault for AnswersTheOldExpiry {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let held = store.held_by(id).await;
        let answer = store.memory.extend(id, ttl).await?;
        Ok(held.map_or(answer, |held| ExtendResult::extended(held.expires_at_ms)))
    }
}

/// Does not write an expiry that is at most so many milliseconds from the one that it would replace. It returns the one
/// or the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct SkipsASmallChange<const MILLIS: i64, const ANSWERS_THE_OLD: bool>;

impl<const MILLIS: i64, const ANSWERS_THE_OLD: bool> Fault
    for SkipsASmallChange<MILLIS, ANSWERS_THE_OLD>
{
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let expires_at_ms = now_ms() + ttl.as_millis();
        match store.held_by(id).await {
            Some(held) if (held.expires_at_ms - expires_at_ms).abs() <= MILLIS => {
                Ok(ExtendResult::extended(match ANSWERS_THE_OLD {
                    true => held.expires_at_ms,
                    false => expires_at_ms,
                }))
            }
            _ => store.memory.extend(id, ttl).await,
        }
    }
}

/// Writes the milliseconds of the expiry without their leading zeros, if they have one digit.
#[derive(Debug, Clone, Default)]
pub(crate) struct LosesZeros;

impl Fault for LosesZeros {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let answer = store.memory.extend(id, ttl).await?;
        let millis = answer.expires_at_ms().map_or(0, |at_ms| at_ms % 1_000);
        if (1..=9).contains(&millis) {
            let longer = lasting(ttl.as_millis() + millis * 99);
            let _ = store.memory.extend(id, longer).await?;
        }
        Ok(answer)
    }
}

/// An acquire that calls itself an extend.
async fn write(store: &Store, ask: Ask<'_>) -> Answer<ExtendResult> {
    let grant = store.acquire(ask).await?.granted();
    Ok(grant.map_or(NOT_EXTENDED, |grant| {
        ExtendResult::extended(grant.expires_at_ms)
    }))
}
