//! What the tests share.

#![allow(dead_code, reason = "each test file uses a part")]

use std::path::PathBuf;
use std::time::Duration;

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Grant, LockBackend as _, Lookup, LookupRequest, ReleaseRequest,
};
use syncguard_core::{LockError, LockId, LockKey, ReleaseResult, Ttl};
use syncguard_sqlite::SqliteBackend;
use syncguard_sqlite::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use syncguard_sqlite::sqlx::{ConnectOptions as _, SqliteConnection, SqlitePool};
use syncguard_testkit::folder_for_files;
use tempfile::TempDir;
use tokio::time::Instant;

/// Far longer than anything here takes, on a slow machine too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// A folder for a file, and the file's path.
pub(crate) fn file() -> (TempDir, PathBuf) {
    let folder = TempDir::new_in(folder_for_files()).expect("a folder");
    let path = folder.path().join("locks.db");
    (folder, path)
}

pub(crate) fn options(path: &std::path::Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
}

/// A connection of the test's own, past the backend.
pub(crate) async fn connection(path: &std::path::Path) -> SqliteConnection {
    options(path).connect().await.expect("a connection")
}

/// A pool of a database in memory, as a backend accepts it.
pub(crate) fn memory_pool() -> SqlitePool {
    SqlitePoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_lazy_with(SqliteConnectOptions::new())
}

pub(crate) fn key(name: &str) -> LockKey {
    LockKey::new(name).expect("a key")
}

pub(crate) async fn acquire(
    backend: &SqliteBackend,
    key: &LockKey,
    ttl: Duration,
) -> Result<AcquireResult, LockError> {
    acquire_by(backend, key, ttl, PATIENCE).await
}

pub(crate) async fn acquire_by(
    backend: &SqliteBackend,
    key: &LockKey,
    ttl: Duration,
    within: Duration,
) -> Result<AcquireResult, LockError> {
    let (id, ttl) = (LockId::generate()?, Ttl::new(ttl)?);
    let request = AcquireRequest::new(key, &id, ttl, Instant::now() + within);
    backend.acquire(request).await
}

/// Acquires a free key.
pub(crate) async fn take(backend: &SqliteBackend, key: &LockKey, ttl: Duration) -> Grant {
    let acquired = acquire(backend, key, ttl).await.expect("an answer");
    acquired.granted().expect("the key is free")
}

pub(crate) async fn release(
    backend: &SqliteBackend,
    id: &LockId,
) -> Result<ReleaseResult, LockError> {
    let request = ReleaseRequest::new(id, Instant::now() + PATIENCE);
    backend.release(request).await
}

pub(crate) async fn is_held(backend: &SqliteBackend, key: &LockKey) -> bool {
    let request = LookupRequest::new(Lookup::Key(key), Instant::now() + PATIENCE);
    let found = backend.lookup_raw(request).await;
    found.expect("an answer").is_some()
}
