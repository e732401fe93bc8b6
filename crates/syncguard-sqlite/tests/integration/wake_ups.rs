//! Callers that wait are woken when the key becomes free, whichever client releases it.

use std::time::Duration;

use syncguard_core::backend::{LockBackend as _, WatchRequest};
use syncguard_core::{LockGuard, Locks};
use syncguard_sqlite::sqlx::SqlitePool;
use syncguard_sqlite::{SqliteBackend, SqliteOptions, sqlx};
use syncguard_testkit::share_a_key;
use tokio::task::{JoinHandle, JoinSet};

use crate::common::{MINUTE, file, key, options};

/// No poll comes within this time: only a wake-up serves a caller.
const NEVER: Duration = Duration::from_secs(3_600);

fn waiter(locks: &Locks, key: &str) -> JoinHandle<LockGuard> {
    let request = locks.lock(key).timeout(NEVER).retry_delay(NEVER);
    tokio::spawn(async move { request.await.unwrap() })
}

async fn waits(waiter: &JoinHandle<LockGuard>) {
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished());
}

async fn served(waiter: JoinHandle<LockGuard>) -> LockGuard {
    let served = tokio::time::timeout(MINUTE, waiter).await;
    served.expect("the waiter sleeps on").unwrap()
}

async fn released(guard: LockGuard) {
    assert!(guard.release().await.unwrap().is_released());
}

async fn granted(locks: &Locks, key: &str) -> LockGuard {
    let guard = locks.try_lock(key).ttl(NEVER).await.unwrap();
    guard.expect("the key is free")
}

#[tokio::test]
async fn a_release_of_another_client_wakes_who_waits() {
    let (_folder, path) = file();
    let holder = Locks::new(SqliteBackend::connect(&path).await.unwrap());
    let pool = SqlitePool::connect_with(options(&path)).await.unwrap();
    let over_a_pool = SqliteBackend::with_pool(pool, SqliteOptions::new()).unwrap();
    for backend in [SqliteBackend::connect(&path).await.unwrap(), over_a_pool] {
        let guard = granted(&holder, "k").await;
        let waiting = waiter(&Locks::new(backend), "k");
        waits(&waiting).await;
        // Another key of the same file.
        released(granted(&holder, "another").await).await;
        waits(&waiting).await;
        released(guard).await;
        released(served(waiting).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_are_waited_for_at_once() {
    let (_folder, path) = file();
    let holder = Locks::new(SqliteBackend::connect(&path).await.unwrap());
    let others = Locks::new(SqliteBackend::connect(&path).await.unwrap());
    let (mut guards, mut waiting) = (Vec::new(), Vec::new());
    for number in 0..100 {
        let key = format!("k{number}");
        guards.push(granted(&holder, &key).await);
        waiting.push(waiter(&others, &key));
    }
    waits(&waiting[0]).await;
    let mut released = JoinSet::new();
    for guard in guards {
        released.spawn(guard.release());
    }
    for waiter in waiting {
        drop(served(waiter).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_takes_a_key_without_pause_leaves_a_third_to_another() {
    let (_folder, path) = file();
    let locks = async || Locks::new(SqliteBackend::connect(&path).await.unwrap());
    let processes = [locks().await, locks().await];
    share_a_key(processes).await.unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn a_watch_of_a_file_that_was_removed_ends() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    crate::common::take(&backend, &key("k"), MINUTE).await;
    let (watched, deadline) = (key("k"), tokio::time::Instant::now() + MINUTE);
    let watch = backend.watch(WatchRequest::new(&watched, deadline)).await;
    let mut watch = watch.unwrap().expect("wake-ups");
    std::fs::remove_file(&path).unwrap();
    let lost = tokio::time::timeout(MINUTE, watch.changed()).await;
    assert!(lost.expect("it ends").is_err());
}

#[tokio::test]
async fn they_can_be_turned_off() {
    let (_folder, path) = file();
    let holder = Locks::new(SqliteBackend::connect(&path).await.unwrap());
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let silent = Locks::builder(backend).wake_ups(false).build();
    let guard = granted(&holder, "k").await;
    let waiting = waiter(&silent, "k");
    waits(&waiting).await;
    released(guard).await;
    waits(&waiting).await;
    waiting.abort();
}

#[tokio::test]
async fn rows_that_expired_are_purged_and_their_fences_stay() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let locks = Locks::new(backend.clone());
    for number in 0..5 {
        crate::common::take(
            &backend,
            &key(&format!("k{number}")),
            Duration::from_millis(1),
        )
        .await;
    }
    crate::common::take(&backend, &key("live"), MINUTE).await;
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(locks.purge_expired().await.unwrap(), 5);
    assert_eq!(locks.purge_expired().await.unwrap(), 0);
    assert!(locks.is_locked("live").await.unwrap());
    let mut other = crate::common::connection(&path).await;
    let fences: i64 = sqlx::query_scalar("SELECT count(*) FROM syncguard_fence_counters")
        .fetch_one(&mut other)
        .await
        .unwrap();
    assert_eq!(fences, 6);
}
