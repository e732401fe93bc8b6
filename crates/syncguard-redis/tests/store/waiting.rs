//! What `lock()` tells of a release that fails, or that comes too late.

use std::time::Duration;

use syncguard_core::{ErrorCode, LockOptions, is_locked, lock};
use syncguard_redis::{RedisBackend, RedisStore};
use syncguard_testkit::RedisServer;

use crate::common::{eventually, impatient};

async fn free_again(backend: &RedisBackend, key: &str) {
    eventually("the key is free", async || {
        matches!(is_locked(backend, key).await, Ok(false))
    })
    .await;
}

#[tokio::test]
async fn the_sections_own_error_survives_a_release_that_fails() {
    let server = RedisServer::start().unwrap();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let backend = RedisBackend::with_policy(store, impatient(Duration::from_millis(300)));
    let receipt = lock(&backend, "k", LockOptions::new(), async |_| {
        server.pause().unwrap();
        Err::<(), _>("the section's own error")
    });
    let receipt = receipt.await.unwrap();
    let error = receipt.release_error().expect("the server is paused");
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert_eq!(receipt.into_value(), Err("the section's own error"));
    server.resume().unwrap();
    free_again(&backend, "k").await;
}

#[tokio::test]
async fn a_section_whose_lock_is_gone_is_told() {
    let server = RedisServer::start().unwrap();
    let backend = RedisBackend::new(RedisStore::connect(&server.url()).await.unwrap());
    let options = LockOptions::new().with_ttl(Duration::from_millis(50));
    let receipt = lock(&backend, "k", options, async |_| {
        tokio::time::sleep(Duration::from_millis(200)).await;
        7
    });
    let receipt = receipt.await.unwrap();
    assert!(receipt.overran());
    assert_eq!(receipt.into_value(), 7);
}
