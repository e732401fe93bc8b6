use syncguard_testkit::{PostgresServer, install};

use super::{Backend, Running, Service, observed};

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
            let harness = harness::PostgresHarness::new(&url).await?;
            Ok(observed::run(harness, options).await)
        })
    },
};
