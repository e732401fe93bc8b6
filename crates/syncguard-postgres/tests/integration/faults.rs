//! What holds when the network or the server fails, on PostgreSQL.

use syncguard_conformance::faults::Target;
use syncguard_core::LockError;
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::{PostgresServer, shared_postgres_url};

struct Postgres;

impl Target for Postgres {
    type Backend = PostgresBackend;
    type Server = PostgresServer;

    fn start() -> anyhow::Result<PostgresServer> {
        PostgresServer::start()
    }

    fn shared_port() -> anyhow::Result<Option<u16>> {
        let url = shared_postgres_url()?;
        let port = url
            .strip_prefix("postgres://postgres@127.0.0.1:")
            .and_then(|rest| rest.strip_suffix("/postgres"));
        Ok(port.and_then(|port| port.parse().ok()))
    }

    async fn prepare(port: u16) -> Result<(), LockError> {
        Self::connect(port).await?.setup_schema().await
    }

    async fn connect(port: u16) -> Result<PostgresBackend, LockError> {
        let options = PostgresOptions::new()
            .locks_table("syncguard_faults_locks")
            .fence_counters_table("syncguard_faults_fence_counters");
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        PostgresBackend::connect_with(&url, options).await
    }
}

syncguard_conformance::fault_suite!(Postgres);
