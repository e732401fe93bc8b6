//! The whole handle over every store: one program, which names no backend.

use std::time::Duration;

use syncguard_core::backend::LockBackend;
use syncguard_core::{Attempt, CancellationToken, Fence, LockError, LockGuard, Locks};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions};
use syncguard_memory::MemoryBackend;
use syncguard_postgres::PostgresBackend;
use syncguard_redis::RedisBackend;
use syncguard_sqlite::SqliteBackend;
use syncguard_testkit::{shared_firestore_host, shared_postgres_url, shared_redis_url};

const MINUTE: Duration = Duration::from_secs(60);
/// Of waiting for a free key, and of each operation: an emulator's first ones are slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an application writes: a field that keeps a lock, without a type parameter.
struct Payment {
    lock: LockGuard,
}

async fn charge(fence: Fence) -> Result<Fence, LockError> {
    Ok(fence)
}

async fn pay(locks: Locks) -> Result<(), LockError> {
    let token = CancellationToken::new();
    let payment = Payment {
        lock: locks.lock("payment:42").timeout(PATIENCE).await?,
    };
    assert!(locks.try_lock("payment:42").await?.is_none());
    let attempt = locks.try_lock("payment:42").attempt().await?;
    assert!(matches!(attempt, Attempt::Locked { .. }));

    let first = payment.lock.fence();
    let id = *payment.lock.lock_id();
    assert!(locks.owns(id).await?);
    assert!(locks.extend(id, MINUTE).await?.is_extended());
    assert!(locks.get_by_key("payment:42").await?.is_some());
    assert!(locks.release(id).await?.is_released());
    assert!(!payment.lock.release().await?.is_released());

    let receipt = locks
        .lock("payment:42")
        .ttl(MINUTE)
        .timeout(PATIENCE)
        .cancel_on(&token)
        .run(async |lease| charge(lease.fence()).await)
        .await?;
    assert!(receipt.into_value()? > first);

    let maybe = locks.try_lock("report:daily").ttl(MINUTE).await?;
    drop(maybe.expect("nobody else has this key"));
    locks.drain(PATIENCE).await?;
    assert!(!locks.is_locked("report:daily").await?);
    let _ = locks.preflight().await?;
    let _ = locks.purge_expired().await?;
    locks.close().await
}

async fn pay_over(backend: impl LockBackend<Fence = Fence>) {
    let locks = Locks::builder(backend).operation_timeout(PATIENCE).build();
    // As applications run it: on another thread of the runtime.
    tokio::spawn(pay(locks)).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    pay_over(MemoryBackend::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis() {
    let url = shared_redis_url().unwrap();
    pay_over(RedisBackend::connect(&url).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    let url = shared_postgres_url().unwrap();
    let backend = PostgresBackend::connect(&url).await.unwrap();
    backend.setup_schema().await.unwrap();
    pay_over(backend).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    pay_over(SqliteBackend::connect(path).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn firestore() {
    let host = shared_firestore_host().unwrap();
    let options = FirestoreOptions::new().request_timeout(PATIENCE);
    let backend = FirestoreBackend::connect_emulator(&host, "every-store", options).await;
    pay_over(backend.unwrap()).await;
}
