//! The suite on PostgreSQL.

#[path = "support/postgres.rs"]
mod harness;

use harness::PostgresHarness;
use syncguard_testkit::shared_postgres_url;

syncguard_conformance::suite! {
    PostgresHarness::new(&shared_postgres_url().expect("a server")).await.expect("its tables")
}
