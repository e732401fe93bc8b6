//! How long the connection for wake-ups is open. Alone in its process, whose threads it counts.

#![cfg(target_os = "linux")]

#[path = "integration/common.rs"]
mod common;

use std::time::Duration;

use common::{MINUTE, file};
use syncguard_core::Locks;
use syncguard_sqlite::SqliteBackend;

/// Threads of this process that belong to connections.
fn connections() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        names.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("sqlx-sqlite")).count()
}

async fn until(expected: usize) {
    let until = tokio::time::Instant::now() + MINUTE;
    while connections() != expected {
        assert!(tokio::time::Instant::now() < until, "{}", connections());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn its_connection_is_open_only_while_somebody_waits() {
    let (_folder, path) = file();
    let locks = Locks::new(SqliteBackend::connect(&path).await.unwrap());
    let guard = locks.lock("k").ttl(MINUTE).await.unwrap();
    assert_eq!(connections(), 2);
    let other = Locks::new(SqliteBackend::connect(&path).await.unwrap());
    assert_eq!(connections(), 4);
    let waiting = other.lock("k").timeout(MINUTE);
    let waiting = tokio::spawn(async move { waiting.await.unwrap() });
    until(5).await;
    assert!(guard.release().await.unwrap().is_released());
    let served = waiting.await.unwrap();
    assert!(served.release().await.unwrap().is_released());
    until(4).await;
}
