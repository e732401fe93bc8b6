use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;

use super::{Backend, Running, Service};

#[path = "harness/sqlite.rs"]
mod harness;

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
};
