//! The suite on the emulator, by either clock.

mod common;

use common::EmulatorHarness;
use syncguard_firestore::FirestoreOptions;

mod client_time {
    use super::*;
    syncguard_conformance::suite!(EmulatorHarness::new(FirestoreOptions::new()));
}

mod server_time {
    use super::*;
    syncguard_conformance::suite!(EmulatorHarness::new(
        FirestoreOptions::new().with_server_time(true)
    ));
}
