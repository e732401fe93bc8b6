//! [`connect`]: the store that the examples run on.

use std::env;
use std::sync::LazyLock;

use syncguard_core::{AnyBackend, LockError};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions, FirestoreStore};
use syncguard_memory::MemoryBackend;
use syncguard_postgres::{PostgresBackend, PostgresStore};
use syncguard_redis::{RedisBackend, RedisStore};

/// A new client of the store that the environment names: `SYNCGUARD_REDIS_URL`,
/// `SYNCGUARD_POSTGRES_URL` or `FIRESTORE_EMULATOR_HOST`. Without them, one of a store in this
/// process.
///
/// # Errors
/// If the store cannot be reached.
pub async fn connect() -> Result<AnyBackend, LockError> {
    if let Ok(url) = env::var("SYNCGUARD_REDIS_URL") {
        let store = RedisStore::connect(&url).await?;
        return Ok(AnyBackend::new(RedisBackend::new(store)));
    }
    if let Ok(url) = env::var("SYNCGUARD_POSTGRES_URL") {
        let store = PostgresStore::connect(&url).await?;
        store.setup_schema().await?;
        return Ok(AnyBackend::new(PostgresBackend::new(store)));
    }
    if let Ok(host) = env::var("FIRESTORE_EMULATOR_HOST") {
        let options = FirestoreOptions::new();
        let store = FirestoreStore::connect_emulator(&host, "examples", options).await?;
        return Ok(AnyBackend::new(FirestoreBackend::new(store)));
    }
    static IN_PROCESS: LazyLock<MemoryBackend> = LazyLock::new(MemoryBackend::default);
    Ok(AnyBackend::new(IN_PROCESS.clone()))
}
