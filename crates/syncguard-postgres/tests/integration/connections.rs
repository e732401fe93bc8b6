//! The connections of a backend that was made from a URL.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sqlx::AssertSqlSafe;
use syncguard_core::{ErrorCode, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::{PgBouncer, PostgresServer, in_time};

use crate::common::proxy::Wire;
use crate::common::{BareCalls as _, Fixture, id, key, ttl};

const MINUTE: Duration = Duration::from_secs(60);

/// Acquires and releases, often enough that the server keeps its plans.
async fn in_and_out(backend: &PostgresBackend, times: u32) {
    for number in 0..times {
        let (key, id) = (key(&format!("key:{}", number % 7)), id());
        let acquired = backend.acquire(&key, &id, ttl(60_000)).await.unwrap();
        assert!(acquired.granted().is_some());
        assert!(backend.release(&id).await.unwrap().is_released());
    }
}

#[tokio::test]
async fn no_plan_reads_a_table_whole_however_small_it_was() {
    let fixture = Fixture::new().await;
    // The server then plans for tables without any page.
    fixture.run("VACUUM (ANALYZE) {locks}").await;
    fixture.run("VACUUM (ANALYZE) {fences}").await;
    let scans = async |kind: &str| {
        let sql = format!(
            "SELECT coalesce(sum({kind}), 0)::bigint FROM pg_stat_user_tables \
             WHERE relname IN ('{}', '{}')",
            fixture.locks_table, fixture.fences_table
        );
        let count = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql));
        count.fetch_one(&fixture.sql).await.unwrap()
    };
    let (whole, by_index) = (scans("seq_scan").await, scans("idx_scan").await);
    let backend = fixture.another_backend(PostgresOptions::new()).await;
    in_and_out(&backend, 20).await;
    // Sessions report when they end.
    drop(backend);
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
    for configured in [false, true] {
        let options = PostgresOptions::new()
            .transaction_pooler(configured)
            .max_connections(1);
        let backend = PostgresBackend::connect_with(&bouncer.url(), fixture.named(options))
            .await
            .unwrap();
        in_and_out(&backend, 3).await;
        let others = crate::common::pool(&bouncer.url(), 1).await;
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
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    let mut other = fixture.sql.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('busy'))")
        .execute(&mut *other)
        .await
        .unwrap();
    let error = backend.acquire(&key("busy"), &id(), ttl(60_000)).await;
    assert_eq!(error.unwrap_err().code(), ErrorCode::NetworkTimeout);
}

#[tokio::test]
async fn libpqs_parameters_are_ignored_where_that_is_safe_and_refused_without_their_value() {
    let fixture = Fixture::new().await;
    let url = format!(
        "{}?channel_binding=prefer&client_encoding=UTF8&connect_timeout=10&\
         fallback_application_name=app&gssencmode=prefer&keepalives=1&keepalives_count=3&\
         keepalives_idle=30&keepalives_interval=10&sslcompression=0&sslsni=1&\
         target_session_attrs=read-write&tcp_user_timeout=5000",
        fixture.url
    );
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    in_and_out(&backend, 2).await;
    for name in ["channel_binding", "target_session_attrs", "passwd"] {
        let url = format!("{}?connect_timeout=10&{name}=hunter2", fixture.url);
        let error = PostgresBackend::connect(&url).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
        let texts = syncguard_testkit::texts(&error);
        assert!(texts.contains(name), "{texts}");
        assert!(!texts.contains("hunter2"), "{texts}");
    }
}

