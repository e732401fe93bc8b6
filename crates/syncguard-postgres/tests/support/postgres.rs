//! The suite's way into a PostgreSQL server.

use sqlx::{AssertSqlSafe, PgPool};
use syncguard_conformance::Harness;
use syncguard_core::{ErrorCode, LockError, LockKey, make_fence_key, make_storage_key};
use syncguard_postgres::{PostgresBackend, PostgresOptions, PostgresStore};

const FENCES: &str = "syncguard_conformance_fence_counters";

/// Connects to one server, in tables of the suite's own.
pub(crate) struct PostgresHarness {
    url: String,
}

impl PostgresHarness {
    /// Makes the tables.
    pub(crate) async fn new(url: &str) -> Result<Self, LockError> {
        let harness = Self {
            url: url.to_owned(),
        };
        harness.store().await?.setup_schema().await?;
        Ok(harness)
    }

    async fn store(&self) -> Result<PostgresStore, LockError> {
        let options = PostgresOptions::new()
            .with_locks_table("syncguard_conformance_locks")
            .with_fence_counters_table(FENCES)
            // Cases run side by side, with clients of their own.
            .with_max_connections(4);
        PostgresStore::connect_with(&self.url, options).await
    }
}

impl Harness for PostgresHarness {
    type Backend = PostgresBackend;

    async fn connect(&self) -> Result<PostgresBackend, LockError> {
        Ok(PostgresBackend::new(self.store().await?))
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        let failed = |error| LockError::new(ErrorCode::Internal, "no counter").with_source(error);
        let storage_key = make_storage_key("", key.as_str(), 1700, 0)?;
        let pool = PgPool::connect(&self.url).await.map_err(failed)?;
        let upsert = format!(
            "INSERT INTO {FENCES} (fence_key, fence) VALUES ($1, $2)
             ON CONFLICT (fence_key) DO UPDATE SET fence = excluded.fence"
        );
        let written = sqlx::query(AssertSqlSafe(upsert))
            .bind(make_fence_key("", &storage_key, 1700, 0)?)
            .bind(i64::try_from(counter).unwrap_or(i64::MAX))
            .execute(&pool)
            .await;
        pool.close().await;
        written.map_err(failed)?;
        Ok(true)
    }
}
