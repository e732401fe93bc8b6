//! A pool of the application: transactions that it left open, dead connections, a failover.

use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgPool};
use syncguard_core::{ErrorCode, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::PostgresServer;
use tokio::time::timeout;

use crate::common::proxy::Wire;
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

#[tokio::test]
async fn an_operation_limits_its_waits_and_leaves_the_limit_of_the_application() {
    let own_and_expected = [("0", "500ms"), ("100ms", "100ms"), ("1min", "500ms")];
    for (own, expected) in own_and_expected {
        let fixture = Fixture::new().await;
        // Notes what limits a wait for the row.
        let noted = format!("{}_noted", fixture.locks_table);
        let note = format!(
            "CREATE TABLE {noted} (at TEXT, lock_timeout TEXT); \
             CREATE FUNCTION {noted}() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO {noted} VALUES (TG_OP, current_setting('lock_timeout')); \
             RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END; END $$; \
             CREATE TRIGGER noted BEFORE INSERT OR UPDATE OR DELETE ON {{locks}} \
             FOR EACH ROW EXECUTE FUNCTION {noted}()"
        );
        fixture.run(&note).await;
        let set = format!("SET lock_timeout = '{own}'");
        let (pool, backend) = used_for(&fixture, &[&set]).await;
        let (key, id) = (key("k"), id());
        let acquired = backend.acquire(&key, &id, ttl(60_000)).await.unwrap();
        assert!(acquired.granted().is_some());
        let extended = backend.extend(&id, ttl(60_000)).await.unwrap();
        assert!(extended.is_extended());
        assert!(backend.release(&id).await.unwrap().is_released());
        let select = AssertSqlSafe(format!("SELECT at, lock_timeout FROM {noted} ORDER BY at"));
        let notes: Vec<(String, String)> = sqlx::query_as(select)
            .fetch_all(&fixture.sql)
            .await
            .unwrap();
        let expected =
            ["DELETE", "INSERT", "UPDATE"].map(|at| (at.to_owned(), expected.to_owned()));
        assert_eq!(notes, expected);
        let shown: (String,) = sqlx::query_as("SHOW lock_timeout")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(shown.0, own);
    }
}

/// A pool with so many idle connections.
async fn idle(options: PgPoolOptions, connections: u32, url: &str) -> PgPool {
    let pool = options.max_connections(connections).connect(url).await;
    let pool = pool.unwrap();
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(pool.acquire().await.unwrap());
    }
    let returned = open.len();
    drop(open);
    while pool.num_idle() < returned {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pool
}

#[tokio::test]
async fn each_idle_connection_that_was_cut_off_silently_costs_at_most_one_deadline() {
    let fixture = Fixture::new().await;
    let (wire, url) = Wire::to(&fixture.url);
    let pool = idle(PgPoolOptions::new(), 3, &url).await;
    let options = fixture.named(PostgresOptions::new());
    let locks = Locks::builder(PostgresBackend::with_pool(pool, options).unwrap())
        .operation_timeout(Duration::from_secs(2))
        .build();
    wire.lose_connections();
    let mut failures = 0;
    while let Err(error) = locks.is_locked("k").await {
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
        assert!(!error.outcome_unknown(), "{error:?}");
        failures += 1;
        assert!(failures <= 3, "{error:?}");
    }
    assert!(failures > 0, "nothing was lost");
}

#[tokio::test]
async fn a_full_pool_is_rate_limited_also_after_a_test_that_hung() {
    let fixture = Fixture::new().await;
    let (wire, url) = Wire::to(&fixture.url);
    let pool = idle(PgPoolOptions::new(), 1, &url).await;
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::with_pool(pool.clone(), options).unwrap();
    let locks = Locks::builder(backend)
        .operation_timeout(Duration::from_secs(2))
        .build();
    wire.lose_connections();
    let error = locks.is_locked("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    let _busy = pool.acquire().await.unwrap();
    let error = locks.is_locked("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RateLimited, "{error:?}");
}

#[tokio::test]
async fn a_pool_that_limits_its_ping_replaces_such_a_connection_in_time() {
    let fixture = Fixture::new().await;
    let (wire, url) = Wire::to(&fixture.url);
    let second = Duration::from_secs(1);
    let checked = PgPoolOptions::new()
        .test_before_acquire(false)
        .before_acquire(move |connection, meta| {
            Box::pin(async move {
                let ping = timeout(second, connection.ping());
                Ok(meta.idle_for < second || matches!(ping.await, Ok(Ok(()))))
            })
        });
    let pool = idle(checked, 3, &url).await;
    let options = fixture.named(PostgresOptions::new());
    let locks = Locks::new(PostgresBackend::with_pool(pool, options).unwrap());
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    wire.lose_connections();
    for round in 0..3 {
        let guard = locks.try_lock(format!("k:{round}")).await.unwrap();
        assert!(guard.unwrap().release().await.unwrap().is_released());
    }
}

#[tokio::test]
async fn after_a_failover_each_old_connection_fails_once() {
    let (old, new) = (
        PostgresServer::start().unwrap(),
        PostgresServer::start().unwrap(),
    );
    let fixture = Fixture::at(&old.url(), PostgresOptions::new()).await;
    let options = fixture.named(PostgresOptions::new());
    let promoted = PostgresBackend::connect_with(&new.url(), options.clone())
        .await
        .unwrap();
    promoted.setup_schema().await.unwrap();
    let (wire, url) = Wire::to(&old.url());
    let pool = idle(PgPoolOptions::new(), 3, &url).await;
    let backend = PostgresBackend::with_pool(pool, options).unwrap();

    // It keeps its connections.
    fixture.refuse_writes().await;
    // Others may not have read the configuration yet.
    tokio::time::sleep(Duration::from_secs(2)).await;
    wire.lead_to(&new.url());
    let (key, id) = (key("k"), id());
    let mut failures = 0;
    loop {
        match backend.acquire(&key, &id, ttl(60_000)).await {
            Ok(acquired) => break assert!(acquired.granted().is_some()),
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
                assert!(!error.outcome_unknown());
                failures += 1;
                assert!(failures <= 3, "{error:?}");
            }
        }
    }
    assert!(failures > 0, "the old connections are used");
    assert!(promoted.is_locked(&key).await.unwrap());
}
