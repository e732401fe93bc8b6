//! Connects the suite to a PostgreSQL server.

use sqlx::{AssertSqlSafe, PgPool};
use syncguard_conformance::{Harness, Stored};
use syncguard_core::backend::{make_fence_key, make_storage_key};
use syncguard_core::{ErrorCode, LockError, LockKey};
use syncguard_postgres::{
    PostgresBackend, PostgresOptions, STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE,
};

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

    /// Makes the tables, on a server behind a pooler.
    pub(crate) async fn with(
        url: &str,
        direct: &str,
        options: PostgresOptions,
    ) -> Result<Self, LockError> {
        let harness = Self {
            url: url.to_owned(),
            direct: direct.to_owned(),
            options: options
                .locks_table(LOCKS)
                .fence_counters_table(FENCES)
                // Cases run concurrently, each with its own clients.
                .max_connections(4),
        };
        harness.connect().await?.setup_schema().await?;
        Ok(harness)
    }
}

impl Harness for PostgresHarness {
    type Backend = PostgresBackend;

    async fn connect(&self) -> Result<PostgresBackend, LockError> {
        PostgresBackend::connect_with(&self.url, self.options.clone()).await
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        let storage_key =
            make_storage_key("", key.as_str(), STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE)?;
        let fence_key = make_fence_key("", &storage_key, STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE)?;
        let pool = PgPool::connect(&self.direct).await.map_err(failed)?;
        let upsert = format!(
            "INSERT INTO {FENCES} (fence_key, fence) VALUES ($1, $2)
             ON CONFLICT (fence_key) DO UPDATE SET fence = excluded.fence"
        );
        let written = sqlx::query(AssertSqlSafe(upsert))
            .bind(fence_key)
            .bind(i64::try_from(counter).unwrap_or(i64::MAX))
            .execute(&pool)
            .await;
        pool.close().await;
        written.map_err(failed)?;
        Ok(true)
    }

    async fn stored(&self, beginning: &str) -> Result<Option<Stored>, LockError> {
        let pool = PgPool::connect(&self.direct).await.map_err(failed)?;
        let count = format!(
            "SELECT (SELECT count(*) FROM {LOCKS} WHERE starts_with(user_key, $1)),
                    (SELECT count(*) FROM {FENCES} WHERE starts_with(fence_key, 'fence:' || $1))"
        );
        let counted = sqlx::query_as(AssertSqlSafe(count))
            .bind(beginning)
            .fetch_one(&pool)
            .await;
        pool.close().await;
        let (locks, fence_counters): (i64, i64) = counted.map_err(failed)?;
        let mut stored = Stored::default();
        stored.locks = locks.unsigned_abs().try_into().unwrap_or(usize::MAX);
        stored.fence_counters = fence_counters
            .unsigned_abs()
            .try_into()
            .unwrap_or(usize::MAX);
        Ok(Some(stored))
    }

    fn capacity(&self) -> usize {
        1_500
    }
}

fn failed(error: sqlx::Error) -> LockError {
    LockError::new(ErrorCode::Internal, "the harness's own statement failed").with_source(error)
}
