//! Faults of texts: raw identifiers in logs, errors and `Debug`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use syncguard_core::backend::{AcquireResult, ListPage, Watch};
use syncguard_core::{ErrorCode, ExtendResult, LockError, LockId, LockKey, Ttl};

use super::broken::{Fault, past_deadline};
use super::on_acquire::elsewhere;
use super::store::{Answer, Ask, Store, Wanted, now_ms};

/// Logs the key that it locks.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogsTheKey;

impl Fault for LogsTheKey {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        tracing::debug!(key = ask.key.as_str(), "acquiring");
        store.acquire(ask).await
    }
}

/// Keeps the keys in plain text, where `Debug` finds them.
#[derive(Debug, Clone, Default)]
pub(crate) struct DebugShowsKeys(Arc<Mutex<Vec<String>>>);

impl Fault for DebugShowsKeys {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.0.lock().unwrap().push(ask.key.as_str().to_owned());
        store.acquire(ask).await
    }
}

/// Names the key in its errors.
#[derive(Debug, Clone, Default)]
pub(crate) struct ErrorsQuoteTheKey;

impl Fault for ErrorsQuoteTheKey {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.acquire(ask).await;
        answer.map_err(|error| quoting(ask.key.as_str(), &error))
    }
}

fn quoting(text: &str, error: &LockError) -> LockError {
    LockError::new(error.code(), format!("{text}: {}", error.message()))
}

/// Refuses a second key, and names the id.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecondKeyQuotesTheId;

impl Fault for SecondKeyQuotesTheId {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if elsewhere(store, ask).await.is_some() {
            let refusal = LockError::invalid_argument("the id holds another key");
            return Err(quoting(ask.id.as_str(), &refusal));
        }
        store.acquire(ask).await
    }
}

/// Names the key in the error of a call after its deadline.
#[derive(Debug, Clone, Default)]
pub(crate) struct LateCallQuotesTheKey;

impl Fault for LateCallQuotesTheKey {
    async fn acquire_late(&self, _: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        Err(quoting(ask.key.as_str(), &past_deadline()))
    }
}

/// Names the key in the error of a closed client.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClosedQuotesTheKey(Arc<AtomicBool>);

impl Fault for ClosedQuotesTheKey {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        if self.0.load(Ordering::SeqCst) {
            let message = format!("closed before {}", key.as_str());
            return Err(LockError::new(ErrorCode::ServiceUnavailable, message));
        }
        store.memory.is_locked(key).await
    }

    async fn close(&self, _: &Store) -> Answer<()> {
        self.0.store(true, Ordering::SeqCst);
        Ok(())
    }
}

/// Logs an id that already holds a lock: on the key of the acquire, or on another one.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogsTheUsedId<const ON_THIS_KEY: bool>;

impl<const ON_THIS_KEY: bool> Fault for LogsTheUsedId<ON_THIS_KEY> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let held = store.held_by(ask.id).await;
        if held.is_some_and(|held| (held.key == *ask.key) == ON_THIS_KEY) {
            tracing::debug!(id = ask.id.as_str(), "already in use");
        }
        store.acquire(ask).await
    }
}

/// Logs the key that it watches.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogsTheWatched;

impl Fault for LogsTheWatched {
    async fn watch(&self, store: &Store, key: &LockKey) -> Answer<Option<Watch>> {
        tracing::debug!(key = key.as_str(), "watching");
        store.memory.watch(key).await
    }
}

/// Logs the prefix of a listing.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogsTheListed;

impl Fault for LogsTheListed {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        tracing::debug!(prefix = wanted.prefix.as_str(), "listing");
        store.memory.list(wanted).await
    }
}

/// Logs the key whose expired lock it replaces.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogsTheTakeOver;

impl Fault for LogsTheTakeOver {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let left = store.unreleased_on(ask.key).is_some();
        if left && store.holder(ask.key).await.is_none() {
            tracing::debug!(key = ask.key.as_str(), "taking over");
        }
        store.acquire(ask).await
    }
}

/// Logs the id whose lock it extends.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogsTheExtended;

impl Fault for LogsTheExtended {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        tracing::debug!(id = id.as_str(), "extending");
        store.memory.extend(id, ttl).await
    }
}

/// Logs the key of an overdue lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogsTheOverdue;

impl Fault for LogsTheOverdue {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let holder = store.holder(ask.key).await;
        if holder.is_some_and(|held| held.expires_at_ms <= now_ms()) {
            tracing::debug!(key = ask.key.as_str(), "overdue");
        }
        store.acquire(ask).await
    }
}
