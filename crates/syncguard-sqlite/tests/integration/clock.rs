//! The system's clock steps while locks are held. All times of a store are in its rows, so a step of the clock
//! is a step of the rows the other way.

use std::path::Path;
use std::time::Duration;

use crate::common::{MINUTE, connection, file, release, take};
use sqlx::AssertSqlSafe;
use syncguard_core::backend::{ExtendRequest, LockBackend as _};
use syncguard_core::{Attempt, LockId, Locks, Ttl};
use syncguard_sqlite::{SqliteBackend, sqlx};

const HOUR_MS: i64 = 3_600_000;

async fn step_the_clock(path: &Path, by_ms: i64) {
    let step = format!(
        "UPDATE syncguard_locks SET expires_at_ms = expires_at_ms - {by_ms}, \
         acquired_at_ms = acquired_at_ms - {by_ms}"
    );
    let mut connection = connection(path).await;
    sqlx::raw_sql(AssertSqlSafe(step))
        .execute(&mut connection)
        .await
        .unwrap();
}

async fn extends(backend: &SqliteBackend, id: &LockId) -> bool {
    let deadline = tokio::time::Instant::now() + MINUTE;
    let request = ExtendRequest::new(id, Ttl::new(MINUTE).unwrap(), deadline);
    backend.extend(request).await.unwrap().is_extended()
}

#[tokio::test]
async fn set_forward_it_ends_leases_and_the_next_holder_has_a_higher_fence() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let first = take(&backend, &crate::common::key("k"), MINUTE).await;
    step_the_clock(&path, HOUR_MS).await;
    let second = take(&backend, &crate::common::key("k"), MINUTE).await;
    assert!(second.fence > first.fence);
    // The first holder finds out, and harms nobody.
    assert!(!extends(&backend, &first.lock_id).await);
    assert!(
        !release(&backend, &first.lock_id)
            .await
            .unwrap()
            .is_released()
    );
    assert!(extends(&backend, &second.lock_id).await);
}

#[tokio::test]
async fn set_back_it_lengthens_leases_and_a_release_ends_them() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let locks = Locks::new(backend.clone());
    let held = take(&backend, &crate::common::key("k"), MINUTE).await;
    step_the_clock(&path, -HOUR_MS).await;
    let Attempt::Locked { free_in, .. } = locks.try_lock("k").attempt().await.unwrap() else {
        panic!("the key is held");
    };
    assert!(free_in.unwrap() > MINUTE * 30, "{free_in:?}");
    let never = MINUTE * 60 * 24;
    let waiting = locks.lock("k").timeout(never).retry_delay(never);
    let waiting = tokio::spawn(async move { waiting.await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(
        release(&backend, &held.lock_id)
            .await
            .unwrap()
            .is_released()
    );
    let served = tokio::time::timeout(MINUTE, waiting).await;
    let served = served.expect("the waiter sleeps on").unwrap().unwrap();
    assert!(served.fence() > held.fence);
}
