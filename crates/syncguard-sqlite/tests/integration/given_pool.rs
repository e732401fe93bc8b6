//! A pool of the application, which uses its connections, too.

use std::time::Duration;

use sqlx::sqlite::{SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use syncguard_core::ErrorCode;
use syncguard_sqlite::{SqliteBackend, SqliteOptions, sqlx};

use crate::common::{MINUTE, acquire, acquire_by, connection, file, is_held, key, options, take};

/// A pool of one connection, and a backend over it.
async fn one_connection(path: &std::path::Path) -> (SqlitePool, SqliteBackend) {
    let target = options(path).busy_timeout(Duration::from_millis(1_234));
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(target);
    let backend = SqliteBackend::with_pool(pool.clone(), SqliteOptions::new()).unwrap();
    backend.setup_schema().await.unwrap();
    (pool, backend)
}

async fn leave_open(pool: &SqlitePool, sql: &'static str) {
    let mut connection = pool.acquire().await.unwrap();
    sqlx::raw_sql(sql).execute(&mut *connection).await.unwrap();
}

#[tokio::test]
async fn a_grant_is_committed_whatever_transaction_the_pool_has_open() {
    for left_open in [
        "BEGIN",
        "BEGIN IMMEDIATE",
        "BEGIN; SELECT count(*) FROM syncguard_locks",
        "BEGIN; DELETE FROM syncguard_locks; SAVEPOINT s",
    ] {
        let (_folder, path) = file();
        let (pool, backend) = one_connection(&path).await;
        leave_open(&pool, left_open).await;
        let grant = take(&backend, &key("k"), MINUTE).await;
        pool.close().await;
        let other = SqliteBackend::connect(&path).await.unwrap();
        assert!(is_held(&other, &key("k")).await, "after {left_open}");
        assert_eq!(grant.fence.get(), 1);
    }
}

#[tokio::test]
async fn a_read_sees_what_others_committed_since_a_transaction_was_left_open() {
    let (_folder, path) = file();
    let (pool, backend) = one_connection(&path).await;
    leave_open(&pool, "BEGIN; SELECT count(*) FROM syncguard_locks").await;
    let other = SqliteBackend::connect(&path).await.unwrap();
    take(&other, &key("k"), MINUTE).await;
    assert!(is_held(&backend, &key("k")).await);
    assert!(
        acquire(&backend, &key("k"), MINUTE)
            .await
            .unwrap()
            .is_locked()
    );
}

#[tokio::test]
async fn the_busy_timeout_of_its_connections_stays_and_does_not_delay_an_operation() {
    let (_folder, path) = file();
    let (pool, backend) = one_connection(&path).await;
    let mut other = connection(&path).await;
    sqlx::raw_sql("BEGIN IMMEDIATE")
        .execute(&mut other)
        .await
        .unwrap();
    let within = Duration::from_secs(3);
    let error = acquire_by(&backend, &key("k"), MINUTE, within)
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error}");
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
    let left: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(left, 1_234);
}

/// The pool's connections would wait for a minute, even for the schema.
#[tokio::test]
async fn a_file_that_is_locked_for_reads_too_does_not_delay_an_operation() {
    let (_folder, path) = file();
    let target = options(&path)
        .journal_mode(SqliteJournalMode::Delete)
        .busy_timeout(MINUTE);
    let pool = SqlitePoolOptions::new()
        .max_connections(2)
        .connect_lazy_with(target);
    let backend = SqliteBackend::with_pool(pool.clone(), SqliteOptions::new()).unwrap();
    backend.setup_schema().await.unwrap();
    let mut other = pool.acquire().await.unwrap();
    // The next one to connect has not read the schema yet.
    let mut next = pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN EXCLUSIVE; CREATE TABLE another (x)")
        .execute(&mut *other)
        .await
        .unwrap();
    let timeout = sqlx::raw_sql("PRAGMA busy_timeout");
    timeout.execute(&mut *next).await.unwrap();
    drop(next);
    let started = std::time::Instant::now();
    let error = acquire_by(&backend, &key("k"), MINUTE, Duration::from_secs(3))
        .await
        .unwrap_err();
    assert!(started.elapsed() < MINUTE / 2, "{:?}", started.elapsed());
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error}");
    assert!(!error.outcome_unknown());
    sqlx::raw_sql("COMMIT").execute(&mut *other).await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
}