#[tokio::test]
async fn while_all_are_in_use_operations_are_rate_limited_and_then_served() {
    let fixture = Fixture::new().await;
    // Otherwise the server would end the wait, and another operation would get its turn.
    let url = format!("{}?options[lock_timeout]=0", fixture.url);
    let options = fixture.named(PostgresOptions::new().max_connections(1));
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    let mut other = fixture.sql.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('busy'))")
        .execute(&mut *other)
        .await
        .unwrap();
    let busy = tokio::spawn({
        let backend = backend.clone();
        async move { backend.acquire(&key("busy"), &id(), ttl(60_000)).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // However short the deadline is: nothing was sent, so there is nothing to settle.
    for operation_timeout in [5, 50, 1_000].map(Duration::from_millis) {
        let locks = Locks::builder(backend.clone())
            .operation_timeout(operation_timeout)
            .build();
        let attempt = locks.try_lock("another").ttl(MINUTE);
        let ended = in_time(operation_timeout, attempt).await.unwrap();
        let error = ended.unwrap_err();
        assert_eq!(error.code(), ErrorCode::RateLimited, "{error:?}");
        assert!(!error.outcome_unknown());
        assert_eq!(locks.pending(), 0);
    }

    let next = tokio::spawn({
        let backend = backend.clone();
        async move { backend.is_locked(&key("another")).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    other.rollback().await.unwrap();
    assert!(!next.await.unwrap().unwrap());
    assert!(busy.await.unwrap().unwrap().granted().is_some());
}

#[tokio::test]
async fn who_waits_for_a_new_connection_uses_one_that_becomes_free() {
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    fixture
        .run("CREATE ROLE app LOGIN CONNECTION LIMIT 1; GRANT ALL ON {locks}, {fences} TO app")
        .await;
    let url = format!(
        "{}?options[lock_timeout]=0",
        server.url().replace("postgres@", "app@")
    );
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    let mut other = fixture.sql.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('busy'))")
        .execute(&mut *other)
        .await
        .unwrap();
    let busy = tokio::spawn({
        let backend = backend.clone();
        async move { backend.acquire(&key("busy"), &id(), ttl(60_000)).await }
    });
    fixture.until_queued("busy").await;
    let next = tokio::spawn({
        let backend = backend.clone();
        async move { backend.is_locked(&key("another")).await }
    });
    // The server refuses a second connection. Attempts to open one would go on for 4 s.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!next.is_finished());
    other.rollback().await.unwrap();
    assert!(!next.await.unwrap().unwrap());
    assert!(busy.await.unwrap().unwrap().granted().is_some());
}

#[tokio::test]
async fn settings_that_a_pooler_refused_are_in_force_on_the_server_after_it() {
    let (old, new) = (
        PostgresServer::start().unwrap(),
        PostgresServer::start().unwrap(),
    );
    let session = [("pool_mode", "session")];
    let bouncer = PgBouncer::start_with(&old, &session).unwrap();
    let fixture = Fixture::at(&old.url(), PostgresOptions::new()).await;
    let options = fixture.named(PostgresOptions::new().max_connections(1));
    let promoted = PostgresBackend::connect_with(&new.url(), options.clone())
        .await
        .unwrap();
    promoted.setup_schema().await.unwrap();
    let (wire, url) = Wire::to(&bouncer.url());
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    fixture.refuse_writes().await;
    let started = Instant::now();
    while backend.release(&id()).await.is_ok() {
        assert!(started.elapsed() < Duration::from_secs(20), "no reload");
    }
    wire.lead_to(&new.url());
    assert!(!backend.release(&id()).await.unwrap().is_released());
    // Only with `lock_timeout` does the error say what blocked the acquire.
    let beside = crate::common::pool(&new.url(), 1).await;
    let mut busy = beside.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('busy'))")
        .execute(&mut *busy)
        .await
        .unwrap();
    let (key, id) = (key("busy"), id());
    let acquire = backend.acquire(&key, &id, ttl(60_000));
    let acquired = tokio::time::timeout(Duration::from_secs(20), acquire).await;
    let error = acquired.expect("`lock_timeout` ends it").unwrap_err();
    assert!(error.to_string().contains("pg_blocking_pids"), "{error}");
}

#[tokio::test]
async fn an_operation_abandoned_in_the_server_returns_its_connection() {
    let fixture = Fixture::new().await;
    let url = format!("{}?application_name={}", fixture.url, fixture.locks_table);
    let options = fixture.named(PostgresOptions::new().max_connections(1));
    let locks = Locks::new(PostgresBackend::connect_with(&url, options).await.unwrap());
    let session = async || {
        let sql = "SELECT pid::bigint FROM pg_stat_activity WHERE application_name = $1";
        let pids = sqlx::query_scalar::<_, i64>(sql).bind(&fixture.locks_table);
        pids.fetch_all(&fixture.sql).await.unwrap()
    };
    let first = session().await;
    assert_eq!(first.len(), 1);

    let mut other = fixture.sql.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('busy'))")
        .execute(&mut *other)
        .await
        .unwrap();
    let attempt = locks.try_lock("busy").ttl(MINUTE);
    let attempt = tokio::time::timeout(Duration::from_millis(100), attempt.attempt()).await;
    assert!(attempt.is_err());
    other.rollback().await.unwrap();
    locks.drain(Duration::from_secs(10)).await.unwrap();
    assert!(!locks.is_locked("busy").await.unwrap());
    assert_eq!(session().await, first, "the same session serves on");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_that_were_cut_off_silently_are_replaced_in_time() {
    for connections in [1, 10] {
        let fixture = Fixture::new().await;
        let (wire, url) = Wire::to(&fixture.url);
        let url = format!("{url}?application_name={}", fixture.locks_table);
        let options = fixture.named(PostgresOptions::new().max_connections(connections));
        let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
        wire.open_connections(&backend, connections).await;
        let locks = Locks::new(backend);
        let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{l}'";
        let open = open.replace("{l}", &fixture.locks_table);
        assert!(fixture.number(&open).await > i64::from(connections) / 2);

        // They are trusted for a second.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        wire.lose_connections();
        let first =
            (0..connections).map(|n| locks.try_lock(format!("k:{n}")).ttl(MINUTE).attempt());
        for outcome in join_all(first).await {
            assert!(outcome.unwrap().acquired().is_some());
        }
    }
}

#[test]
fn a_backend_may_outlive_the_runtime_that_made_it() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let first = runtime();
    let fixture = first.block_on(Fixture::new());
    let backend = first.block_on(async {
        let backend = fixture.another_backend(PostgresOptions::new()).await;
        in_and_out(&backend, 2).await;
        backend
    });
    drop(first);
    let second = runtime();
    // Its two connections ended with their runtime. Each is replaced once it fails; until it has to wait for a reply, it
    // does not.
    let answers: Vec<_> = (0..20)
        .map(|_| second.block_on(backend.is_locked(&key("outlived"))))
        .collect();
    let failed = answers.iter().filter(|answer| answer.is_err());
    assert!(failed.count() <= 2, "{answers:?}");
    drop(second);
    // Outside of any runtime.
    drop(backend);
    drop(fixture);
}

#[tokio::test]
async fn close_waits_for_what_is_in_flight_and_ends_the_sessions() {
    let fixture = Fixture::new().await;
    let url = format!("{}?application_name={}", fixture.url, fixture.locks_table);
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    let locks = Locks::new(backend.clone());
    let sessions = async || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
        let count = sqlx::query_scalar::<_, i64>(sql).bind(&fixture.locks_table);
        count.fetch_one(&fixture.sql).await.unwrap()
    };
    let attempts = (0..4).map(|n| locks.try_lock(format!("key:{n}")).attempt());
    for attempt in join_all(attempts).await {
        drop(attempt.unwrap());
    }
    locks.drain(Duration::from_secs(10)).await.unwrap();

    let mut other = fixture.sql.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('busy'))")
        .execute(&mut *other)
        .await
        .unwrap();
    let busy = tokio::spawn(locks.try_lock("busy").ttl(MINUTE).attempt());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let close = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close().await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!close.is_finished(), "it waits");
    assert_eq!(sessions().await, 1, "idle connections are closed already");
    let error = locks.is_locked("another").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    other.rollback().await.unwrap();

    close.await.unwrap().unwrap();
    let guard = busy.await.unwrap().unwrap().acquired().expect("a free key");
    let _lease = guard.detach();
    let started = Instant::now();
    while sessions().await > 0 {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "a session stays"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for error in [
        locks.try_lock("k").await.map(drop).unwrap_err(),
        locks.release(id()).await.map(drop).unwrap_err(),
        locks.preflight().await.map(drop).unwrap_err(),
        locks.purge_expired().await.map(drop).unwrap_err(),
        backend.setup_schema().await.unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
        assert!(!error.outcome_unknown());
    }
    locks.close().await.expect("closing again changes nothing");
}

