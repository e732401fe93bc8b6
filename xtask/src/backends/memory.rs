use super::{Backend, observed};

#[path = "harness/memory.rs"]
mod harness;

pub(super) const BACKEND: Backend = Backend {
    name: "memory",
    service: None,
    conformance: |_, options| {
        Box::pin(async { Ok(observed::run(harness::MemoryHarness::default(), options).await) })
    },
};
