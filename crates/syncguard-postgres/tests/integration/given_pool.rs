//! Connections that an application returned to its pool in the middle of a transaction.

use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};
use syncguard_postgres::{PostgresBackend, PostgresOptions};

use crate::common::{BareCalls as _, Fixture, id, key, ttl};

/// A pool of one connection, which the application used for these statements.
async fn used_for(fixture: &Fixture, statements: &[&str]) -> (PgPool, PostgresBackend) {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(20))
        .connect(&fixture.url)
        .await
        .unwrap();
    let mut connection = pool.acquire().await.unwrap();
    for statement in statements {
        let sql = AssertSqlSafe(fixture.filled(statement));
        // One of them is meant to fail.
        let _ = sqlx::raw_sql(sql).execute(&mut *connection).await;
    }
    drop(connection);
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::with_pool(pool.clone(), options).unwrap();
    (pool, backend)
}

#[tokio::test]
async fn a_grant_is_committed_whatever_transaction_the_pool_has_open() {
    let left_open: [&[&str]; 6] = [
        &["BEGIN"],
        &["BEGIN", "SELECT 1"],
        &["BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT 1"],
        &["BEGIN READ ONLY", "SELECT 1"],
        &["BEGIN", "SAVEPOINT s", "SELECT 1"],
        &["BEGIN", "SELECT 1 / 0"],
    ];
    for statements in left_open {
        let fixture = Fixture::new().await;
        let (pool, backend) = used_for(&fixture, statements).await;
        let (key, id) = (key("k"), id());
        let acquired = backend.acquire(&key, &id, ttl(60_000)).await.unwrap();
        let fence = acquired.granted().expect("a free key").fence;
        assert!(
            fixture.backend.is_locked(&key).await.unwrap(),
            "others see the grant after {statements:?}"
        );
        pool.close().await;
        let other = crate::common::id();
        let second = fixture.backend.acquire(&key, &other, ttl(60_000)).await;
        assert!(second.unwrap().is_locked(), "{statements:?}");
        assert!(fixture.backend.release(&id).await.unwrap().is_released());
        let next = fixture.backend.acquire(&key, &other, ttl(60_000)).await;
        assert!(next.unwrap().granted().unwrap().fence > fence);
    }
}

#[tokio::test]
async fn what_the_application_left_undone_is_not_committed_with_a_grant() {
    let fixture = Fixture::new().await;
    let undone = "INSERT INTO {fences} (fence_key, fence) VALUES ('undone', 1)";
    let (_pool, backend) = used_for(&fixture, &["BEGIN", undone]).await;
    let acquired = backend.acquire(&key("k"), &id(), ttl(60_000)).await;
    assert!(acquired.unwrap().granted().is_some());
    let kept = "SELECT count(*) FROM {fences} WHERE fence_key = 'undone'";
    assert_eq!(fixture.number(kept).await, 0);
}

#[tokio::test]
async fn reads_see_what_others_committed_after_a_snapshot_that_was_left_open() {
    let fixture = Fixture::new().await;
    let left_open = ["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"];
    let (_pool, backend) = used_for(&fixture, &left_open).await;
    let (key, id) = (key("k"), id());
    let acquired = fixture.backend.acquire(&key, &id, ttl(60_000)).await;
    assert!(acquired.unwrap().granted().is_some());
    assert!(backend.is_locked(&key).await.unwrap());
}
