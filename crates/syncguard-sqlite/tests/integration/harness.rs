//! Connects the suite to an SQLite store.

use std::any::Any;
use std::path::{Path, PathBuf};

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use syncguard_conformance::{Harness, Stored};
use syncguard_core::backend::{make_fence_key, make_storage_key};
use syncguard_core::{ErrorCode, LockError, LockKey};
use syncguard_sqlite::{STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE, SqliteBackend};

/// Opens one file, each time anew.
pub(crate) struct SqliteHarness {
    path: PathBuf,
    _kept: Box<dyn Any + Send + Sync>,
}

impl SqliteHarness {
    /// At a path. It keeps a value for as long, such as the folder.
    pub(crate) fn at(path: &Path, kept: impl Any + Send + Sync) -> Self {
        Self {
            path: path.to_owned(),
            _kept: Box::new(kept),
        }
    }
}

impl SqliteHarness {
    fn pool(&self) -> SqlitePool {
        let target = SqliteConnectOptions::new().filename(&self.path);
        SqlitePoolOptions::new().connect_lazy_with(target)
    }
}

impl Harness for SqliteHarness {
    type Backend = SqliteBackend;

    async fn connect(&self) -> Result<SqliteBackend, LockError> {
        SqliteBackend::connect(&self.path).await
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        let pool = self.pool();
        let written = write_fence_counter(&pool, key, counter).await;
        pool.close().await;
        written.map(|()| true)
    }

    async fn stored(&self, beginning: &str) -> Result<Option<Stored>, LockError> {
        let pool = self.pool();
        let stored = count_stored(&pool, beginning).await;
        pool.close().await;
        stored.map(Some)
    }

    fn capacity(&self) -> usize {
        1_500
    }
}

/// Writes a fence counter past the backend.
pub(crate) async fn write_fence_counter(
    pool: &SqlitePool,
    key: &LockKey,
    counter: u64,
) -> Result<(), LockError> {
    let (limit, reserve) = (STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE);
    let storage_key = make_storage_key("", key.as_str(), limit, reserve)?;
    let upsert = "INSERT INTO syncguard_fence_counters (fence_key, fence) VALUES ($1, $2)
                  ON CONFLICT (fence_key) DO UPDATE SET fence = excluded.fence";
    sqlx::query(upsert)
        .bind(make_fence_key("", &storage_key, limit, reserve)?)
        .bind(i64::try_from(counter).unwrap_or(i64::MAX))
        .execute(pool)
        .await
        .map_err(failed)?;
    Ok(())
}

/// Counts the rows of keys that begin with a text.
pub(crate) async fn count_stored(pool: &SqlitePool, beginning: &str) -> Result<Stored, LockError> {
    let count = "SELECT
        (SELECT count(*) FROM syncguard_locks WHERE substr(user_key, 1, length($1)) = $1),
        (SELECT count(*) FROM syncguard_fence_counters
         WHERE substr(fence_key, 1, length($1) + 6) = 'fence:' || $1)";
    let counted = sqlx::query_as(count).bind(beginning).fetch_one(pool).await;
    let (locks, fence_counters): (i64, i64) = counted.map_err(failed)?;
    let mut stored = Stored::default();
    stored.locks = locks.unsigned_abs().try_into().unwrap_or(usize::MAX);
    stored.fence_counters = fence_counters
        .unsigned_abs()
        .try_into()
        .unwrap_or(usize::MAX);
    Ok(stored)
}

fn failed(error: sqlx::Error) -> LockError {
    LockError::new(ErrorCode::Internal, "the harness's own statement failed").with_source(error)
}
