use std::sync::Arc;

use syncguard_core::Locks;
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::{PostgresServer, install};

use super::{Backend, Running, Service};

#[path = "harness/postgres.rs"]
mod harness;

pub(super) const BACKEND: Backend = Backend {
    name: "postgres",
    service: Some(Service {
        variable: "SYNCGUARD_POSTGRES_URL",
        tools: &[install::POSTGRES],
        start: || {
            let server = PostgresServer::start()?;
            Ok(Running::new(server.url(), server))
        },
    }),
    conformance: |url, options| {
        Box::pin(async move {
            let harness = Arc::new(harness::PostgresHarness::new(&url).await?);
            Ok(syncguard_conformance::run(harness, options).await)
        })
    },
    schemes: &["postgres", "postgresql"],
    options: &[
        "--prefix",
        "--locks",
        "--fence-counters",
        "--transaction-pooler",
    ],
    preflight: |deployment| {
        Box::pin(async move {
            let asked = deployment.options;
            let mut options = PostgresOptions::new()
                .max_connections(1)
                .transaction_pooler(asked.transaction_pooler);
            if let Some(prefix) = asked.prefix {
                options = options.prefix(prefix);
            }
            if let Some(table) = asked.locks {
                options = options.locks_table(table);
            }
            if let Some(table) = asked.fence_counters {
                options = options.fence_counters_table(table);
            }
            let backend = PostgresBackend::connect_with(&deployment.url, options).await?;
            Locks::new(backend).preflight().await
        })
    },
};
