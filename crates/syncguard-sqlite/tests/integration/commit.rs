//! Commits that fail, or seem to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Connection as _, Sqlite, SqlitePool};
use syncguard_core::{ErrorCode, LockError, Locks};
use syncguard_sqlite::{SqliteBackend, SqliteOptions, sqlx};

use crate::common::{MINUTE, PATIENCE, acquire, connection, file, is_held, key, options, take};

/// A pool of one connection, and a backend over it.
async fn over_one_connection(path: &std::path::Path) -> (SqlitePool, SqliteBackend) {
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(options(path));
    let backend = SqliteBackend::with_pool(pool.clone(), SqliteOptions::new()).unwrap();
    backend.setup_schema().await.unwrap();
    (pool, backend)
}

/// Interrupts the next commit right after it has happened, as the program of an application can.
async fn interrupt_after_the_next_commit(pool: &SqlitePool) {
    let mut connection = pool.acquire().await.unwrap();
    let mut handle = connection.lock_handle().await.unwrap();
    let commits = Arc::new(AtomicBool::new(false));
    let begins = Arc::clone(&commits);
    handle.set_commit_hook(move || {
        begins.store(true, Ordering::SeqCst);
        true
    });
    handle.set_progress_handler(1, move || !commits.swap(false, Ordering::SeqCst));
}

async fn let_all_pass(pool: &SqlitePool) {
    let mut connection = pool.acquire().await.unwrap();
    let mut handle = connection.lock_handle().await.unwrap();
    handle.remove_commit_hook();
    handle.remove_progress_handler();
}

#[tokio::test]
async fn the_outcome_of_an_interrupted_commit_is_unknown() {
    let (_folder, path) = file();
    let (pool, backend) = over_one_connection(&path).await;
    interrupt_after_the_next_commit(&pool).await;
    let error = acquire(&backend, &key("k"), MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error}");
    assert!(error.outcome_unknown(), "{error}");
    assert!(
        is_held(&backend, &key("k")).await,
        "the commit has happened"
    );
}

#[tokio::test]
async fn a_grant_whose_commit_was_interrupted_is_released() {
    let (_folder, path) = file();
    let (pool, backend) = over_one_connection(&path).await;
    let locks = Locks::new(backend);
    interrupt_after_the_next_commit(&pool).await;
    let attempt = locks.try_lock("k").ttl(MINUTE * 60).await;
    assert!(attempt.is_err());
    let_all_pass(&pool).await;
    locks.drain(PATIENCE).await.unwrap();
    assert!(!locks.is_locked("k").await.unwrap());
}

async fn refused_by_a_hook(pool: &SqlitePool, backend: &SqliteBackend) -> LockError {
    let mut connection = pool.acquire().await.unwrap();
    connection
        .lock_handle()
        .await
        .unwrap()
        .set_commit_hook(|| false);
    drop(connection);
    acquire(backend, &key("k"), MINUTE).await.unwrap_err()
}

#[tokio::test]
async fn a_commit_that_the_application_refuses_has_not_happened() {
    let (_folder, path) = file();
    let (pool, backend) = over_one_connection(&path).await;
    let error = refused_by_a_hook(&pool, &backend).await;
    assert!(!error.outcome_unknown(), "{error}");
    assert!(!is_held(&backend, &key("k")).await);
    let_all_pass(&pool).await;
    assert_eq!(take(&backend, &key("k"), MINUTE).await.fence.get(), 1);
}

/// Without a write-ahead log, a reader keeps a commit from its end.
#[tokio::test]
async fn a_commit_that_is_busy_is_retried() {
    use sqlx::sqlite::SqliteJournalMode::Delete;

    let (_folder, path) = file();
    let pool = SqlitePool::connect_lazy_with(options(&path).journal_mode(Delete));
    let backend = SqliteBackend::with_pool(pool.clone(), SqliteOptions::new()).unwrap();
    backend.setup_schema().await.unwrap();
    let mut reader: sqlx::pool::PoolConnection<Sqlite> = pool.acquire().await.unwrap();
    let read = "BEGIN; SELECT count(*) FROM syncguard_locks";
    sqlx::raw_sql(read).execute(&mut *reader).await.unwrap();
    let waiting = tokio::spawn({
        let backend = backend.clone();
        async move { take(&backend, &key("k"), MINUTE).await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    sqlx::raw_sql("COMMIT").execute(&mut *reader).await.unwrap();
    assert_eq!(waiting.await.unwrap().fence.get(), 1);
    reader.close().await.unwrap();
    connection(&path).await.close().await.unwrap();
}
