//! The connections of a store that was made from a URL.

mod common;

use std::time::{Duration, Instant};

use common::{Fixture, id, key, ttl};
use sqlx::AssertSqlSafe;
use syncguard_core::{ErrorCode, LockBackend as _, ManagedBackend as _};
use syncguard_postgres::{PostgresBackend, PostgresOptions, PostgresStore};
use syncguard_testkit::{PgBouncer, PostgresServer};

/// Takes locks and gives them back, often enough that the server keeps its plans.
async fn in_and_out(store: &PostgresStore, times: u32) {
    for number in 0..times {
        let (key, id) = (key(&format!("key:{}", number % 7)), id());
        let taken = store.acquire(&key, &id, ttl(60_000)).await.unwrap();
        assert!(taken.granted().is_some());
        assert!(store.release(&id).await.unwrap().is_released());
    }
}

#[tokio::test]
async fn no_plan_reads_a_table_whole_however_small_it_was() {
    let fixture = Fixture::new().await;
    // What the server then believes in: tables of no page at all.
    fixture.run("VACUUM (ANALYZE) {locks}").await;
    fixture.run("VACUUM (ANALYZE) {fences}").await;
    let scans = async |kind: &str| {
        let sql = format!(
            "SELECT coalesce(sum({kind}), 0)::bigint FROM pg_stat_user_tables \
             WHERE relname IN ('{}', '{}')",
            fixture.locks, fixture.fences
        );
        let count = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql));
        count.fetch_one(&fixture.sql).await.unwrap()
    };
    let (whole, by_index) = (scans("seq_scan").await, scans("idx_scan").await);
    let store = fixture.another_store(PostgresOptions::new()).await;
    in_and_out(&store, 20).await;
    // Sessions report when they end.
    drop(store);
    let started = Instant::now();
    while scans("idx_scan").await < by_index + 40 {
        assert!(started.elapsed() < Duration::from_secs(20), "no report");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(scans("seq_scan").await, whole);
}

#[tokio::test]
async fn behind_a_pooler_no_setting_is_left_to_other_clients() {
    let server = PostgresServer::start().unwrap();
    let bouncer = PgBouncer::start(&server).unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    for told in [false, true] {
        let options = PostgresOptions::new()
            .with_transaction_pooler(told)
            .with_max_connections(1);
        let store = PostgresStore::connect_with(&bouncer.url(), fixture.named(options))
            .await
            .unwrap();
        in_and_out(&store, 3).await;
        let others = common::pool(&bouncer.url(), 1).await;
        for _ in 0..10 {
            for setting in ["enable_seqscan", "jit"] {
                let show = sqlx::raw_sql(AssertSqlSafe(format!("SHOW {setting}")));
                let row = show.fetch_one(&others).await.unwrap();
                let value: String = sqlx::Row::try_get(&row, 0).unwrap();
                assert_eq!(value, "on", "{setting}");
            }
        }
    }
}

#[tokio::test]
async fn settings_of_the_url_stay() {
    let fixture = Fixture::new().await;
    let url = format!("{}?options[statement_timeout]=50ms", fixture.url);
    let options = fixture.named(PostgresOptions::new());
    let store = PostgresStore::connect_with(&url, options).await.unwrap();
    let mut other = fixture.sql.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('busy'))")
        .execute(&mut *other)
        .await
        .unwrap();
    let error = store.acquire(&key("busy"), &id(), ttl(60_000)).await;
    assert_eq!(error.unwrap_err().code(), ErrorCode::NetworkTimeout);
}

#[tokio::test]
async fn where_all_are_in_use_that_is_told_and_the_next_gets_the_first_that_is_free() {
    let fixture = Fixture::new().await;
    let store = fixture
        .another_store(PostgresOptions::new().with_max_connections(1))
        .await;
    let mut other = fixture.sql.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('busy'))")
        .execute(&mut *other)
        .await
        .unwrap();
    let busy = tokio::spawn({
        let store = store.clone();
        async move { store.acquire(&key("busy"), &id(), ttl(60_000)).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    let error = store.is_locked(&key("another")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RateLimited, "{error:?}");
    assert!(!error.outcome_unknown());
    assert!(started.elapsed() < Duration::from_secs(5));

    let next = tokio::spawn({
        let store = store.clone();
        async move { store.is_locked(&key("another")).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    other.rollback().await.unwrap();
    assert!(!next.await.unwrap().unwrap());
    assert!(busy.await.unwrap().unwrap().granted().is_some());
}

#[tokio::test]
async fn an_operation_abandoned_in_the_server_gives_its_connection_back() {
    let fixture = Fixture::new().await;
    let url = format!("{}?application_name={}", fixture.url, fixture.locks);
    let options = fixture.named(PostgresOptions::new().with_max_connections(1));
    let backend = PostgresBackend::new(PostgresStore::connect_with(&url, options).await.unwrap());
    let session = async || {
        let sql = "SELECT pid::bigint FROM pg_stat_activity WHERE application_name = $1";
        let pids = sqlx::query_scalar::<_, i64>(sql).bind(&fixture.locks);
        pids.fetch_all(&fixture.sql).await.unwrap()
    };
    let first = session().await;
    assert_eq!(first.len(), 1);

    let mut other = fixture.sql.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('busy'))")
        .execute(&mut *other)
        .await
        .unwrap();
    let (key, id) = (key("busy"), id());
    let attempt = backend.acquire(&key, &id, ttl(60_000));
    let attempt = tokio::time::timeout(Duration::from_millis(100), attempt).await;
    assert!(attempt.is_err());
    other.rollback().await.unwrap();
    backend.drain(Duration::from_secs(10)).await.unwrap();
    assert!(!backend.is_locked(&key).await.unwrap());
    assert_eq!(session().await, first, "the same session serves on");
}

#[test]
fn a_store_may_outlive_the_runtime_that_made_it() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let first = runtime();
    let fixture = first.block_on(Fixture::new());
    let store = first.block_on(async {
        let store = fixture.another_store(PostgresOptions::new()).await;
        in_and_out(&store, 2).await;
        store
    });
    drop(first);
    let second = runtime();
    // Its connections ended with their runtime, and are replaced.
    let answers: Vec<_> = (0..4)
        .map(|_| second.block_on(store.is_locked(&key("outlived"))))
        .collect();
    assert!(matches!(answers.last(), Some(Ok(false))), "{answers:?}");
    drop(second);
    // Outside of any runtime.
    drop(store);
    drop(fixture.store);
}
