use std::path::Path;

use syncguard_testkit::folder_for_files;
use tempfile::TempDir;

use super::{Backend, Running, Service, observed};

#[path = "harness/sqlite.rs"]
mod harness;

pub(super) const BACKEND: Backend = Backend {
    name: "sqlite",
    service: Some(Service {
        variable: "SYNCGUARD_SQLITE_PATH",
        tools: &[],
        start: || {
            let folder = TempDir::new_in(folder_for_files())?;
            let path = folder.path().join("locks.db");
            Ok(Running::new(path.display().to_string(), folder))
        },
    }),
    conformance: |path, options| {
        Box::pin(async move {
            let harness = harness::SqliteHarness::at(Path::new(&path), ());
            Ok(observed::run(harness, options).await)
        })
    },
};
