use std::sync::Arc;

use super::Backend;

#[path = "harness/memory.rs"]
mod harness;

pub(super) const BACKEND: Backend = Backend {
    name: "memory",
    service: None,
    conformance: |_, options| {
        let harness = Arc::new(harness::MemoryHarness::default());
        Box::pin(async { Ok(syncguard_conformance::run(harness, options).await) })
    },
};
