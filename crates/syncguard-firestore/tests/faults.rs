//! What holds when the network or the server fails, on the Firestore emulator.

use std::time::Duration;

use syncguard_core::{LockBackend as _, LockError, LockId, LockKey, Ttl};
use syncguard_faults::Target;
use syncguard_firestore::{FirestoreOptions, FirestoreStore};
use syncguard_testkit::{FirestoreEmulator, shared_firestore_host};

/// What a cold emulator may take for its first requests, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Firestore;

impl Firestore {
    async fn store(port: u16, options: FirestoreOptions) -> Result<FirestoreStore, LockError> {
        let host = format!("127.0.0.1:{port}");
        FirestoreStore::connect_emulator(&host, "faults", options).await
    }
}

impl Target for Firestore {
    type Store = FirestoreStore;
    type Server = FirestoreEmulator;

    fn start() -> anyhow::Result<FirestoreEmulator> {
        FirestoreEmulator::start()
    }

    fn shared_port() -> anyhow::Result<Option<u16>> {
        let host = shared_firestore_host()?;
        let port = host.strip_prefix("127.0.0.1:");
        Ok(port.and_then(|port| port.parse().ok()))
    }

    async fn prepare(port: u16) -> Result<(), LockError> {
        let patient = FirestoreOptions::new().with_request_timeout(PATIENCE);
        let store = Self::store(port, patient).await?;
        let (id, ttl) = (LockId::generate()?, Ttl::new(PATIENCE)?);
        let key = LockKey::new(&format!("warm:{}", id.as_str()))?;
        let _ = store.acquire(&key, &id, ttl).await?;
        let _ = store.extend(&id, ttl).await?;
        let _ = store.is_locked(&key).await?;
        let _ = store.release(&id).await?;
        Ok(())
    }

    async fn connect(port: u16) -> Result<FirestoreStore, LockError> {
        Self::store(port, FirestoreOptions::new()).await
    }
}

syncguard_faults::suite!(Firestore);
