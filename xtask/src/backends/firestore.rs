use syncguard_firestore::FirestoreOptions;
use syncguard_testkit::{FirestoreEmulator, install};

use super::{Backend, Running, Service, observed};

#[path = "harness/firestore.rs"]
mod harness;

pub(super) const BACKEND: Backend = Backend {
    name: "firestore",
    service: Some(Service {
        variable: "FIRESTORE_EMULATOR_HOST",
        tools: &[install::FIRESTORE],
        start: || {
            let emulator = FirestoreEmulator::start()?;
            Ok(Running::new(emulator.host(), emulator))
        },
    }),
    conformance: |host, options| {
        Box::pin(async move {
            let harness = harness::FirestoreHarness::new(&host, FirestoreOptions::new()).await?;
            Ok(observed::run(harness, options).await)
        })
    },
};
