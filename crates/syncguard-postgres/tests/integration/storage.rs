//! What the tables are like, in use and over time.

use std::time::Duration;

use futures_util::future::join_all;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;
use syncguard_core::{ErrorCode, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::PostgresServer;

use crate::common::{BareCalls as _, Fixture, id, key, ttl};

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
    let pool = crate::common::pool(
        &format!("{}?application_name={}", fixture.url, fixture.locks_table),
        4,
    )
    .await;
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::with_pool(pool.clone(), options).unwrap();
    let ids: Vec<_> = (0..ROWS).map(|_| id()).collect();
    for (index, id) in ids.iter().enumerate() {
        let granted = backend
            .acquire(&key(&format!("hot:{index}")), id, ttl(600_000))
            .await
            .unwrap();
        assert!(granted.granted().is_some());
    }
    let extends = async |clients: usize| {
        let tasks = (0..clients).map(|task| {
            let (backend, ids) = (backend.clone(), ids.clone());
            tokio::spawn(async move {
                for round in 0..EXTENDS / 2 / clients {
                    let id = &ids[(round * clients + task) % ROWS];
                    let extended = backend.extend(id, ttl(600_000)).await.unwrap();
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
        .number(&sessions.replace("{l}", &fixture.locks_table))
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
                    .replace("{l}", &fixture.locks_table),
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
        let one = PostgresOptions::new().max_connections(1);
        fixture.another_backend(one).await.setup_schema().await
    });
    for outcome in join_all(set_ups).await {
        outcome.unwrap();
    }
    fixture.backend.setup_schema().await.unwrap();
    assert!(
        fixture
            .locks
            .try_lock("set up")
            .ttl(MINUTE)
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn the_printed_ddl_makes_the_same_tables() {
    let fixture = Fixture::without_tables(&url().await, PostgresOptions::new()).await;
    let ddl = fixture.backend.schema_ddl();
    sqlx::raw_sql(AssertSqlSafe(ddl))
        .execute(&fixture.sql)
        .await
        .unwrap();
    let lock_id_index = "SELECT count(*) FROM pg_index WHERE indrelid = '{locks}'::regclass";
    assert_eq!(fixture.number(lock_id_index).await, 2);
    fixture.backend.setup_schema().await.unwrap();
    assert_eq!(fixture.number(lock_id_index).await, 2);
    let granted = fixture
        .locks
        .try_lock("printed")
        .ttl(MINUTE)
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
    fixture.backend.setup_schema().await.unwrap();
    let unique =
        "SELECT count(*) FROM pg_index WHERE indrelid = '{locks}'::regclass AND indisunique";
    assert_eq!(fixture.number(unique).await, 2);
    assert!(
        fixture
            .locks
            .try_lock("mended")
            .ttl(MINUTE)
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn a_role_with_permissions_on_rows_alone_is_enough() {
    let fixture = Fixture::new().await;
    let role = format!("role_{}", fixture.locks_table);
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
    let backend = PostgresBackend::connect_with(&as_role, options)
        .await
        .unwrap();
    backend.setup_schema().await.unwrap();
    let locks = Locks::new(backend.clone());
    assert!(!format!("{backend:?} {locks:?}").contains("sesame"));
    let guard = locks.try_lock("rows").ttl(MINUTE).await.unwrap().unwrap();
    assert!(
        guard
            .extend(MINUTE)
            .await
            .unwrap()
            .expires_at_ms()
            .is_some()
    );
    assert!(locks.is_locked("rows").await.unwrap());
    assert!(guard.release().await.unwrap().is_released());
    assert_eq!(locks.purge_expired().await.unwrap(), 0);

    // It may neither create what is missing nor use a table without permission.
    let missing = PostgresOptions::new().locks_table("none_such");
    let error = PostgresBackend::connect_with(&as_role, missing)
        .await
        .unwrap()
        .setup_schema()
        .await;
    assert_eq!(error.unwrap_err().code(), ErrorCode::AuthFailed);
    fixture
        .run(&format!("REVOKE ALL ON {{locks}} FROM {role}"))
        .await;
    let error = locks.try_lock("rows").ttl(MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AuthFailed);
    assert!(!format!("{error} {error:?}").contains("sesame"));
    fixture
        .run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await;
}

#[tokio::test]
async fn another_schema_and_mixed_case_work() {
    let fixture = Fixture::without_tables(&url().await, PostgresOptions::new()).await;
    let schema = format!("Schema_{}", fixture.locks_table);
    fixture.run(&format!("CREATE SCHEMA \"{schema}\"")).await;
    let options = PostgresOptions::new()
        .locks_table(format!("{schema}.MixedCase"))
        .fence_counters_table(format!("{schema}.Order"));
    let backend = PostgresBackend::connect_with(&fixture.url, options)
        .await
        .unwrap();
    backend.setup_schema().await.unwrap();
    let locks = Locks::new(backend);
    let guard = locks.try_lock("there").ttl(MINUTE).await.unwrap().unwrap();
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

    let error = PostgresOptions::new().locks_table("no_such_schema.locks");
    let backend = PostgresBackend::connect_with(&fixture.url, error)
        .await
        .unwrap();
    let error = backend.setup_schema().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn the_error_of_a_missing_table_names_its_fix() {
    let fixture = Fixture::without_tables(&url().await, PostgresOptions::new()).await;
    let errors = [
        fixture
            .locks
            .try_lock("none")
            .ttl(MINUTE)
            .await
            .unwrap_err(),
        fixture.locks.release(id()).await.unwrap_err(),
        fixture.locks.is_locked("none").await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(error.to_string().contains("setup_schema"), "{error}");
        assert!(!error.outcome_unknown());
    }
}

#[tokio::test]
async fn an_applications_pool_is_used_as_it_is() {
    let fixture = Fixture::new().await;
    let pool = PgPoolOptions::new().connect_lazy(&fixture.url).unwrap();
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::with_pool(pool.clone(), options).unwrap();
    let locks = Locks::new(backend);
    assert!(
        locks
            .try_lock("shared")
            .ttl(MINUTE)
            .await
            .unwrap()
            .is_some()
    );
    pool.close().await;
    let error = locks.try_lock("shared").ttl(MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
}
