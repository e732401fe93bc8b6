//! The lock id is all that another process needs.

use std::time::Duration;

use syncguard_core::{acquire, is_locked, release};
use syncguard_redis::{RedisBackend, RedisStore};
use syncguard_testkit::RedisServer;

const TASK: &str = "SYNCGUARD_TEST_RELEASE";

#[tokio::test(flavor = "multi_thread")]
async fn another_process_releases_by_the_lock_id() {
    // This test again, as the other process.
    if let Ok(task) = std::env::var(TASK) {
        let (url, id) = task.split_once(' ').unwrap();
        let backend = RedisBackend::new(RedisStore::connect(url).await.unwrap());
        assert!(release(&backend, id).await.unwrap().is_released());
        return;
    }
    let server = RedisServer::start().unwrap();
    let backend = RedisBackend::new(RedisStore::connect(&server.url()).await.unwrap());
    let guard = acquire(&backend, "k", Duration::from_secs(600))
        .await
        .unwrap()
        .unwrap();
    let lease = guard.detach();
    let other = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "another_process_releases_by_the_lock_id"])
        .env(
            TASK,
            format!("{} {}", server.url(), lease.lock_id().as_str()),
        )
        .status();
    assert!(other.unwrap().success());
    assert!(!is_locked(&backend, "k").await.unwrap());
}
