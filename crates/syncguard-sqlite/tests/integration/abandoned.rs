//! Callers that go away in the middle of an operation.

use std::time::Duration;

use syncguard_core::{LockId, Locks};
use syncguard_sqlite::{SqliteBackend, sqlx};

use crate::common::{MINUTE, PATIENCE, connection, file, key, take};

const KEYS: u32 = 50;

#[tokio::test(flavor = "multi_thread")]
async fn no_key_stays_held_and_no_transaction_open() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let locks = Locks::new(backend.clone());
    let mut abandoned = 0;
    for round in 0..1_000_u32 {
        let attempt = locks
            .try_lock(format!("k{}", round % KEYS))
            .ttl(MINUTE * 60);
        let patience = Duration::from_micros(u64::from(round % 40) * 50);
        match tokio::time::timeout(patience, attempt).await {
            Ok(guard) => drop(guard.unwrap()),
            Err(_) => abandoned += 1,
        }
    }
    assert!(abandoned > 0);
    locks.drain(PATIENCE).await.unwrap();
    for number in 0..KEYS {
        assert!(!locks.is_locked(format!("k{number}")).await.unwrap());
    }
    let mut other = connection(&path).await;
    sqlx::raw_sql("BEGIN IMMEDIATE; COMMIT")
        .execute(&mut other)
        .await
        .unwrap();
}

/// The runtime ends in the middle of operations; the store is used on in another. If both connections were busy,
/// they are closed then, and SQLite removes the files beside the database.
#[test]
fn a_store_outlives_the_runtime_that_made_it() {
    for _ in 0..20 {
        let (_folder, path) = file();
        let runtime = || tokio::runtime::Runtime::new().unwrap();
        let first = runtime();
        let backend = first.block_on(SqliteBackend::connect(&path)).unwrap();
        for number in 0..20 {
            let locks = Locks::new(backend.clone());
            first.spawn(async move { locks.lock(format!("k{number}")).await });
        }
        first.shutdown_background();
        runtime().block_on(async {
            let grant = take(&backend, &key("another"), MINUTE).await;
            assert_ne!(grant.lock_id, LockId::generate().unwrap());
            assert!(crate::common::is_held(&backend, &key("another")).await);
        });
    }
}

/// Else other processes could not write until this one does.
#[test]
fn a_runtime_that_ends_leaves_no_transaction_open() {
    let (_folder, path) = file();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let first = runtime();
    let backend = first.block_on(SqliteBackend::connect(&path)).unwrap();
    for round in 0..50_u64 {
        let ending = runtime();
        for number in 0..4 {
            let locks = Locks::new(backend.clone());
            let key = format!("k{round}-{number}");
            ending.spawn(async move { locks.try_lock(key).await });
        }
        std::thread::sleep(Duration::from_micros(round * 20));
        ending.shutdown_background();
        first.block_on(async {
            let mut other = connection(&path).await;
            let write = "BEGIN IMMEDIATE; COMMIT";
            let written =
                async { while sqlx::raw_sql(write).execute(&mut other).await.is_err() {} };
            let in_time = tokio::time::timeout(PATIENCE, written).await;
            in_time.expect("the file stays locked");
        });
    }
}
