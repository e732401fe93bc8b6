//! Somebody else's transaction that holds what an operation needs, for minutes.

use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;
use syncguard_core::backend::{self, AcquireRequest};
use syncguard_core::{ErrorCode, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::{PgBouncer, PostgresServer};

use crate::common::{BareCalls as _, Fixture, id, key, pool, ttl};

const MINUTE: Duration = Duration::from_secs(60);

/// Every second for a while, one caller asks for the blocked key and another for a free one. Returns the most backends
/// that waited in the server.
async fn ask_every_second(fixture: &Fixture, locks: &Locks) -> i64 {
    let mut most_waiting = 0;
    let mut callers = Vec::new();
    for round in 0..8 {
        let blocked = locks.clone();
        callers.push(tokio::spawn(async move {
            blocked.try_lock("blocked").ttl(MINUTE).await
        }));
        tokio::time::sleep(Duration::from_millis(500)).await;
        // It would reach the operation timeout if it queued behind the blocked ones.
        let other = locks.try_lock(format!("free:{round}")).ttl(MINUTE).await;
        assert!(
            other
                .unwrap()
                .unwrap()
                .release()
                .await
                .unwrap()
                .is_released()
        );
        most_waiting = most_waiting.max(waiting(fixture).await);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    for caller in callers {
        match caller.await.unwrap() {
            Ok(guard) => assert!(guard.is_none(), "granted although it is blocked"),
            Err(error) => assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}"),
        }
    }
    most_waiting
}

async fn waiting(fixture: &Fixture) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    fixture.number(sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_key_blocks_no_other_and_leaves_no_backend_waiting() {
    blocks_no_other("direct").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_key_blocks_no_other_in_a_given_pool() {
    blocks_no_other("given").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_key_blocks_no_other_behind_a_transaction_pooler() {
    blocks_no_other("transaction").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_key_blocks_no_other_behind_a_session_pooler() {
    blocks_no_other("session").await;
}

async fn blocks_no_other(way: &str) {
    let blockers = [
        "SELECT pg_advisory_xact_lock(hashtext('blocked'))",
        "SELECT * FROM {locks} FOR UPDATE",
    ];
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    let options = PostgresOptions::new().transaction_pooler(way == "transaction");
    let options = fixture.named(options);
    let mut bouncer = None;
    let backend = match way {
        "given" => PostgresBackend::with_pool(pool(&server.url(), 10).await, options),
        "direct" => PostgresBackend::connect_with(&server.url(), options).await,
        mode => {
            let settings = [("default_pool_size", "10"), ("pool_mode", mode)];
            let bouncer = bouncer.insert(PgBouncer::start_with(&server, &settings).unwrap());
            PostgresBackend::connect_with(&bouncer.url(), options).await
        }
    };
    let locks = Locks::new(backend.unwrap());
    // A row that expired, to hold.
    let former = locks.try_lock("blocked").ttl(MINUTE).await.unwrap();
    let _ = former.unwrap().detach();
    fixture.age("blocked", Duration::from_secs(5)).await;
    for blocker in blockers {
        let mut busy = fixture.sql.begin().await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(fixture.filled(blocker)))
            .execute(&mut *busy)
            .await
            .unwrap();
        let most_waiting = ask_every_second(&fixture, &locks).await;
        assert!(most_waiting > 0, "{blocker}: it does block");
        assert!(most_waiting <= 10, "{blocker}: {most_waiting} wait");
        let ended = Instant::now();
        while waiting(&fixture).await > 0 {
            assert!(ended.elapsed() < Duration::from_secs(10), "{blocker}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        busy.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn a_locked_table_leaves_no_backend_of_a_given_pool_waiting() {
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::with_pool(pool(&fixture.url, 3).await, options).unwrap();
    let locks = Locks::builder(backend)
        .operation_timeout(Duration::from_secs(1))
        .build();
    let mut busy = fixture.sql.begin().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(fixture.filled("LOCK TABLE {locks}")))
        .execute(&mut *busy)
        .await
        .unwrap();
    let error = locks.is_locked("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
    assert_eq!(waiting(&fixture).await, 1);
    let started = Instant::now();
    while waiting(&fixture).await > 0 {
        assert!(started.elapsed() < Duration::from_secs(30), "they wait on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    busy.rollback().await.unwrap();
}

#[tokio::test]
async fn an_acquire_that_was_blocked_until_its_deadline_says_by_what_and_left_nothing() {
    let fixture = Fixture::new().await;
    let mut busy = fixture.sql.begin().await.unwrap();
    sqlx::raw_sql("SELECT pg_advisory_xact_lock(hashtext('blocked'))")
        .execute(&mut *busy)
        .await
        .unwrap();
    // Longer than its operation takes to give up, on a slow machine, too.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(3);
    let (key, id) = (key("blocked"), id());
    let request = AcquireRequest::new(&key, &id, ttl(60_000), deadline);
    let error = backend::LockBackend::acquire(&fixture.backend, request)
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(!error.outcome_unknown());
    assert!(error.to_string().contains("pg_blocking_pids"), "{error}");
}

#[tokio::test]
async fn a_release_and_an_extend_wait_for_the_row_for_as_long_as_their_caller() {
    let fixture = Fixture::new().await;
    let (key, id) = (key("k"), id());
    let acquired = fixture.backend.acquire(&key, &id, ttl(60_000)).await;
    assert!(acquired.unwrap().granted().is_some());
    let held_for = Duration::from_millis(1_800);
    let hold = async || {
        let mut busy = fixture.sql.begin().await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(
            fixture.filled("SELECT * FROM {locks} FOR UPDATE"),
        ))
        .execute(&mut *busy)
        .await
        .unwrap();
        busy
    };
    let busy = hold().await;
    let (extended, ()) = tokio::join!(fixture.backend.extend(&id, ttl(60_000)), async {
        tokio::time::sleep(held_for).await;
        busy.rollback().await.unwrap();
    });
    assert!(extended.unwrap().is_extended());
    let busy = hold().await;
    let (released, ()) = tokio::join!(fixture.backend.release(&id), async {
        tokio::time::sleep(held_for).await;
        busy.rollback().await.unwrap();
    });
    assert!(released.unwrap().is_released());
}
