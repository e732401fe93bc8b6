//! The suite on PostgreSQL.

use syncguard_testkit::shared_postgres_url;

use crate::harness::PostgresHarness;

async fn harness() -> PostgresHarness {
    let harness = PostgresHarness::new(&shared_postgres_url().expect("a server")).await;
    harness.expect("its tables")
}

syncguard_conformance::suite!(harness().await);
