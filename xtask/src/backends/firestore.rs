use std::sync::Arc;

use syncguard_core::{Finding, LockError, Locks};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions};
use syncguard_testkit::{FirestoreEmulator, install};

use super::{Backend, Deployment, Running, Service};

#[path = "harness/firestore.rs"]
mod harness;

/// By convention, what is asked of Firestore goes to the emulator at this address, if it is set.
pub(crate) const EMULATOR_HOST: &str = "FIRESTORE_EMULATOR_HOST";

pub(super) const BACKEND: Backend = Backend {
    name: "firestore",
    service: Some(Service {
        variable: EMULATOR_HOST,
        tools: &[install::FIRESTORE],
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

/// Address and project of `firestore://HOST:PORT/PROJECT`; `firestore://PROJECT` is the real thing.
pub(crate) fn emulator(url: &str) -> Option<(&str, &str)> {
    let (address, project) = url.strip_prefix("firestore://")?.split_once('/')?;
    (address != "projects").then_some((address, project))
}

/// The URL of the same project on the emulator at `host`, unless it names an emulator itself.
pub(crate) fn at_emulator(url: &str, host: &str) -> String {
    match url.strip_prefix("firestore://") {
        Some(project) if !host.is_empty() && emulator(url).is_none() => {
            format!("firestore://{host}/{project}")
        }
        _ => url.to_owned(),
    }
}

async fn preflight(deployment: Deployment) -> Result<Vec<Finding>, LockError> {
    let asked = deployment.options;
    let mut options = FirestoreOptions::new().server_time(asked.server_time);
    if let Some(collection) = asked.locks {
        options = options.lock_collection(collection);
    }
    if let Some(collection) = asked.fence_counters {
        options = options.fence_collection(collection);
    }
    let backend = match emulator(&deployment.url) {
        Some((address, project)) => {
            FirestoreBackend::connect_emulator(address, project, options).await?
        }
        None => {
            let (_, place) = deployment.url.split_once("://").unwrap_or_default();
            // Fails only where there is one already, which then will do.
            let _ = rustls::crypto::ring::default_provider().install_default();
            FirestoreBackend::connect(place, options).await?
        }
    };
    Locks::new(backend).preflight().await
}
