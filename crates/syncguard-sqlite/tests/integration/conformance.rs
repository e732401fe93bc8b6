//! The suite on SQLite: on a file, and in memory.

use syncguard_conformance::{Harness, Stored};
use syncguard_core::{LockError, LockKey};
use syncguard_sqlite::sqlx::SqlitePool;
use syncguard_sqlite::{SqliteBackend, SqliteOptions};

use crate::harness::{SqliteHarness, count_stored, write_fence_counter};

fn harness() -> SqliteHarness {
    let (folder, path) = crate::common::file();
    SqliteHarness::at(&path, folder)
}

syncguard_conformance::suite!(harness());

/// A store in memory is one connection, which all backends over its pool share.
struct MemoryHarness(SqlitePool);

impl MemoryHarness {
    async fn new() -> Result<Self, LockError> {
        let harness = Self(crate::common::memory_pool());
        harness.connect().await?.setup_schema().await?;
        Ok(harness)
    }
}

impl Harness for MemoryHarness {
    type Backend = SqliteBackend;

    async fn connect(&self) -> Result<SqliteBackend, LockError> {
        SqliteBackend::with_pool(self.0.clone(), SqliteOptions::new())
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        let written = write_fence_counter(&self.0, key, counter).await;
        written.map(|()| true)
    }

    async fn stored(&self, beginning: &str) -> Result<Option<Stored>, LockError> {
        count_stored(&self.0, beginning).await.map(Some)
    }

    fn one_call_at_a_time(&self) -> bool {
        true
    }
}

mod in_memory {
    use super::*;
    syncguard_conformance::suite!(MemoryHarness::new().await.expect("a store"));
}