#[tokio::test]
async fn close_ends_by_its_deadline_and_a_late_operation_closes_its_connection() {
    let fixture = Fixture::new().await;
    let url = format!("{}?application_name={}", fixture.url, fixture.locks_table);
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    let mut other = fixture.sql.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('busy'))")
        .execute(&mut *other)
        .await
        .unwrap();
    let busy = tokio::spawn({
        let backend = backend.clone();
        async move { backend.acquire(&key("busy"), &id(), ttl(60_000)).await }
    });
    fixture.until_queued("busy").await;
    let locks = Locks::builder(backend)
        .operation_timeout(Duration::from_millis(200))
        .build();
    let error = locks.close().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
    other.rollback().await.unwrap();
    assert!(busy.await.unwrap().unwrap().granted().is_some());
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{l}'";
    let sessions = sessions.replace("{l}", &fixture.locks_table);
    let started = Instant::now();
    while fixture.number(&sessions).await > 0 {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "a session stays"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_given_pool_stays_open() {
    let fixture = Fixture::new().await;
    let pool = crate::common::pool(&fixture.url, 3).await;
    let options = fixture.named(PostgresOptions::new().max_connections(77));
    let backend = PostgresBackend::with_pool(pool.clone(), options).unwrap();
    let shown = format!("{backend:?} {backend:#?}");
    assert!(shown.contains("max_connections: 3"), "{shown}");
    assert!(!shown.contains("max_connections: 77"), "{shown}");
    let locks = Locks::new(backend);
    assert!(!locks.is_locked("k").await.unwrap());
    locks.close().await.unwrap();
    let error = locks.is_locked("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(!pool.is_closed());
    sqlx::query("SELECT 1").execute(&pool).await.unwrap();
}
