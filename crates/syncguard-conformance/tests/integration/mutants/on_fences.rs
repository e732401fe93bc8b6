//! Faults of the fence counters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use syncguard_core::LockKey;
use syncguard_core::backend::{AcquireResult, FENCE_MAX};

use super::broken::Fault;
use super::on_keys::Spoils;
use super::store::{Answer, Ask, Store, now_ms};

/// Uses a fence before it checks whether the key is free.
#[derive(Debug, Clone, Default)]
pub(crate) struct BurntByContention(Arc<AtomicU64>);

impl Fault for BurntByContention {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if let Some(holder) = store.holder(ask.key).await.filter(|_| answer.is_locked()) {
            let burnt = self.0.fetch_add(1, Ordering::SeqCst) + 1;
            let burnt = holder.fence.get() + burnt;
            store.memory.set_fence_counter(ask.key, burnt);
        }
        Ok(answer)
    }
}

/// Uses a fence before it recognises a replay.
#[derive(Debug, Clone, Default)]
pub(crate) struct BurntByReplay;

impl Fault for BurntByReplay {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if let Some(held) = store.held_by(ask.id).await {
            let burnt = held.fence.get() + 1;
            store.memory.set_fence_counter(ask.key, burnt);
        }
        store.acquire(ask).await
    }
}

/// Grants the same fence again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Repeats;

impl Fault for Repeats {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &answer {
            let before = grant.fence.get() - 1;
            store.memory.set_fence_counter(ask.key, before);
        }
        Ok(answer)
    }
}

/// Keeps the counter in the lock: it ends with the lease.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndWithTheLease;

impl Fault for EndWithTheLease {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let left = store.unreleased_on(ask.key).is_some();
        if left && store.holder(ask.key).await.is_none() {
            store.memory.set_fence_counter(ask.key, 0);
        }
        store.acquire(ask).await
    }
}

/// Counts in the client.
#[derive(Debug, Clone, Default)]
pub(crate) struct CountInTheClient(Arc<Mutex<HashMap<String, u64>>>);

impl Fault for CountInTheClient {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        count_in(&self.0, ask.key.as_str(), store, ask).await
    }
}

/// Removes at its close the counters of the keys that nobody holds, of those that this client has acquired.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndWithTheClose(Arc<Mutex<Vec<LockKey>>>);

impl Fault for EndWithTheClose {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.0.lock().unwrap().push(ask.key.clone());
        store.acquire(ask).await
    }

    async fn close(&self, store: &Store) -> Answer<()> {
        let acquired = std::mem::take(&mut *self.0.lock().unwrap());
        for key in acquired {
            if store.holder(&key).await.is_none() {
                store.memory.set_fence_counter(&key, 0);
            }
        }
        Ok(())
    }
}

/// Counts the fences of all keys by one counter.
#[derive(Debug, Clone, Default)]
pub(crate) struct PerStore(Arc<Mutex<HashMap<String, u64>>>);

impl Fault for PerStore {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        count_in(&self.0, "", store, ask).await
    }
}

/// Keeps keys apart, but not the names of their counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared<S>(Arc<Mutex<HashMap<String, u64>>>, S);

impl<S: Spoils> Fault for Shared<S> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        count_in(&self.0, &S::spoil(ask.key.as_str()), store, ask).await
    }
}

async fn count_in(
    counters: &Mutex<HashMap<String, u64>>,
    name: &str,
    store: &Store,
    ask: Ask<'_>,
) -> Answer<AcquireResult> {
    let counter = counters.lock().unwrap().get(name).copied().unwrap_or(0);
    if store.memory.is_locked(ask.key).await? {
        return store.acquire(ask).await;
    }
    store.memory.set_fence_counter(ask.key, counter);
    let answer = store.acquire(ask).await?;
    if let AcquireResult::Acquired(grant) = &answer {
        let mut counters = counters.lock().unwrap();
        counters.insert(name.to_owned(), grant.fence.get());
    }
    Ok(answer)
}

/// Counts in 32 bits.
#[derive(Debug, Clone, Default)]
pub(crate) struct In32Bits;

impl Fault for In32Bits {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        let AcquireResult::Acquired(grant) = &answer else {
            return Ok(answer);
        };
        let wrapped = grant.fence.get() % (1 << 32);
        if wrapped == grant.fence.get() {
            return Ok(answer);
        }
        let _ = store.memory.release(ask.id).await?;
        let before = wrapped.saturating_sub(1);
        store.memory.set_fence_counter(ask.key, before);
        store.acquire(ask).await
    }
}

/// Grants the last fence for ever.
#[derive(Debug, Clone, Default)]
pub(crate) struct Saturate;

impl Fault for Saturate {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await;
        if answer.is_ok() {
            return answer;
        }
        store.memory.set_fence_counter(ask.key, FENCE_MAX - 1);
        store.acquire(ask).await
    }
}

/// Checks the fence after it has written the lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct CheckedTooLate;

impl Fault for CheckedTooLate {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await;
        if answer.is_err() {
            store.memory.set_fence_counter(ask.key, FENCE_MAX - 1);
            let _ = store.acquire(ask).await?;
            store.memory.set_fence_counter(ask.key, FENCE_MAX);
        }
        answer
    }
}

/// Grants the fence of the expired lock again when no other fence is left.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastIsGrantedAgain;

impl Fault for LastIsGrantedAgain {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await;
        if answer.is_ok() || store.unreleased_on(ask.key).is_none() {
            return answer;
        }
        store.memory.set_fence_counter(ask.key, FENCE_MAX - 1);
        store.acquire(ask).await
    }
}

/// Ends one fence before the last: for any key, or only for that of an expired lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndOneEarly<const EXPIRED: bool>;

impl<const EXPIRED: bool> Fault for EndOneEarly<EXPIRED> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let expired = store.expired_on(ask.key).await.is_some();
        let answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &answer
            && grant.fence.get() == FENCE_MAX
            && (expired || !EXPIRED)
        {
            let _ = store.memory.release(ask.id).await?;
            return store.acquire(ask).await;
        }
        Ok(answer)
    }
}

/// Uses a fence for a refusal: if the lock was extended, or if its expiry has passed.
#[derive(Debug, Clone, Default)]
pub(crate) struct BurntWhere<const EXTENDED: bool>;

impl<const EXTENDED: bool> Fault for BurntWhere<EXTENDED> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await?;
        let row = store.row_on(ask.key).await.filter(|_| answer.is_locked());
        if let Some(row) = row.filter(|row| match EXTENDED {
            true => row.extends > 0 && row.info.expires_at_ms > now_ms(),
            false => row.info.expires_at_ms <= now_ms(),
        }) {
            let burnt = row.info.fence.get() + 1;
            store.memory.set_fence_counter(ask.key, burnt);
        }
        Ok(answer)
    }
}
