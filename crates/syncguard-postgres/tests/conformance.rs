//! The suite on PostgreSQL.

#[path = "support/postgres.rs"]
mod harness;

use harness::PostgresHarness;
use syncguard_testkit::{Observed, shared_postgres_url};

async fn harness() -> PostgresHarness {
    let harness = PostgresHarness::new(&shared_postgres_url().expect("a server")).await;
    harness.expect("its tables")
}

syncguard_conformance::suite!(harness().await);

mod through_telemetry {
    use super::*;
    syncguard_conformance::suite!(Observed(harness().await));
}
