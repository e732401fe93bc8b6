use std::sync::Arc;

use syncguard_core::{Finding, LockError, Preflight as _};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions, FirestoreStore};
use syncguard_testkit::{FirestoreEmulator, install};

use super::{Backend, Deployment, Running, Service};

#[path = "harness/firestore.rs"]
mod harness;

pub(super) const BACKEND: Backend = Backend {
    name: "firestore",
    service: Some(Service {
        variable: "FIRESTORE_EMULATOR_HOST",
        tool: install::FIRESTORE,
        start: || {
            let emulator = FirestoreEmulator::start()?;
            Ok(Running::new(emulator.host(), emulator))
        },
    }),
    conformance: |host, options| {
        Box::pin(async move {
            let harness = harness::FirestoreHarness::new(&host, FirestoreOptions::new()).await?;
            Ok(syncguard_conformance::run(Arc::new(harness), options).await)
        })
    },
    schemes: &["firestore"],
    options: &["--locks", "--fence-counters", "--server-time"],
    preflight: |deployment| Box::pin(preflight(deployment)),
};

/// `firestore://HOST:PORT/PROJECT` is an emulator, `firestore://PROJECT` the real thing.
async fn preflight(deployment: Deployment) -> Result<Vec<Finding>, LockError> {
    let asked = deployment.options;
    let mut options = FirestoreOptions::new().with_server_time(asked.server_time);
    if let Some(collection) = asked.locks {
        options = options.with_lock_collection(collection);
    }
    if let Some(collection) = asked.fence_counters {
        options = options.with_fence_collection(collection);
    }
    let (_, place) = deployment
        .url
        .split_once("://")
        .unwrap_or(("", &deployment.url));
    let store = match place.split_once('/') {
        Some((emulator, project)) if emulator.contains(':') => {
            FirestoreStore::connect_emulator(emulator, project, options).await?
        }
        _ => {
            // Fails only where there is one already, which then will do.
            let _ = rustls::crypto::ring::default_provider().install_default();
            FirestoreStore::connect(place, options).await?
        }
    };
    FirestoreBackend::new(store).preflight().await
}
