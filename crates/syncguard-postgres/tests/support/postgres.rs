//! The suite's way into a PostgreSQL server.

use sqlx::{AssertSqlSafe, PgPool};
use syncguard_conformance::Harness;
use syncguard_core::{ErrorCode, LockError, LockKey, make_fence_key, make_storage_key};
use syncguard_postgres::{PostgresBackend, PostgresOptions, PostgresStore};

pub(crate) const LOCKS: &str = "syncguard_conformance_locks";
pub(crate) const FENCES: &str = "syncguard_conformance_fence_counters";

/// Connects to one server, in tables of the suite's own.
pub(crate) struct PostgresHarness {
    url: String,
    /// Past a pooler, if there is one.
    direct: String,
    options: PostgresOptions,
}

impl PostgresHarness {
    /// Makes the tables.
    pub(crate) async fn new(url: &str) -> Result<Self, LockError> {
        Self::with(url, url, PostgresOptions::new()).await
    }

    /// Makes the tables, on a server that is reached otherwise than directly.
    pub(crate) async fn with(
        url: &str,
        direct: &str,
        options: PostgresOptions,
    ) -> Result<Self, LockError> {
        let harness = Self {
            url: url.to_owned(),
            direct: direct.to_owned(),
            options: options
                .with_locks_table(LOCKS)
                .with_fence_counters_table(FENCES)
                // Cases run side by side, with clients of their own.
                .with_max_connections(4),
        };
        harness.store().await?.setup_schema().await?;
        Ok(harness)
    }

    async fn store(&self) -> Result<PostgresStore, LockError> {
        PostgresStore::connect_with(&self.url, self.options.clone()).await
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
        let pool = PgPool::connect(&self.direct).await.map_err(failed)?;
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
