//! The suite on the memory backend: what a backend's `tests/conformance.rs` looks like.

#[path = "integration/harness.rs"]
mod harness;

use harness::MemoryHarness;

syncguard_conformance::suite!(MemoryHarness::default());
