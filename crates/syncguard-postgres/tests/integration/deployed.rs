//! As operators deploy it: as a role with the documented rights and no others, behind a pooler, and
//! by TLS with a private authority.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_conformance::{RunOptions, run};
use syncguard_core::{ErrorCode, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::{PgBouncer, PostgresServer, PrivateCa, texts};

use crate::common::{BareCalls as _, Fixture, id, key, pool, ttl};
use crate::harness::{FENCES, LOCKS, PostgresHarness};

const PASSWORD: &str = "correct%20horse";
const DECODED: &str = "correct horse";

fn assert_no_password(text: &str) {
    for secret in [PASSWORD, DECODED] {
        assert!(!text.contains(secret), "{text}");
    }
}

fn as_user(url: &str, user: &str) -> String {
    url.replacen("postgres@", &format!("{user}:{PASSWORD}@"), 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_with_the_documented_rights_alone() {
    let server = PostgresServer::start().unwrap();
    let _ = PostgresHarness::new(&server.url()).await.unwrap();
    let sql = pool(&server.url(), 1).await;
    let grants = format!(
        "CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON {LOCKS} TO app; \
         GRANT SELECT, INSERT, UPDATE ON {FENCES} TO app"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(grants))
        .execute(&sql)
        .await
        .unwrap();
    // Its set-up finds the tables, and needs no right to make any.
    let harness = PostgresHarness::new(&as_user(&server.url(), "app"))
        .await
        .unwrap();
    let report = run(Arc::new(harness), RunOptions::new()).await;
    assert!(report.is_success(), "{report:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_behind_a_pooler_in_transaction_mode() {
    let server = PostgresServer::start().unwrap();
    let bouncer = PgBouncer::start_with(&server, &[("default_pool_size", "5")]).unwrap();
    let options = PostgresOptions::new().transaction_pooler(true);
    let harness = PostgresHarness::with(&bouncer.url(), &server.url(), options)
        .await
        .unwrap();
    let report = run(Arc::new(harness), RunOptions::new()).await;
    assert!(report.is_success(), "{report:#?}");
}

#[tokio::test]
async fn without_one_right_an_operation_is_auth_failed() {
    let fixture = Fixture::new().await;
    let role = format!("app{}", std::process::id());
    fixture.run(&format!("CREATE ROLE {role} LOGIN")).await;
    let url = as_user(&fixture.url, &role);
    let backend = PostgresBackend::connect_with(&url, fixture.named(PostgresOptions::new()))
        .await
        .unwrap();
    let rights = [
        ("{locks}", "SELECT, INSERT, UPDATE, DELETE"),
        ("{fences}", "SELECT, INSERT, UPDATE"),
    ];
    for (table, all) in rights {
        for missing in all.split(", ") {
            for (table, all) in rights {
                fixture
                    .run(&format!("GRANT {all} ON {table} TO {role}"))
                    .await;
            }
            fixture
                .run(&format!("REVOKE {missing} ON {table} FROM {role}"))
                .await;
            let id = id();
            let mut refused = Vec::new();
            refused.extend(backend.acquire(&key("k"), &id, ttl(60_000)).await.err());
            refused.extend(backend.extend(&id, ttl(60_000)).await.err());
            refused.extend(backend.is_locked(&key("k")).await.err());
            refused.extend(backend.release(&id).await.err());
            assert!(!refused.is_empty(), "without {missing} on {table}");
            for error in refused {
                assert_eq!(error.code(), ErrorCode::AuthFailed, "{error:?}");
                assert!(!error.is_retryable());
                assert_no_password(&texts(&error));
            }
        }
    }
    fixture
        .run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await;
}

#[tokio::test]
async fn tls_with_a_private_authority() {
    let (ca, other) = (PrivateCa::new().unwrap(), PrivateCa::new().unwrap());
    let server = PostgresServer::start_tls(&ca).unwrap();
    let connect = async |parameters: String| {
        let url = as_user(&server.url(), "postgres");
        PostgresBackend::connect(&format!("{url}?{parameters}")).await
    };
    let trusting =
        |ca: &PrivateCa| format!("sslmode=verify-full&sslrootcert={}", ca.file().display());

    let backend = connect(trusting(&ca)).await.unwrap();
    backend.setup_schema().await.unwrap();
    let locks = Locks::new(backend.clone());
    let guard = locks
        .try_lock("k")
        .ttl(Duration::from_secs(60))
        .await
        .unwrap()
        .unwrap();
    let _ = guard.extend(Duration::from_secs(60)).await.unwrap();
    assert!(guard.release().await.unwrap().is_released());
    assert_no_password(&format!("{backend:?} {backend:#?} {locks:?} {locks:#?}"));

    for (parameters, expected) in [
        (trusting(&other), ErrorCode::ServiceUnavailable),
        // Only the public authorities.
        (
            "sslmode=verify-full".to_owned(),
            ErrorCode::ServiceUnavailable,
        ),
        // No such file.
        (
            "sslmode=verify-ca&sslrootcert=/nowhere/ca.pem".to_owned(),
            ErrorCode::ServiceUnavailable,
        ),
        ("sslmode=disable".to_owned(), ErrorCode::AuthFailed),
    ] {
        let error = connect(parameters.clone()).await.unwrap_err();
        assert_eq!(error.code(), expected, "{parameters}: {error:?}");
        assert!(!error.outcome_unknown());
        assert_no_password(&texts(&error));
    }
}

#[tokio::test]
async fn a_password_in_a_url_is_in_no_text() {
    let fixture = Fixture::new().await;
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let at = fixture.url.rsplit_once('@').unwrap().1;
    let (place, _) = at.split_once('/').unwrap();
    for url in [
        format!("postgres://nobody:{PASSWORD}@{at}"),
        format!("postgres://{at}?user=nobody&password={PASSWORD}"),
        // sqlx would log parameters that it does not know.
        format!("postgres://{at}?passwd={PASSWORD}"),
        format!("postgres://{at}?sslmode=prefer&Password={PASSWORD}"),
        format!("postgres://{at}?pw={PASSWORD}"),
        format!("postgres://{at}?secret={PASSWORD}"),
        format!("postgres://{at}?pass%77d={PASSWORD}"),
        format!("postgres://postgres:{PASSWORD}@{place}/no_such_database"),
        format!("postgres://postgres:{PASSWORD}@127.0.0.1:1/postgres"),
        format!("postgres://postgres:{PASSWORD}@host:port/postgres"),
        format!("postgres://postgres:{PASSWORD}%FF@{at}"),
        format!("postgres://{PASSWORD}"),
        format!("nonsense:{PASSWORD}"),
        DECODED.to_owned(),
        format!("postgres://postgres:{PASSWORD}@{at}?sslmode=nonsense"),
    ] {
        let error = PostgresBackend::connect(&url).await.unwrap_err();
        assert_no_password(&texts(&error));
    }
    let url = as_user(&fixture.url, "postgres");
    let backend = PostgresBackend::connect_with(&url, fixture.named(PostgresOptions::new()))
        .await
        .unwrap();
    let locks = Locks::new(backend.clone());
    assert_no_password(&format!("{backend:?} {backend:#?} {locks:?}"));
    let guard = locks.try_lock("k").ttl(Duration::from_secs(60)).await;
    assert!(
        guard
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap()
            .is_released()
    );
    let log = log.text();
    assert!(log.contains("sqlx"), "the driver does log: {log}");
    assert_no_password(&log);
}

/// What was logged, by the driver, too.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
