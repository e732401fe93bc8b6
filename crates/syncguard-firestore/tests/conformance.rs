//! The suite on the emulator, by either clock.

#[path = "support/firestore.rs"]
mod harness;

use harness::FirestoreHarness;
use syncguard_firestore::FirestoreOptions;
use syncguard_testkit::{Observed, shared_firestore_host};

async fn harness(options: FirestoreOptions) -> FirestoreHarness {
    let host = shared_firestore_host().expect("an emulator");
    let harness = FirestoreHarness::new(&host, options).await;
    harness.expect("it answers")
}

mod client_time {
    use super::*;
    syncguard_conformance::suite!(harness(FirestoreOptions::new()).await);
}

mod through_telemetry {
    use super::*;
    syncguard_conformance::suite!(Observed(harness(FirestoreOptions::new()).await));
}

mod server_time {
    use super::*;
    syncguard_conformance::suite!(harness(FirestoreOptions::new().server_time(true)).await);
}
