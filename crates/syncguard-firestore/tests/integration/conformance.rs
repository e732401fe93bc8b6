//! The suite on the emulator, by either clock.

use syncguard_firestore::FirestoreOptions;
use syncguard_testkit::shared_firestore_host;

use crate::harness::FirestoreHarness;

async fn harness(options: FirestoreOptions) -> FirestoreHarness {
    let host = shared_firestore_host().expect("an emulator");
    let harness = FirestoreHarness::new(&host, options).await;
    harness.expect("it answers")
}

mod client_time {
    use super::*;
    syncguard_conformance::suite!(harness(FirestoreOptions::new()).await);
}

mod server_time {
    use super::*;
    syncguard_conformance::suite!(harness(FirestoreOptions::new().server_time(true)).await);
}
