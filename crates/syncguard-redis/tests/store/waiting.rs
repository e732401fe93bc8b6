//! `lock()` against a real server that stops answering.

use std::time::{Duration, Instant};

use syncguard_core::{ErrorCode, LockOptions, ManagedBackend as _, acquire, is_locked, lock};
use syncguard_redis::{RedisBackend, RedisStore};
use syncguard_testkit::RedisServer;

use crate::common::{eventually, impatient};

const MINUTE: Duration = Duration::from_secs(60);

async fn free_again(backend: &RedisBackend, key: &str) {
    eventually("the key is free", async || {
        matches!(is_locked(backend, key).await, Ok(false))
    })
    .await;
}

#[tokio::test]
async fn the_timeout_of_a_wait_holds_against_a_paused_server() {
    let server = RedisServer::start().unwrap();
    let backend = RedisBackend::new(RedisStore::connect(&server.url()).await.unwrap());
    server.pause().unwrap();
    let timeout = Duration::from_millis(500);
    let started = Instant::now();
    let options = LockOptions::new().with_timeout(timeout).with_ttl(MINUTE);
    let error = lock(&backend, "k", options, async |_| ())
        .await
        .unwrap_err();
    let took = started.elapsed();
    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert!(error.outcome_unknown());
    // Far from the operation timeout of 5 s, with room for a busy machine.
    assert!(took >= timeout && took < timeout * 4, "{took:?}");
    server.resume().unwrap();
    backend.drain(MINUTE).await.unwrap();
    free_again(&backend, "k").await;
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

#[test]
fn guards_dropped_in_any_state_of_a_runtime_neither_panic_nor_block() {
    let server = RedisServer::start().unwrap();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let (taker, other) = (runtime(), runtime());
    let backend = taker
        .block_on(async { RedisBackend::new(RedisStore::connect(&server.url()).await.unwrap()) });
    let take = |backend: &RedisBackend| {
        taker.block_on(async { acquire(backend, "k", MINUTE).await.unwrap().unwrap() })
    };

    drop(take(&backend)); // outside
    taker.block_on(free_again(&backend, "k"));
    let guard = take(&backend);
    other.block_on(async move { drop(guard) });
    taker.block_on(free_again(&backend, "k"));
    let guard = take(&backend);
    drop(backend);
    drop(taker);
    drop(guard); // after its runtime
}