#[tokio::test]
async fn a_connection_that_is_older_than_the_tables_waits_for_a_locked_file() {
    let (_folder, path) = file();
    let target = options(&path).journal_mode(SqliteJournalMode::Delete);
    let pool = SqlitePoolOptions::new()
        .max_connections(2)
        .connect_lazy_with(target);
    let backend = SqliteBackend::with_pool(pool.clone(), SqliteOptions::new()).unwrap();
    let mut older = pool.acquire().await.unwrap();
    let look = sqlx::raw_sql("SELECT count(*) FROM sqlite_schema");
    look.execute(&mut *older).await.unwrap();
    backend.setup_schema().await.unwrap();
    let mut other = pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN EXCLUSIVE")
        .execute(&mut *other)
        .await
        .unwrap();
    drop(older);
    let error = acquire_by(&backend, &key("k"), MINUTE, Duration::from_secs(1))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error}");
    assert!(!error.outcome_unknown());
    sqlx::raw_sql("COMMIT").execute(&mut *other).await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
}

#[tokio::test]
async fn a_pool_in_use_gives_an_error_of_known_outcome() {
    let (_folder, path) = file();
    let (pool, backend) = one_connection(&path).await;
    let used = pool.acquire().await.unwrap();
    let within = Duration::from_secs(1);
    let error = acquire_by(&backend, &key("k"), MINUTE, within)
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::RateLimited, "{error}");
    assert!(!error.outcome_unknown());
    drop(used);
    take(&backend, &key("k"), MINUTE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_works_without_a_write_ahead_log_too() {
    let (_folder, path) = file();
    let target = options(&path).journal_mode(SqliteJournalMode::Delete);
    let pool = SqlitePool::connect_with(target).await.unwrap();
    let backend = SqliteBackend::with_pool(pool, SqliteOptions::new()).unwrap();
    backend.setup_schema().await.unwrap();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let backend = backend.clone();
        clients.spawn(async move {
            let mut grants = 0_u64;
            for _ in 0..20 {
                let acquired = acquire(&backend, &key("k"), MINUTE).await.unwrap();
                if let Some(grant) = acquired.granted() {
                    grants += 1;
                    let released = crate::common::release(&backend, &grant.lock_id)
                        .await
                        .unwrap();
                    assert!(released.is_released());
                }
            }
            grants
        });
    }
    let grants: u64 = clients.join_all().await.into_iter().sum();
    // Each grant used one fence.
    assert_eq!(
        take(&backend, &key("k"), MINUTE).await.fence.get(),
        grants + 1
    );
}

#[tokio::test]
async fn holders_that_query_through_the_same_connection_all_finish() {
    let (_folder, path) = file();
    let (pool, backend) = one_connection(&path).await;
    let mut holders = tokio::task::JoinSet::new();
    for number in 0..10 {
        let (pool, backend) = (pool.clone(), backend.clone());
        holders.spawn(async move {
            let grant = take(&backend, &key(&format!("k{number}")), MINUTE).await;
            let held: i64 = sqlx::query_scalar("SELECT count(*) FROM syncguard_locks")
                .fetch_one(&pool)
                .await
                .unwrap();
            assert!(held > 0);
            let released = crate::common::release(&backend, &grant.lock_id)
                .await
                .unwrap();
            assert!(released.is_released());
        });
    }
    let finished = tokio::time::timeout(MINUTE, holders.join_all()).await;
    assert_eq!(finished.expect("no deadlock").len(), 10);
}
