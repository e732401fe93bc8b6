use std::sync::Arc;

use syncguard_core::Locks;
use syncguard_memory::MemoryBackend;

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
    schemes: &["memory"],
    options: &[],
    preflight: |_| Box::pin(async { Locks::new(MemoryBackend::default()).preflight().await }),
};
