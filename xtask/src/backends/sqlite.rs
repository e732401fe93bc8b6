use std::path::Path;
use std::sync::Arc;

use syncguard_core::{Finding, LockError, Locks};
use syncguard_sqlite::sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use syncguard_sqlite::{SqliteBackend, SqliteOptions};
use tempfile::TempDir;

use super::{Backend, Deployment, Running, Service};

#[path = "harness/sqlite.rs"]
mod harness;

pub(crate) const SCHEME: &str = "sqlite://";

pub(super) const BACKEND: Backend = Backend {
    name: "sqlite",
    service: Some(Service {
        variable: "SYNCGUARD_SQLITE_PATH",
        tools: &[],
        start: || {
            let folder = TempDir::new()?;
            let path = folder.path().join("locks.db");
            Ok(Running::new(path.display().to_string(), folder))
        },
    }),
    conformance: |path, options| {
        Box::pin(async move {
            let harness = Arc::new(harness::SqliteHarness::at(Path::new(&path), ()));
            Ok(syncguard_conformance::run(harness, options).await)
        })
    },
    schemes: &["sqlite"],
    options: &["--prefix", "--locks", "--fence-counters"],
    preflight: |deployment| Box::pin(preflight(deployment)),
};

/// The URL of a path, as `doctor` takes it.
pub(crate) fn url(path: &str) -> String {
    format!("{SCHEME}{path}")
}

async fn preflight(deployment: Deployment) -> Result<Vec<Finding>, LockError> {
    let asked = deployment.options;
    let path = deployment.url.strip_prefix(SCHEME).unwrap_or_default();
    // To connect would create it.
    if !Path::new(path).is_file() {
        let message = format!("there is no file {path}; give sqlite:///ABSOLUTE/PATH");
        return Err(LockError::invalid_argument(message));
    }
    let mut options = SqliteOptions::new();
    if let Some(prefix) = asked.prefix {
        options = options.prefix(prefix);
    }
    if let Some(table) = asked.locks {
        options = options.locks_table(table);
    }
    if let Some(table) = asked.fence_counters {
        options = options.fence_counters_table(table);
    }
    // Over a pool: to connect would create tables, and change the journal mode.
    let target = SqliteConnectOptions::new().filename(path);
    let pool = SqlitePoolOptions::new().max_connections(1);
    let backend = SqliteBackend::with_pool(pool.connect_lazy_with(target), options)?;
    Locks::new(backend).preflight().await
}
