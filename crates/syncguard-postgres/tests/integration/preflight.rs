//! The preflight on servers and tables that are set up wrongly, one way each, and on those that are
//! not.

use std::time::{Duration, Instant};

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use syncguard_core::{ErrorCode, Finding, Locks, Severity};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::{PgBouncer, PostgresServer};

use crate::common::Fixture;

const ERROR: Severity = Severity::Error;
const WARNING: Severity = Severity::Warning;
const INFO: Severity = Severity::Info;

type Seen = Vec<(Severity, &'static str)>;

fn seen(findings: &[Finding]) -> Seen {
    findings.iter().map(|f| (f.severity(), f.code())).collect()
}

async fn findings_of(backend: PostgresBackend) -> Vec<Finding> {
    Locks::new(backend).preflight().await.unwrap()
}

/// A server in order but for these settings, and tables on it.
async fn server_with(settings: &[(&str, &str)]) -> (PostgresServer, Fixture) {
    let server = PostgresServer::start_with(&[&[("fsync", "on")], settings].concat()).unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    (server, fixture)
}

#[tokio::test]
async fn a_server_in_order_has_no_findings_and_is_left_as_it_was() {
    // Otherwise autovacuum would write, too.
    let (_server, fixture) = server_with(&[("autovacuum", "off")]).await;
    let held = fixture
        .locks
        .try_lock("k")
        .ttl(Duration::from_secs(60))
        .await;
    let _held = held.unwrap().unwrap();
    // Every write takes the next number.
    let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL";
    let (before, open) = (
        fixture.number(next).await,
        fixture.number(connections).await,
    );
    for _ in 0..3 {
        assert_eq!(fixture.locks.preflight().await.unwrap(), []);
    }
    assert_eq!(fixture.number(next).await, before);
    for _ in 0..200 {
        if fixture.number(connections).await <= open {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("a connection stays open");
}

#[tokio::test]
async fn settings_of_the_server() {
    for (setting, value, expected) in [
        (
            "synchronous_commit",
            "off",
            (WARNING, "postgres-asynchronous-commit"),
        ),
        ("fsync", "off", (WARNING, "postgres-fsync-off")),
    ] {
        let (_server, fixture) = server_with(&[(setting, value)]).await;
        assert_eq!(seen(&findings_of(fixture.backend).await), [expected]);
    }
}

#[tokio::test]
async fn a_database_that_cannot_store_every_key() {
    let (server, fixture) = server_with(&[]).await;
    fixture
        .run("CREATE DATABASE western TEMPLATE template0 ENCODING LATIN1 LOCALE 'C'")
        .await;
    let url = server.url();
    let url = format!("{}/western", url.rsplit_once('/').unwrap().0);
    let fixture = Fixture::at(&url, PostgresOptions::new()).await;
    let expected = [(WARNING, "postgres-encoding")];
    assert_eq!(seen(&findings_of(fixture.backend).await), expected);
}

#[tokio::test]
async fn a_snapshot_that_is_older_than_a_minute() {
    let (_server, fixture) = server_with(&[]).await;
    let mut report = fixture.sql.begin().await.unwrap();
    sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .execute(&mut *report)
        .await
        .unwrap();
    assert_eq!(fixture.locks.preflight().await.unwrap(), []);
    tokio::time::sleep(Duration::from_secs(62)).await;
    let findings = fixture.locks.preflight().await.unwrap();
    assert_eq!(seen(&findings), [(INFO, "postgres-old-snapshot")]);
    report.rollback().await.unwrap();
    assert_eq!(fixture.locks.preflight().await.unwrap(), []);
}

#[tokio::test]
async fn an_advisory_lock_whose_number_could_be_that_of_a_key() {
    let (_server, fixture) = server_with(&[]).await;
    let shared = vec![(INFO, "postgres-shared-lock-numbers")];
    let cases = [
        ("pg_advisory_lock(42)", shared.clone()),
        ("pg_advisory_lock_shared(-2147483648)", shared.clone()),
        ("pg_advisory_lock(hashtext('migrations'))", shared),
        // No hash of a key is so large.
        ("pg_advisory_lock(2147483648)", vec![]),
        ("pg_advisory_lock(-2147483649)", vec![]),
        ("pg_advisory_lock(1, 42)", vec![]),
    ];
    for (lock, expected) in cases {
        let mut application = PgConnection::connect(&fixture.url).await.unwrap();
        let held = sqlx::raw_sql(AssertSqlSafe(format!("SELECT {lock}")));
        held.execute(&mut application).await.unwrap();
        // An acquire holds its own for less.
        assert_eq!(fixture.locks.preflight().await.unwrap(), [], "{lock}");
        tokio::time::sleep(Duration::from_secs(6)).await;
        let findings = fixture.locks.preflight().await.unwrap();
        assert_eq!(seen(&findings), expected, "{lock}: {findings:#?}");
        application.close().await.unwrap();
        let started = Instant::now();
        while !fixture.locks.preflight().await.unwrap().is_empty() {
            assert!(started.elapsed() < Duration::from_secs(20), "{lock}");
        }
    }
}

#[tokio::test]
async fn functions_that_shadow_built_in_ones_and_quoted_names_change_nothing() {
    let (_server, fixture) = server_with(&[]).await;
    // The arguments match better than those of the built-in functions.
    let wrong = "CREATE SCHEMA shadow;
        CREATE FUNCTION shadow.concat_ws(text, text, text) RETURNS text LANGUAGE sql AS 'SELECT $3';
        CREATE FUNCTION shadow.concat_ws(text, text, text, text) RETURNS text LANGUAGE sql
            AS 'SELECT $4';
        CREATE FUNCTION shadow.lpad(text, int, text) RETURNS text LANGUAGE sql AS $$SELECT '0'$$;
        CREATE FUNCTION shadow.hashtext(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
        CREATE FUNCTION shadow.clock_timestamp() RETURNS timestamptz LANGUAGE sql
            AS $$SELECT 'epoch'::timestamptz$$;
        CREATE FUNCTION shadow.to_regclass(text) RETURNS regclass LANGUAGE sql
            AS 'SELECT NULL::regclass';
        CREATE FUNCTION shadow.current_setting(text) RETURNS text LANGUAGE sql
            AS $$SELECT 'off'::text$$;
        CREATE FUNCTION shadow.format_type(oid, int) RETURNS text LANGUAGE sql
            AS $$SELECT 'shadow'::text$$;
        CREATE TABLE shadow.pg_class (relname name)";
    fixture.run(wrong).await;
    let url = format!(
        "{}?options[search_path]=shadow,pg_catalog,public&options[quote_all_identifiers]=on",
        fixture.url
    );
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    backend.setup_schema().await.unwrap();
    let locks = Locks::new(backend);
    assert_eq!(locks.preflight().await.unwrap(), []);
    let guard = locks.try_lock("k").ttl(Duration::from_secs(60)).await;
    let guard = guard.unwrap().unwrap();
    assert!(locks.try_lock("k").await.unwrap().is_none());
    assert!(locks.is_locked("k").await.unwrap());
    assert_eq!(
        locks.get_by_key("k").await.unwrap().unwrap().fence,
        guard.fence()
    );
    assert!(
        guard
            .extend(Duration::from_secs(90))
            .await
            .unwrap()
            .is_extended()
    );
    assert!(guard.release().await.unwrap().is_released());
    assert!(!fixture.locks.is_locked("k").await.unwrap());
    assert_eq!(locks.purge_expired().await.unwrap(), 0);
}

#[tokio::test]
async fn read_only_and_standby() {
    let (mut server, fixture) = server_with(&[]).await;
    let read_only = format!("{}?options[default_transaction_read_only]=on", server.url());
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&read_only, options.clone())
        .await
        .unwrap();
    assert_eq!(
        seen(&findings_of(backend).await),
        [(ERROR, "postgres-read-only")]
    );
    server.demote().unwrap();
    let backend = PostgresBackend::connect_with(&server.url(), options)
        .await
        .unwrap();
    assert_eq!(
        seen(&findings_of(backend).await),
        [(ERROR, "postgres-standby")]
    );
}

#[tokio::test]
async fn tables_columns_and_indexes() {
    let (_server, fixture) = server_with(&[]).await;
    let column = vec![(ERROR, "postgres-column")];
    let index = vec![(ERROR, "postgres-index-missing")];
    let hot = vec![(WARNING, "postgres-index-superfluous")];
    let cases: Vec<(&str, &str, Seen)> = vec![
        // What is done, what undoes it, and what is found in between.
        (
            "ALTER TABLE {locks} RENAME TO elsewhere",
            "ALTER TABLE elsewhere RENAME TO {locks}",
            vec![(ERROR, "postgres-table-missing")],
        ),
        (
            "ALTER TABLE {fences} RENAME TO elsewhere",
            "ALTER TABLE elsewhere RENAME TO {fences}",
            vec![(ERROR, "postgres-table-missing")],
        ),
        (
            "ALTER TABLE {locks} ALTER COLUMN expires_at_ms TYPE integer",
            "ALTER TABLE {locks} ALTER COLUMN expires_at_ms TYPE bigint",
            column.clone(),
        ),
        (
            "ALTER TABLE {fences} ALTER COLUMN fence TYPE numeric",
            "ALTER TABLE {fences} ALTER COLUMN fence TYPE bigint",
            column.clone(),
        ),
        (
            "ALTER TABLE {locks} RENAME COLUMN user_key TO name",
            "ALTER TABLE {locks} RENAME COLUMN name TO user_key",
            // And nothing will have a value for the one that is there.
            [column.clone(), column.clone()].concat(),
        ),
        (
            "ALTER TABLE {locks} ADD COLUMN tenant text NOT NULL",
            "ALTER TABLE {locks} DROP COLUMN tenant",
            column.clone(),
        ),
        (
            "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
             ALTER TABLE {locks} ALTER COLUMN key TYPE text COLLATE loose",
            "ALTER TABLE {locks} ALTER COLUMN key TYPE text COLLATE \"default\"",
            column.clone(),
        ),
        (
            "ALTER TABLE {locks} DROP CONSTRAINT {unique}",
            "ALTER TABLE {locks} ADD CONSTRAINT {unique} UNIQUE (lock_id)",
            index.clone(),
        ),
        (
            "ALTER TABLE {locks} DROP CONSTRAINT {unique}; CREATE INDEX other ON {locks} (lock_id)",
            "DROP INDEX other; ALTER TABLE {locks} ADD CONSTRAINT {unique} UNIQUE (lock_id)",
            index.clone(),
        ),
        (
            "ALTER TABLE {fences} DROP CONSTRAINT {primary}",
            "ALTER TABLE {fences} ADD CONSTRAINT {primary} PRIMARY KEY (fence_key)",
            index,
        ),
        (
            "CREATE INDEX slow ON {locks} (expires_at_ms)",
            "DROP INDEX slow",
            hot.clone(),
        ),
        (
            "CREATE INDEX slow ON {locks} (key) INCLUDE (expires_at_ms)",
            "DROP INDEX slow",
            hot.clone(),
        ),
        (
            "CREATE INDEX slow ON {locks} (key) WHERE expires_at_ms > 0",
            "DROP INDEX slow",
            hot.clone(),
        ),
        (
            "CREATE INDEX slow ON {fences} ((fence + 1))",
            "DROP INDEX slow",
            hot,
        ),
        // Named as if, but harmless.
        (
            "CREATE INDEX expires_at_ms ON {locks} (acquired_at_ms)",
            "DROP INDEX expires_at_ms",
            vec![],
        ),
        (
            "ALTER TABLE {locks} ALTER COLUMN user_key TYPE varchar, ADD COLUMN note text",
            "ALTER TABLE {locks} ALTER COLUMN user_key TYPE text, DROP COLUMN note",
            vec![],
        ),
        (
            "ALTER TABLE {locks} SET UNLOGGED",
            "ALTER TABLE {locks} SET LOGGED",
            vec![(ERROR, "postgres-unlogged")],
        ),
        (
            "ALTER TABLE {fences} SET UNLOGGED",
            "ALTER TABLE {fences} SET LOGGED",
            vec![(ERROR, "postgres-unlogged")],
        ),
        (
            "ALTER TABLE {locks} RESET (fillfactor)",
            "ALTER TABLE {locks} SET (fillfactor = 50)",
            vec![(INFO, "postgres-fillfactor")],
        ),
        (
            "ALTER TABLE {locks} SET (fillfactor = 100)",
            "ALTER TABLE {locks} SET (fillfactor = 50)",
            vec![(INFO, "postgres-fillfactor")],
        ),
    ];
    let constraints = |sql: &str| {
        sql.replace("{unique}", &format!("{}_lock_id_key", fixture.locks_table))
            .replace("{primary}", &format!("{}_pkey", fixture.fences_table))
    };
    for (wrong, right, expected) in cases {
        fixture.run(&constraints(wrong)).await;
        let findings = fixture.locks.preflight().await.unwrap();
        assert_eq!(seen(&findings), expected, "{wrong}: {findings:#?}");
        fixture.run(&constraints(right)).await;
        let findings = fixture.locks.preflight().await.unwrap();
        assert_eq!(findings, [], "{right}");
    }
}

#[tokio::test]
async fn each_right_that_is_missing() {
    let (server, fixture) = server_with(&[]).await;
    fixture.run("CREATE ROLE app LOGIN").await;
    let url = server.url().replace("postgres@", "app@");
    let backend = PostgresBackend::connect_with(&url, fixture.named(PostgresOptions::new()))
        .await
        .unwrap();
    let all = "GRANT SELECT, INSERT, UPDATE, DELETE ON {locks} TO app; \
               GRANT SELECT, INSERT, UPDATE ON {fences} TO app";
    for (table, right) in [
        ("{locks}", "SELECT"),
        ("{locks}", "INSERT"),
        ("{locks}", "UPDATE"),
        ("{locks}", "DELETE"),
        ("{fences}", "SELECT"),
        ("{fences}", "INSERT"),
        ("{fences}", "UPDATE"),
    ] {
        fixture.run(all).await;
        assert_eq!(findings_of(backend.clone()).await, []);
        fixture
            .run(&format!("REVOKE {right} ON {table} FROM app"))
            .await;
        let findings = findings_of(backend.clone()).await;
        assert_eq!(seen(&findings), [(ERROR, "postgres-missing-permissions")]);
        // The fix does what it says.
        let fix = findings[0].fix().replace("<role>", "app");
        assert_eq!(
            fix,
            fixture.filled(&format!("GRANT {right} ON {table} TO app"))
        );
        fixture.run(&fix).await;
        assert_eq!(findings_of(backend.clone()).await, []);
    }

    // Granted by columns, which is enough.
    fixture
        .run(
            "REVOKE ALL ON {locks}, {fences} FROM app;
             GRANT DELETE ON {locks} TO app;
             GRANT SELECT (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key),
                   INSERT (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key),
                   UPDATE (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
                ON {locks} TO app;
             GRANT SELECT (fence_key, fence, key_debug), INSERT (fence_key, fence, key_debug),
                   UPDATE (fence) ON {fences} TO app",
        )
        .await;
    assert_eq!(findings_of(backend.clone()).await, []);
    let held = Locks::new(backend.clone())
        .try_lock("k")
        .ttl(Duration::from_secs(60))
        .await;
    assert!(
        held.unwrap()
            .unwrap()
            .release()
            .await
            .unwrap()
            .is_released()
    );
    fixture
        .run("REVOKE ALL ON {locks}, {fences} FROM app")
        .await;
    fixture.run(all).await;

    let function = "FUNCTION pg_advisory_xact_lock(bigint)";
    fixture
        .run(&format!("REVOKE EXECUTE ON {function} FROM PUBLIC"))
        .await;
    assert_eq!(
        seen(&findings_of(backend.clone()).await),
        [(ERROR, "postgres-missing-permissions")]
    );
    fixture
        .run(&format!("GRANT EXECUTE ON {function} TO PUBLIC"))
        .await;

    fixture
        .run("ALTER TABLE {locks} ENABLE ROW LEVEL SECURITY")
        .await;
    assert_eq!(
        seen(&findings_of(backend).await),
        [(WARNING, "postgres-row-security")]
    );
}

#[tokio::test]
async fn another_schema() {
    let (server, fixture) = server_with(&[]).await;
    fixture
        .run("CREATE ROLE app LOGIN; CREATE SCHEMA jobs")
        .await;
    let options = PostgresOptions::new()
        .locks_table("jobs.Locks")
        .fence_counters_table("jobs.Fences");
    let owner = PostgresBackend::connect_with(&server.url(), options.clone())
        .await
        .unwrap();
    let missing = (ERROR, "postgres-table-missing");
    assert_eq!(seen(&findings_of(owner.clone()).await), [missing, missing]);
    owner.setup_schema().await.unwrap();
    assert_eq!(findings_of(owner).await, []);
    let url = server.url().replace("postgres@", "app@");
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    let findings = findings_of(backend.clone()).await;
    let lacks = (ERROR, "postgres-missing-permissions");
    assert_eq!(seen(&findings), [lacks, lacks]);
    for finding in findings {
        fixture.run(&finding.fix().replace("<role>", "app")).await;
    }
    assert_eq!(findings_of(backend).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn poolers() {
    let (server, fixture) = server_with(&[]).await;
    // Whether the pooler stays with one session as long as it can, or goes round them.
    for round_robin in ["0", "1"] {
        for size in ["1", "2", "3"] {
            let settings = [
                ("server_round_robin", round_robin),
                ("default_pool_size", size),
            ];
            let bouncer = PgBouncer::start_with(&server, &settings).unwrap();
            for (configured, expected) in [
                (false, vec![(ERROR, "postgres-transaction-pooler")]),
                (true, vec![(INFO, "postgres-wake-ups-unavailable")]),
            ] {
                let options = PostgresOptions::new().transaction_pooler(configured);
                let backend = PostgresBackend::connect_with(&bouncer.url(), fixture.named(options))
                    .await
                    .unwrap();
                for _ in 0..3 {
                    let findings = findings_of(backend.clone()).await;
                    assert_eq!(seen(&findings), expected, "{settings:?}");
                }
            }
        }
    }
    let session = PgBouncer::start_with(&server, &[("pool_mode", "session")]).unwrap();
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&session.url(), options)
        .await
        .unwrap();
    assert_eq!(findings_of(backend).await, []);
    // The second connection logs in, and is not served as long as the first one is open.
    let full = [("pool_mode", "session"), ("default_pool_size", "1")];
    let session = PgBouncer::start_with(&server, &full).unwrap();
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&session.url(), options)
        .await
        .unwrap();
    assert_eq!(
        seen(&findings_of(backend).await),
        [
            (INFO, "postgres-pooler-unchecked"),
            (INFO, "postgres-wake-ups-unavailable")
        ]
    );
    let options = fixture.named(PostgresOptions::new().transaction_pooler(true));
    let backend = PostgresBackend::connect_with(&server.url(), options)
        .await
        .unwrap();
    assert_eq!(
        seen(&findings_of(backend).await),
        [
            (INFO, "postgres-no-pooler-seen"),
            (INFO, "postgres-wake-ups-unavailable")
        ]
    );
}

#[tokio::test]
async fn without_a_connection_to_spare_the_pooler_is_not_checked() {
    let (server, fixture) = server_with(&[]).await;
    fixture
        .run("CREATE ROLE app LOGIN CONNECTION LIMIT 1; GRANT ALL ON {locks}, {fences} TO app")
        .await;
    let url = server.url().replace("postgres@", "app@");
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect(&url)
        .await
        .unwrap();
    let backend = PostgresBackend::with_pool(pool, fixture.named(PostgresOptions::new())).unwrap();
    assert_eq!(
        seen(&findings_of(backend).await),
        [
            (INFO, "postgres-pooler-unchecked"),
            (INFO, "postgres-wake-ups-unavailable")
        ]
    );
}

#[tokio::test]
async fn a_server_that_cannot_be_asked_is_an_error() {
    let (mut server, fixture) = server_with(&[]).await;
    server.kill();
    let error = fixture.locks.preflight().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(!error.outcome_unknown());
}
