//! The suite on the memory backend: what a backend's `tests/integration/conformance.rs` looks like.

use crate::harness::MemoryHarness;

syncguard_conformance::suite!(MemoryHarness::default());
