//! PostgreSQL.

use syncguard_core::{LockError, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};

use super::{Purpose, locks};
use crate::args::StoreArgs;

pub(super) async fn open(
    url: &str,
    asked: StoreArgs,
    purpose: Purpose,
) -> Result<Locks, LockError> {
    // One for operations, and one for renewals at the same time.
    let mut options = PostgresOptions::new()
        .max_connections(2)
        .transaction_pooler(asked.transaction_pooler);
    if let Some(prefix) = asked.store_prefix {
        options = options.prefix(prefix);
    }
    if let Some(table) = asked.locks {
        options = options.locks_table(table);
    }
    if let Some(table) = asked.fence_counters {
        options = options.fence_counters_table(table);
    }
    let backend = PostgresBackend::connect_with(url, options).await?;
    if purpose == Purpose::Acquire {
        // If the tables exist, this only reads.
        backend.setup_schema().await?;
    }
    Ok(locks(backend))
}
