//! What the tables are like, in use and over time.

mod common;

use std::time::{Duration, Instant};

use common::{Fixture, id, key, ttl};
use futures_util::future::join_all;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;
use syncguard_core::{ErrorCode, LockBackend as _, acquire, is_locked, release};
use syncguard_postgres::{PostgresBackend, PostgresOptions, PostgresStore};
use syncguard_testkit::PostgresServer;

const MINUTE: Duration = Duration::from_secs(60);

async fn url() -> String {
    syncguard_testkit::shared_postgres_url().expect("a server")
}

#[tokio::test(flavor = "multi_thread")]
async fn extends_are_hot_updates_and_the_table_does_not_grow() {
    const ROWS: usize = 20;
    const EXTENDS: usize = 20_000;
    // A server of its own: old versions of a row cannot be cleared away while any transaction in
    // the database is older, and other tests keep some open.
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    // Statistics arrive when the sessions that made them end.
    let pool = common::pool(
        &format!("{}?application_name={}", fixture.url, fixture.locks),
        4,
    )
    .await;
    let options = fixture.named(PostgresOptions::new());
    let store = PostgresStore::with_pool(pool.clone(), options).unwrap();
    let ids: Vec<_> = (0..ROWS).map(|_| id()).collect();
    for (index, id) in ids.iter().enumerate() {
        let granted = store
            .acquire(&key(&format!("hot:{index}")), id, ttl(600_000))
            .await
            .unwrap();
        assert!(granted.granted().is_some());
    }
    let extends = async |clients: usize| {
        let tasks = (0..clients).map(|task| {
            let (store, ids) = (store.clone(), ids.clone());
            tokio::spawn(async move {
                for round in 0..EXTENDS / 2 / clients {
                    let id = &ids[(round * clients + task) % ROWS];
                    let extended = store.extend(id, ttl(600_000)).await.unwrap();
                    assert!(extended.expires_at_ms().is_some());
                }
            })
        });
        for task in join_all(tasks).await {
            task.unwrap();
        }
    };
    // Half of them one by one: by then the space of old versions must have been used again many
    // times. Concurrent sessions that need a page at one moment get dozens in advance, used or not.
    extends(1).await;
    let bytes = fixture.number("SELECT pg_relation_size('{locks}')").await;
    assert!(bytes <= 4 * 8192, "{bytes} bytes for {ROWS} rows");
    extends(4).await;
    pool.close().await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{l}'";
    while fixture
        .number(&sessions.replace("{l}", &fixture.locks))
        .await
        > 0
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let statistic = async |column: &str| {
        let sql = "SELECT {column} FROM pg_stat_user_tables WHERE relname = '{l}'";
        fixture
            .number(
                &sql.replace("{column}", column)
                    .replace("{l}", &fixture.locks),
            )
            .await
    };
    let (updates, hot) = (
        statistic("n_tup_upd").await,
        statistic("n_tup_hot_upd").await,
    );
    assert_eq!(updates, i64::try_from(EXTENDS).unwrap());
    assert!(hot * 100 >= updates * 99, "{hot} of {updates} are HOT");
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_set_ups_at_once_succeed() {
    let fixture = Fixture::without_tables(&url().await, PostgresOptions::new()).await;
    let set_ups = (0..32).map(|_| async {
        let one = PostgresOptions::new().with_max_connections(1);
        fixture.another_store(one).await.setup_schema().await
    });
    for outcome in join_all(set_ups).await {
        outcome.unwrap();
    }
    fixture.store.setup_schema().await.unwrap();
    assert!(
        acquire(&fixture.backend, "set up", MINUTE)
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn the_printed_ddl_makes_the_same_tables() {
    let fixture = Fixture::without_tables(&url().await, PostgresOptions::new()).await;
    let ddl = fixture.store.schema_ddl();
    sqlx::raw_sql(AssertSqlSafe(ddl))
        .execute(&fixture.sql)
        .await
        .unwrap();
    let lock_id_index = "SELECT count(*) FROM pg_index WHERE indrelid = '{locks}'::regclass";
    assert_eq!(fixture.number(lock_id_index).await, 2);
    fixture.store.setup_schema().await.unwrap();
    assert_eq!(fixture.number(lock_id_index).await, 2);
    let granted = acquire(&fixture.backend, "printed", MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert!(granted.release().await.unwrap().is_released());
}

#[tokio::test]
async fn a_missing_index_is_made_and_the_rest_left() {
    let fixture = Fixture::without_tables(&url().await, PostgresOptions::new()).await;
    fixture
        .run(
            "CREATE TABLE {locks} (key TEXT PRIMARY KEY, lock_id TEXT NOT NULL, \
             expires_at_ms BIGINT NOT NULL, acquired_at_ms BIGINT NOT NULL, \
             fence TEXT NOT NULL, user_key TEXT NOT NULL)",
        )
        .await;
    fixture.store.setup_schema().await.unwrap();
    let unique =
        "SELECT count(*) FROM pg_index WHERE indrelid = '{locks}'::regclass AND indisunique";
    assert_eq!(fixture.number(unique).await, 2);
    assert!(
        acquire(&fixture.backend, "mended", MINUTE)
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn a_role_with_rights_on_rows_alone_is_enough() {
    let fixture = Fixture::new().await;
    let role = format!("role_{}", fixture.locks);
    fixture
        .run(&format!(
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC;\
             CREATE ROLE {role} LOGIN PASSWORD 'open sesame';\
             GRANT SELECT, INSERT, UPDATE, DELETE ON {{locks}}, {{fences}} TO {role};"
        ))
        .await;
    let as_role = fixture
        .url
        .replacen("postgres@", &format!("{role}:open%20sesame@"), 1);
    let options = fixture.named(PostgresOptions::new());
    let store = PostgresStore::connect_with(&as_role, options)
        .await
        .unwrap();
    store.setup_schema().await.unwrap();
    let backend = PostgresBackend::new(store.clone());
    assert!(!format!("{store:?} {backend:?}").contains("sesame"));
    let guard = acquire(&backend, "rows", MINUTE).await.unwrap().unwrap();
    assert!(
        guard
            .extend(MINUTE)
            .await
            .unwrap()
            .expires_at_ms()
            .is_some()
    );
    assert!(is_locked(&backend, "rows").await.unwrap());
    assert!(guard.release().await.unwrap().is_released());
    assert_eq!(store.purge_expired().await.unwrap(), 0);

    // It may not create what is missing, and not touch what it has no right to.
    let missing = PostgresOptions::new().with_locks_table("none_such");
    let error = PostgresStore::connect_with(&as_role, missing)
        .await
        .unwrap()
        .setup_schema()
        .await;
    assert_eq!(error.unwrap_err().code(), ErrorCode::AuthFailed);
    fixture
        .run(&format!("REVOKE ALL ON {{locks}} FROM {role}"))
        .await;
    let error = acquire(&backend, "rows", MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AuthFailed);
    assert!(!format!("{error} {error:?}").contains("sesame"));
    fixture
        .run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await;
}

#[tokio::test]
async fn another_schema_and_mixed_case_work() {
    let fixture = Fixture::without_tables(&url().await, PostgresOptions::new()).await;
    let schema = format!("Schema_{}", fixture.locks);
    fixture.run(&format!("CREATE SCHEMA \"{schema}\"")).await;
    let options = PostgresOptions::new()
        .with_locks_table(format!("{schema}.MixedCase"))
        .with_fence_counters_table(format!("{schema}.Order"));
    let store = PostgresStore::connect_with(&fixture.url, options)
        .await
        .unwrap();
    store.setup_schema().await.unwrap();
    let backend = PostgresBackend::new(store);
    let guard = acquire(&backend, "there", MINUTE).await.unwrap().unwrap();
    let rows = format!("SELECT count(*) FROM \"{schema}\".\"MixedCase\"");
    assert_eq!(fixture.number(&rows).await, 1);
    assert!(
        guard
            .extend(MINUTE)
            .await
            .unwrap()
            .expires_at_ms()
            .is_some()
    );
    assert!(guard.release().await.unwrap().is_released());
    fixture
        .run(&format!("DROP SCHEMA \"{schema}\" CASCADE"))
        .await;

    let error = PostgresOptions::new().with_locks_table("no_such_schema.locks");
    let store = PostgresStore::connect_with(&fixture.url, error)
        .await
        .unwrap();
    let error = store.setup_schema().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn a_missing_table_names_its_cure() {
    let fixture = Fixture::without_tables(&url().await, PostgresOptions::new()).await;
    let errors = [
        acquire(&fixture.backend, "none", MINUTE).await.unwrap_err(),
        release(&fixture.backend, &id()).await.unwrap_err(),
        is_locked(&fixture.backend, "none").await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(error.to_string().contains("setup_schema"), "{error}");
        assert!(!error.outcome_unknown());
    }
}

#[tokio::test]
async fn a_purge_deletes_what_expired_long_ago_and_no_fence() {
    let fixture = Fixture::new().await;
    for (key, past) in [("old", 2_500), ("older", 60_000)] {
        let _ = acquire(&fixture.backend, key, MINUTE)
            .await
            .unwrap()
            .unwrap()
            .detach();
        fixture.age(key, Duration::from_millis(past)).await;
    }
    let _ = acquire(&fixture.backend, "recent", MINUTE)
        .await
        .unwrap()
        .unwrap()
        .detach();
    fixture.age("recent", Duration::ZERO).await;
    let live = acquire(&fixture.backend, "live", MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(fixture.store.purge_expired().await.unwrap(), 2);
    assert_eq!(fixture.number("SELECT count(*) FROM {locks}").await, 2);
    assert_eq!(fixture.number("SELECT count(*) FROM {fences}").await, 4);
    assert!(live.release().await.unwrap().is_released());
    let again = acquire(&fixture.backend, "old", MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(again.fence().get(), 2);

    // More than one batch, some of them in use.
    fixture
        .run(
            "INSERT INTO {locks} SELECT 'many:' || n, 'id' || n, 0, 0, lpad('1', 15, '0'), 'many' \
             FROM generate_series(1, 2500) AS n",
        )
        .await;
    let mut busy = fixture.sql.begin().await.unwrap();
    let lock =
        fixture.filled("SELECT key FROM {locks} WHERE key IN ('many:7', 'many:8') FOR UPDATE");
    sqlx::query(AssertSqlSafe(lock))
        .execute(&mut *busy)
        .await
        .unwrap();
    assert!(fixture.store.purge_expired().await.unwrap() >= 2_498);
    busy.rollback().await.unwrap();
    assert_eq!(fixture.store.purge_expired().await.unwrap(), 2);
}

#[tokio::test]
async fn is_locked_clears_up_only_if_asked_to() {
    let fixture = Fixture::new().await;
    let cleaning = fixture
        .another(PostgresOptions::new().with_cleanup_in_is_locked(true))
        .await;
    let rows = "SELECT count(*) FROM {locks}";
    let stale = |n| format!("stale:{n}");
    for n in 0..20 {
        let _ = acquire(&fixture.backend, stale(n), MINUTE)
            .await
            .unwrap()
            .unwrap()
            .detach();
        fixture.age(&stale(n), Duration::from_secs(3)).await;
    }
    for n in 0..20 {
        assert!(!is_locked(&fixture.backend, stale(n)).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.number(rows).await, 20, "not asked to");

    let started = Instant::now();
    for n in 0..20 {
        assert!(!is_locked(&cleaning, stale(n)).await.unwrap());
    }
    let allowed = 1 + i64::try_from(started.elapsed().as_secs()).unwrap();
    while fixture.number(rows).await == 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let cleared = 20 - fixture.number(rows).await;
    assert!(
        (1..=allowed).contains(&cleared),
        "one a second, not {cleared}"
    );
    assert_eq!(fixture.number("SELECT count(*) FROM {fences}").await, 20);

    // Expired, but not for long: the row stays.
    let _ = acquire(&fixture.backend, "recent", MINUTE)
        .await
        .unwrap()
        .unwrap()
        .detach();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    fixture.age("recent", Duration::ZERO).await;
    let _ = is_locked(&cleaning, "recent").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let recent = "SELECT count(*) FROM {locks} WHERE key = 'recent'";
    assert_eq!(fixture.number(recent).await, 1);
}

#[tokio::test]
async fn an_applications_pool_is_used_as_it_is() {
    let fixture = Fixture::new().await;
    let pool = PgPoolOptions::new().connect_lazy(&fixture.url).unwrap();
    let options = fixture.named(PostgresOptions::new());
    let store = PostgresStore::with_pool(pool.clone(), options).unwrap();
    let backend = PostgresBackend::new(store);
    assert!(acquire(&backend, "shared", MINUTE).await.unwrap().is_some());
    pool.close().await;
    let error = acquire(&backend, "shared", MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
}
