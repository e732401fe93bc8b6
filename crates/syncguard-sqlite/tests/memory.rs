//! A database in memory.

mod common;

use std::time::Duration;

use common::{MINUTE, is_held, key, memory_pool, release, take};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use syncguard_core::{ErrorCode, Locks};
use syncguard_sqlite::{SqliteBackend, SqliteOptions, sqlx};

#[tokio::test]
async fn clones_are_one_store_and_its_fences_go_on() {
    let backend = SqliteBackend::connect(":memory:").await.unwrap();
    let clone = backend.clone();
    let first = take(&backend, &key("k"), MINUTE).await;
    assert!(is_held(&clone, &key("k")).await);
    assert!(release(&clone, &first.lock_id).await.unwrap().is_released());
    let second = take(&clone, &key("k"), MINUTE).await;
    assert!(second.fence > first.fence);
}

#[tokio::test]
async fn another_backend_is_another_store() {
    let one = SqliteBackend::connect(":memory:").await.unwrap();
    let other = SqliteBackend::connect(":memory:").await.unwrap();
    take(&one, &key("k"), MINUTE).await;
    assert!(!is_held(&other, &key("k")).await);
}

#[tokio::test]
async fn a_release_wakes_callers_of_clones_at_once() {
    let backend = SqliteBackend::connect(":memory:").await.unwrap();
    let (one, other) = (Locks::new(backend.clone()), Locks::new(backend));
    let guard = one.lock("k").await.unwrap();
    // Without a poll.
    let never = MINUTE * 60;
    let waiting = other.lock("k").timeout(never).retry_delay(never);
    let waiting = tokio::spawn(async move { waiting.await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    assert!(guard.release().await.unwrap().is_released());
    let served = tokio::time::timeout(MINUTE, waiting).await;
    let served = served.expect("a wake-up").unwrap().unwrap();
    assert!(served.release().await.unwrap().is_released());
}

fn with_pool(pool: SqlitePoolOptions, target: SqliteConnectOptions) -> Result<(), ErrorCode> {
    let pool = pool.connect_lazy_with(target);
    match SqliteBackend::with_pool(pool, SqliteOptions::new()) {
        Ok(_) => Ok(()),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("max_connections(1)"), "{text}");
            Err(error.code())
        }
    }
}

#[tokio::test]
async fn a_pool_that_could_have_two_stores_in_memory_is_refused() {
    let in_memory: [SqliteConnectOptions; 6] = [
        SqliteConnectOptions::new(),
        SqliteConnectOptions::new()
            .filename("locks.db")
            .in_memory(true),
        SqliteConnectOptions::new().filename(""),
        SqliteConnectOptions::new().filename("file:locks?mode=memory&cache=shared"),
        "sqlite::memory:".parse().unwrap(),
        "sqlite://locks.db?mode=memory".parse().unwrap(),
    ];
    let refused = Err(ErrorCode::InvalidArgument);
    for target in in_memory {
        let lasting = || {
            SqlitePoolOptions::new()
                .max_connections(1)
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
        };
        for pool in [
            lasting().max_connections(2),
            lasting().idle_timeout(MINUTE),
            lasting().max_lifetime(MINUTE),
            lasting().test_before_acquire(true),
        ] {
            assert_eq!(with_pool(pool, target.clone()), refused);
        }
        assert_eq!(with_pool(lasting(), target), Ok(()));
    }
    let (_folder, path) = common::file();
    let target = SqliteConnectOptions::new().filename(path);
    assert_eq!(with_pool(SqlitePoolOptions::new(), target), Ok(()));
}

#[tokio::test]
async fn the_pool_of_a_store_in_memory_keeps_it() {
    let pool: SqlitePool = memory_pool();
    let backend = SqliteBackend::with_pool(pool.clone(), SqliteOptions::new()).unwrap();
    backend.setup_schema().await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
    let again = SqliteBackend::with_pool(pool, SqliteOptions::new()).unwrap();
    assert!(is_held(&again, &key("k")).await);
}
