//! What holds when the network or the server fails, on the Firestore emulator.

use std::time::Duration;

use syncguard_conformance::faults::Target;
use syncguard_core::{LockError, LockId, Locks};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions};
use syncguard_testkit::{FirestoreEmulator, shared_firestore_host};

/// What a cold emulator may take for its first requests, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Firestore;

impl Firestore {
    async fn backend(port: u16, options: FirestoreOptions) -> Result<FirestoreBackend, LockError> {
        let host = format!("127.0.0.1:{port}");
        FirestoreBackend::connect_emulator(&host, "faults", options).await
    }
}

impl Target for Firestore {
    type Backend = FirestoreBackend;
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
        let patient = FirestoreOptions::new().request_timeout(PATIENCE);
        let locks = Locks::builder(Self::backend(port, patient).await?)
            .operation_timeout(PATIENCE)
            .build();
        let key = format!("warm:{}", LockId::generate()?.as_str());
        if let Some(guard) = locks.try_lock(key.as_str()).ttl(PATIENCE).await? {
            let _ = guard.extend(PATIENCE).await?;
            let _ = locks.is_locked(key).await?;
            let _ = guard.release().await?;
        }
        Ok(())
    }

    async fn connect(port: u16) -> Result<FirestoreBackend, LockError> {
        Self::backend(port, FirestoreOptions::new()).await
    }
}

syncguard_conformance::fault_suite!(Firestore);
