//! [`connect`]: the store that the examples run on.

use std::env;
use std::sync::LazyLock;

use syncguard_core::{LockError, Locks};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions};
use syncguard_memory::MemoryBackend;
use syncguard_postgres::PostgresBackend;
use syncguard_redis::RedisBackend;
use syncguard_sqlite::SqliteBackend;

/// A new client of the store that the environment names: `SYNCGUARD_REDIS_URL`,
/// `SYNCGUARD_POSTGRES_URL`, `FIRESTORE_EMULATOR_HOST` or `SYNCGUARD_SQLITE_PATH`. Without them, of one in
/// this process.
///
/// # Errors
/// If the store cannot be reached.
pub async fn connect() -> Result<Locks, LockError> {
    if let Ok(url) = env::var("SYNCGUARD_REDIS_URL") {
        return Ok(Locks::new(RedisBackend::connect(&url).await?));
    }
    if let Ok(url) = env::var("SYNCGUARD_POSTGRES_URL") {
        let backend = PostgresBackend::connect(&url).await?;
        backend.setup_schema().await?;
        return Ok(Locks::new(backend));
    }
    if let Ok(host) = env::var("FIRESTORE_EMULATOR_HOST") {
        let options = FirestoreOptions::new();
        let backend = FirestoreBackend::connect_emulator(&host, "examples", options).await?;
        return Ok(Locks::new(backend));
    }
    if let Ok(path) = env::var("SYNCGUARD_SQLITE_PATH") {
        return Ok(Locks::new(SqliteBackend::connect(path).await?));
    }
    static IN_PROCESS: LazyLock<MemoryBackend> = LazyLock::new(MemoryBackend::default);
    Ok(Locks::new(IN_PROCESS.clone()))
}
