//! Callers that wait are woken when the key becomes free, whichever client releases it.

mod common;

use std::time::Duration;

use common::{BareCalls as _, Fixture, id, key, ttl};
use syncguard_core::backend::{Watch, WatchRequest};
use syncguard_core::{LockGuard, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::PostgresServer;
use tokio::task::JoinHandle;

/// No poll comes within this time: only a wake-up serves a caller.
const NEVER: Duration = Duration::from_secs(3_600);

const LISTENERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE query NOT LIKE '%pg_stat_activity%' AND \
     (query ~ '^LISTEN \"syncguard_' OR query ~ 'advisory_.*lock_shared|^SELECT pg_catalog.pg_is_in')";

const MARKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2";

/// A server of its own, to look at what there is in it.
async fn server() -> (PostgresServer, Fixture) {
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    (server, fixture)
}

/// A caller that does not poll.
fn waiter(locks: &Locks, key: &str) -> JoinHandle<LockGuard> {
    let request = locks.lock(key).timeout(NEVER).retry_delay(NEVER);
    tokio::spawn(async move { request.await.unwrap() })
}

/// A caller that polls.
fn polling(locks: &Locks, key: &str) -> JoinHandle<LockGuard> {
    let request = locks.lock(key).timeout(NEVER);
    tokio::spawn(async move { request.await.unwrap() })
}

async fn served(waiter: JoinHandle<LockGuard>) -> LockGuard {
    let served = tokio::time::timeout(Duration::from_secs(30), waiter).await;
    served.expect("the waiter sleeps on").unwrap()
}

async fn granted(locks: &Locks, key: &str) -> LockGuard {
    let guard = locks.try_lock(key).ttl(NEVER).await.unwrap();
    guard.expect("the key is free")
}

async fn released(guard: LockGuard) {
    assert!(guard.release().await.unwrap().is_released());
}

async fn watch(backend: &PostgresBackend, name: &str) -> Option<Watch> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let key = key(name);
    let request = WatchRequest::new(&key, deadline);
    syncguard_core::backend::LockBackend::watch(backend, request)
        .await
        .unwrap()
}

async fn until(fixture: &Fixture, sql: &str, expected: impl Fn(i64) -> bool) {
    for _ in 0..600 {
        if expected(fixture.number(sql).await) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{} of {sql}", fixture.number(sql).await);
}

async fn until_watching(fixture: &Fixture) {
    until(fixture, MARKS, |marks| marks > 0).await;
    // The look at the key that goes with it.
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[tokio::test]
async fn a_release_by_another_client_wakes_and_nothing_is_left_afterwards() {
    let (_server, fixture) = server().await;
    let elsewhere = fixture.another(PostgresOptions::new()).await;
    released(fixture.locks.lock("k").await.unwrap()).await;
    assert_eq!(fixture.number(LISTENERS).await, 0);
    for _ in 0..3 {
        let holder = granted(&elsewhere, "k").await;
        let waiting = waiter(&fixture.locks, "k");
        until_watching(&fixture).await;
        released(holder).await;
        released(served(waiting).await).await;
        until(&fixture, MARKS, |marks| marks == 0).await;
    }
    assert_eq!(fixture.number(LISTENERS).await, 1);
    until(&fixture, LISTENERS, |listeners| listeners == 0).await;

    let holder = granted(&elsewhere, "k").await;
    let waiting = waiter(&fixture.locks, "k");
    until_watching(&fixture).await;
    waiting.abort();
    until(&fixture, MARKS, |marks| marks == 0).await;
    released(holder).await;
}

#[tokio::test]
async fn no_wake_up_is_lost_between_the_first_question_and_the_watch() {
    let (_server, fixture) = server().await;
    let elsewhere = fixture.another(PostgresOptions::new()).await;
    for round in 0..1_000_u64 {
        let holder = granted(&elsewhere, "k").await;
        let waiting = waiter(&fixture.locks, "k");
        // Released at about the time of each step that leads to the watch.
        tokio::time::sleep(Duration::from_micros(round % 20 * 200)).await;
        for _ in 0..round % 40 {
            tokio::task::yield_now().await;
        }
        released(holder).await;
        released(served(waiting).await).await;
    }
}

#[tokio::test]
async fn nobody_is_notified_unless_somebody_waits() {
    let (_server, fixture) = server().await;
    // It listens, and does not read on: what is sent stays in the queue.
    let mut reader = fixture.sql.acquire().await.unwrap();
    sqlx::raw_sql("LISTEN other")
        .execute(&mut *reader)
        .await
        .unwrap();
    sqlx::raw_sql("BEGIN; SELECT 1")
        .execute(&mut *reader)
        .await
        .unwrap();
    // In pages of the queue, and each has less than 200 notifications.
    let used = "SELECT (pg_notification_queue_usage() > 0)::int::bigint";
    let releases = async || {
        for _ in 0..300 {
            let id = id();
            let grant = fixture.backend.acquire(&key("k"), &id, ttl(60_000)).await;
            assert!(grant.unwrap().granted().is_some());
            assert!(fixture.backend.release(&id).await.unwrap().is_released());
        }
    };
    releases().await;
    assert_eq!(fixture.number(used).await, 0);
    assert_eq!(fixture.number(MARKS).await, 0);

    let elsewhere = fixture.another_backend(PostgresOptions::new()).await;
    let watch = watch(&elsewhere, "k").await.unwrap();
    releases().await;
    assert_eq!(fixture.number(used).await, 1);
    drop(watch);
}
