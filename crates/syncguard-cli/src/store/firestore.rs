//! Firestore, or its emulator.

use syncguard_core::{LockError, Locks};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions};

use super::{emulator, locks};
use crate::args::StoreArgs;

pub(super) async fn open(url: &str, asked: StoreArgs) -> Result<Locks, LockError> {
    let mut options = FirestoreOptions::new().server_time(asked.server_time);
    if let Some(collection) = asked.locks {
        options = options.lock_collection(collection);
    }
    if let Some(collection) = asked.fence_counters {
        options = options.fence_collection(collection);
    }
    let backend = match emulator(url) {
        Some((address, project)) => {
            FirestoreBackend::connect_emulator(address, project, options).await?
        }
        None => {
            let (_, database) = url.split_once("://").unwrap_or_default();
            // Fails only if there is a provider already, which is fine.
            let _ = rustls::crypto::ring::default_provider().install_default();
            FirestoreBackend::connect(database, options).await?
        }
    };
    Ok(locks(backend))
}
