//! Credentials that are refused for a moment, and a password that changes.

use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;
use syncguard_core::{ErrorCode, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::PostgresServer;

use crate::common::{Fixture, pool};

const MINUTE: Duration = Duration::from_secs(60);

/// A server where the role `app` needs its password, which is `first`, and tables for it.
async fn server_with_passwords() -> (PostgresServer, Fixture) {
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    let hba_file: String = sqlx::query_scalar("SHOW hba_file")
        .fetch_one(&fixture.sql)
        .await
        .unwrap();
    let lines =
        "('host all postgres 127.0.0.1/32 trust'), ('host all app 127.0.0.1/32 scram-sha-256')";
    fixture
        .run(&format!("COPY (VALUES {lines}) TO '{hba_file}'"))
        .await;
    fixture.run("SELECT pg_reload_conf()").await;
    fixture
        .run(
            "CREATE ROLE app LOGIN PASSWORD 'first'; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON {locks}, {fences} TO app",
        )
        .await;
    (server, fixture)
}

fn url(server: &PostgresServer, password: &str) -> String {
    server
        .url()
        .replacen("postgres@", &format!("app:{password}@"), 1)
}

/// Ends the sessions of `app` until none is left.
async fn end_sessions(fixture: &Fixture) {
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'app'";
    let started = Instant::now();
    while fixture.number(end).await > 0 {
        assert!(started.elapsed() < Duration::from_secs(20), "sessions stay");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_are_refused_for_a_moment_leave_no_lock() {
    let (server, fixture) = server_with_passwords().await;
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&url(&server, "first"), options)
        .await
        .unwrap();
    let locks = Locks::new(backend);
    let guard = locks.try_lock("k").ttl(MINUTE * 60).await.unwrap().unwrap();
    fixture.run("ALTER ROLE app NOLOGIN").await;
    end_sessions(&fixture).await;
    let mut codes = Vec::new();
    for _ in 0..12 {
        codes.push(locks.is_locked("k").await.unwrap_err().code());
    }
    assert_eq!(codes.last(), Some(&ErrorCode::AuthFailed), "{codes:?}");
    drop(guard);
    assert!(
        locks.drain(Duration::from_secs(1)).await.is_err(),
        "retried"
    );
    fixture.run("ALTER ROLE app LOGIN").await;
    locks.drain(Duration::from_secs(30)).await.unwrap();
    assert!(!fixture.locks.is_locked("k").await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_rotation_the_same_store_goes_on_with_the_new_password() {
    let (server, fixture) = server_with_passwords().await;
    let options = || fixture.named(PostgresOptions::new());
    let first = url(&server, "first");
    let own = PostgresBackend::connect_with(&first, options())
        .await
        .unwrap();
    let given = PostgresBackend::with_pool(pool(&first, 2).await, options()).unwrap();
    for (password, backend) in [("second", own), ("third", given)] {
        let locks = Locks::new(backend.clone());
        let guard = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
        let rotate = format!("ALTER ROLE app PASSWORD '{password}'");
        sqlx::raw_sql(AssertSqlSafe(rotate))
            .execute(&fixture.sql)
            .await
            .unwrap();
        end_sessions(&fixture).await;
        let failed = loop {
            let error = locks.is_locked("k").await.unwrap_err();
            if error.code() == ErrorCode::AuthFailed {
                break error;
            }
        };
        assert!(!format!("{failed} {failed:?}").contains("first"));
        backend.set_password(password);
        assert!(locks.is_locked("k").await.unwrap());
        assert!(guard.release().await.unwrap().is_released());
        assert!(!format!("{backend:?}").contains(password));
        // For the other one, which was made with the first.
        fixture.run("ALTER ROLE app PASSWORD 'first'").await;
    }
}
