use std::sync::Arc;

use syncguard_core::Preflight as _;
use syncguard_postgres::{PostgresBackend, PostgresOptions, PostgresStore};
use syncguard_testkit::{PostgresServer, install};

use super::{Backend, Running, Service};

#[path = "harness/postgres.rs"]
mod harness;

pub(super) const BACKEND: Backend = Backend {
    name: "postgres",
    service: Some(Service {
        variable: "SYNCGUARD_POSTGRES_URL",
        tool: install::POSTGRES,
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
                .with_max_connections(1)
                .with_transaction_pooler(asked.transaction_pooler);
            if let Some(prefix) = asked.prefix {
                options = options.with_prefix(prefix);
            }
            if let Some(table) = asked.locks {
                options = options.with_locks_table(table);
            }
            if let Some(table) = asked.fence_counters {
                options = options.with_fence_counters_table(table);
            }
            let store = PostgresStore::connect_with(&deployment.url, options).await?;
            PostgresBackend::new(store).preflight().await
        })
    },
};
