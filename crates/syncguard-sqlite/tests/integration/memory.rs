//! A database in memory.

use std::time::Duration;

use sqlx::AssertSqlSafe;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use syncguard_core::backend::{LockBackend as _, ReleaseRequest};
use syncguard_core::{ErrorCode, Locks};
use syncguard_sqlite::{SqliteBackend, SqliteOptions, sqlx};

use crate::common::{MINUTE, acquire, file, is_held, key, memory_pool, release, take};

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
    // Without a poll, and without an expiry.
    let never = MINUTE * 60;
    let guard = one.lock("k").ttl(never).await.unwrap();
    let waiting = other.lock("k").timeout(never).retry_delay(never);
    let waiting = tokio::spawn(async move { waiting.await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    assert!(guard.release().await.unwrap().is_released());
    let served = tokio::time::timeout(MINUTE, waiting).await;
    let served = served.expect("a wake-up").unwrap().unwrap();
    assert!(served.release().await.unwrap().is_released());
}

/// No other client sees the change, and the caller of the release does not see it either.
#[tokio::test]
async fn a_release_that_goes_on_without_its_caller_wakes_who_waits() {
    let backend = SqliteBackend::connect(":memory:").await.unwrap();
    let locks = Locks::new(backend.clone());
    let never = MINUTE * 60;
    let mut goes_on = false;
    // The thread of the connection may reply before the caller is gone.
    while !goes_on {
        let held = take(&backend, &key("k"), never).await;
        let waiting = locks.lock("k").timeout(never).retry_delay(never);
        let waiting = tokio::spawn(async move { waiting.await });
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!waiting.is_finished());
        {
            let deadline = tokio::time::Instant::now() + MINUTE;
            let request = ReleaseRequest::new(&held.lock_id, deadline);
            let mut released = std::pin::pin!(backend.release(request));
            goes_on = futures_util::poll!(&mut released).is_pending();
        }
        let served = tokio::time::timeout(MINUTE, waiting).await;
        let served = served.expect("a wake-up").unwrap().unwrap();
        assert!(served.release().await.unwrap().is_released());
    }
}

#[tokio::test]
async fn a_uri_is_refused() {
    for uri in [
        "file::memory:?cache=shared",
        "file:locks.db?mode=memory",
        "sqlite::memory:",
    ] {
        let error = SqliteBackend::connect(uri).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
        assert!(error.to_string().contains("`:memory:`"), "{error}");
    }
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
    let (_folder, path) = crate::common::file();
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

#[tokio::test]
async fn a_pool_that_is_not_of_a_plain_file_is_refused() {
    let (folder, path) = file();
    for target in [
        SqliteConnectOptions::new().filename("locks").vfs("memdb"),
        SqliteConnectOptions::new().filename("/locks").vfs("memdb"),
        SqliteConnectOptions::new().filename(&path).immutable(true),
        SqliteConnectOptions::new().filename("file:locks.db"),
    ] {
        let pool = SqlitePoolOptions::new().connect_lazy_with(target);
        let refused = SqliteBackend::with_pool(pool, SqliteOptions::new());
        assert_eq!(refused.unwrap_err().code(), ErrorCode::InvalidArgument);
    }
    // Only its name looks so.
    let path = folder.path().join("in_memory: true, vfs=memdb.db");
    let target = crate::common::options(&path);
    let pool = SqlitePoolOptions::new().connect_lazy_with(target);
    let backend = SqliteBackend::with_pool(pool, SqliteOptions::new()).unwrap();
    backend.setup_schema().await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
    assert!(path.is_file());
}

#[tokio::test]
async fn a_store_that_ended_with_its_connection_does_not_begin_anew() {
    let ddl = {
        let pool = memory_pool();
        let backend = SqliteBackend::with_pool(pool, SqliteOptions::new()).unwrap();
        backend.schema_ddl()
    };
    // The application creates the tables in each connection.
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .after_connect(move |connection, _| {
            let ddl = AssertSqlSafe(ddl.clone());
            Box::pin(async move { sqlx::raw_sql(ddl).execute(connection).await.map(drop) })
        })
        .connect_lazy_with(SqliteConnectOptions::new());
    let over = || SqliteBackend::with_pool(pool.clone(), SqliteOptions::new()).unwrap();
    let (one, other) = (over(), over());
    let grant = take(&one, &key("k"), MINUTE).await;
    assert!(is_held(&other, &key("k")).await);
    pool.acquire().await.unwrap().close().await.unwrap();
    for backend in [&one, &other] {
        let errors = [
            acquire(backend, &key("k"), MINUTE).await.unwrap_err(),
            release(backend, &grant.lock_id).await.unwrap_err(),
            backend.setup_schema().await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error}");
            assert!(error.to_string().contains("ended"), "{error}");
            assert!(!error.outcome_unknown());
        }
    }
    take(&over(), &key("k"), MINUTE).await;
}

#[tokio::test]
async fn a_pool_that_turns_to_another_database_grants_nothing() {
    let (folder, path) = file();
    let elsewhere = folder.path().join("elsewhere.db");
    drop(SqliteBackend::connect(&elsewhere).await.unwrap());
    for (target, code) in [
        (SqliteConnectOptions::new(), ErrorCode::InvalidArgument),
        (
            crate::common::options(&elsewhere),
            ErrorCode::ServiceUnavailable,
        ),
    ] {
        let pool = SqlitePool::connect_lazy_with(crate::common::options(&path));
        let backend = SqliteBackend::with_pool(pool.clone(), SqliteOptions::new()).unwrap();
        backend.setup_schema().await.unwrap();
        pool.set_connect_options(target);
        pool.acquire().await.unwrap().close().await.unwrap();
        let error = acquire(&backend, &key("k"), MINUTE).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
}
