//! Faults of texts: raw identifiers in logs, errors and `Debug`.

use std::sync::{Arc, Mutex};

use syncguard_core::backend::AcquireResult;
use syncguard_core::{ExtendResult, LockError, LockId, Ttl};

use super::broken::Fault;
use super::store::{Answer, Ask, Store, now_ms};

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
        store.acquire(ask).await.map_err(|error| {
            let message = format!("{}: {}", ask.key.as_str(), error.message());
            LockError::new(error.code(), message)
        })
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
