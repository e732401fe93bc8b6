//! What a section's receipt says about a release that fails.

use std::time::Duration;

use syncguard_core::{ErrorCode, Locks};
use syncguard_testkit::RedisServer;

use crate::common::{connected, eventually, impatient};

async fn free_again(locks: &Locks, key: &str) {
    eventually("the key is free", async || {
        matches!(locks.is_locked(key).await, Ok(false))
    })
    .await;
}

#[tokio::test]
async fn the_sections_own_error_survives_a_release_that_fails() {
    let server = RedisServer::start().unwrap();
    let locks = impatient(connected(&server).await, Duration::from_millis(300));
    let receipt = locks.lock("k").run(async |_| {
        server.pause().unwrap();
        Err::<(), _>("the section's own error")
    });
    let receipt = receipt.await.unwrap();
    let error = receipt.release_error().expect("the server is paused");
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert_eq!(receipt.into_value(), Err("the section's own error"));
    server.resume().unwrap();
    free_again(&locks, "k").await;
}
