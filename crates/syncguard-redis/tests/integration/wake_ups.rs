//! Callers that wait are woken when the key becomes free, by any client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use syncguard_core::backend::{LockBackend as _, WatchRequest};
use syncguard_core::{AutoExtend, LockGuard, LockKey, Locks};
use syncguard_redis::{RedisBackend, RedisOptions};
use syncguard_testkit::{RedisCluster, RedisSentinel, RedisServer, share_a_key};
use tokio::task::JoinHandle;

use crate::common::{DOCUMENTED_RIGHTS, Raw, connected, eventually, granted};

/// No poll comes within this time: only a wake-up serves a caller.
const NEVER: Duration = Duration::from_secs(3_600);

/// Locks of two processes on one server.
async fn two_processes(server: &RedisServer) -> (Locks, Locks) {
    let connect = async || Locks::new(connected(server).await);
    (connect().await, connect().await)
}

/// A caller that does not poll.
fn waiter(locks: &Locks, key: &str) -> JoinHandle<LockGuard> {
    let request = locks.lock(key).timeout(NEVER).retry_delay(NEVER);
    tokio::spawn(async move { request.await.unwrap() })
}

/// Waits until the connection for wake-ups is back: a caller that does not poll must not come before it.
async fn until_watching_again(locks: &Locks, raw: &Raw) {
    let polling = locks.lock("k").timeout(NEVER).retry_failures(true);
    let polling = tokio::spawn(polling.into_future());
    until_watching(raw).await;
    polling.abort();
    assert!(polling.await.is_err());
}

async fn served(waiter: JoinHandle<LockGuard>) -> LockGuard {
    let served = tokio::time::timeout(Duration::from_secs(20), waiter).await;
    served.expect("the waiter sleeps on").unwrap()
}

/// Connections that hear of changes.
async fn watching(raw: &Raw) -> usize {
    let clients: String = raw.run(&["CLIENT", "LIST"]).await;
    let tracks = |line: &&str| line.contains(" flags=t ");
    clients.lines().filter(tracks).count()
}

async fn until_watching(raw: &Raw) {
    eventually("a watch is in place", async || watching(raw).await > 0).await;
    // The read that goes with it.
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[tokio::test]
async fn a_release_by_any_client_wakes_and_without_waiters_nothing_is_opened() {
    let server = RedisServer::start().unwrap();
    let (locks, elsewhere) = two_processes(&server).await;
    let raw = Raw::connect(&server.url()).await;
    let free = locks.lock("k").await.unwrap();
    assert!(free.release().await.unwrap().is_released());
    assert_eq!(watching(&raw).await, 0);

    let holder = granted(&elsewhere, "k").await;
    let waiting = waiter(&locks, "k");
    until_watching(&raw).await;
    assert!(holder.release().await.unwrap().is_released());
    drop(served(waiting).await);
    locks.drain(NEVER).await.unwrap();

    // As another implementation does it.
    let holder = granted(&elsewhere, "k").await;
    let index = format!("syncguard:id:{}", holder.lock_id().as_str());
    let waiting = waiter(&locks, "k");
    until_watching(&raw).await;
    let _: i64 = raw.run(&["DEL", "syncguard:k", &index]).await;
    drop(served(waiting).await);
    drop(holder.detach());
}

#[tokio::test]
async fn no_wake_up_is_lost_between_the_first_question_and_the_watch() {
    let server = RedisServer::start().unwrap();
    let (locks, elsewhere) = two_processes(&server).await;
    for round in 0..2_000_u64 {
        let holder = granted(&elsewhere, "k").await;
        let waiting = waiter(&locks, "k");
        // Released at about the time of each step that leads to the watch.
        tokio::time::sleep(Duration::from_micros(round % 20 * 50)).await;
        for _ in 0..round % 40 {
            tokio::task::yield_now().await;
        }
        assert!(holder.release().await.unwrap().is_released());
        assert!(served(waiting).await.release().await.unwrap().is_released());
    }
}

#[tokio::test]
async fn a_watching_connection_that_ends_costs_a_poll_and_comes_back() {
    let server = RedisServer::start().unwrap();
    let (locks, elsewhere) = two_processes(&server).await;
    let raw = Raw::connect(&server.url()).await;
    let holder = granted(&elsewhere, "k").await;
    let request = locks.lock("k").timeout(NEVER);
    let waiting = tokio::spawn(async move { request.await.unwrap() });
    until_watching(&raw).await;
    let clients: String = raw.run(&["CLIENT", "LIST"]).await;
    for line in clients.lines().filter(|line| line.contains(" flags=t ")) {
        let id = line.split_once("id=").unwrap().1.split(' ').next().unwrap();
        let _: i64 = raw.run(&["CLIENT", "KILL", "ID", id]).await;
    }
    assert!(holder.release().await.unwrap().is_released());
    assert!(served(waiting).await.release().await.unwrap().is_released());

    let holder = granted(&elsewhere, "k").await;
    until_watching_again(&locks, &raw).await;
    let waiting = waiter(&locks, "k");
    until_watching(&raw).await;
    assert!(holder.release().await.unwrap().is_released());
    drop(served(waiting).await);
}

/// The release, the read of the watch and the next acquire all find their script gone.
#[tokio::test]
async fn flushed_scripts_lose_no_wake_up() {
    let server = RedisServer::start().unwrap();
    let (locks, elsewhere) = two_processes(&server).await;
    let raw = Raw::connect(&server.url()).await;
    let holder = granted(&elsewhere, "k").await;
    let waiting = waiter(&locks, "k");
    until_watching(&raw).await;
    let _: String = raw.run(&["SCRIPT", "FLUSH"]).await;
    assert!(holder.release().await.unwrap().is_released());
    drop(served(waiting).await);
}

#[tokio::test]
async fn without_the_right_to_track_a_caller_polls() {
    let server = RedisServer::start().unwrap();
    let raw = Raw::connect(&server.url()).await;
    let mut user = vec!["ACL", "SETUSER", "locker", "reset", "on", ">secret"];
    let others = |right: &&str| *right != "+client|tracking";
    user.extend(DOCUMENTED_RIGHTS.into_iter().filter(others));
    let _: String = raw.run(&user).await;
    let url = server.url().replace("redis://", "redis://locker:secret@");
    let locks = Locks::new(RedisBackend::connect(&url).await.unwrap());
    let elsewhere = Locks::new(connected(&server).await);
    let holder = granted(&elsewhere, "k").await;
    let waiting = tokio::spawn({
        let request = locks.lock("k").timeout(NEVER);
        async move { request.await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(watching(&raw).await, 0);
    assert!(holder.release().await.unwrap().is_released());
    drop(served(waiting).await);
}

#[tokio::test]
async fn an_extend_costs_a_waiting_process_one_read_and_no_acquire() {
    let server = RedisServer::start().unwrap();
    let (locks, elsewhere) = two_processes(&server).await;
    let raw = Raw::connect(&server.url()).await;
    let holder = granted(&elsewhere, "k").await;
    let waiting = waiter(&locks, "k");
    until_watching(&raw).await;
    let counts = async || {
        (
            raw.commands_run("evalsha").await,
            raw.commands_run("get").await,
        )
    };
    let before = counts().await;
    const EXTENDS: u64 = 100;
    for _ in 0..EXTENDS {
        let extended = holder.extend(Duration::from_secs(60)).await.unwrap();
        assert!(extended.expires_at_ms().is_some());
    }
    let after = counts().await;
    // The extends themselves, and the first wake-up, which asks.
    assert!(after.0 - before.0 <= EXTENDS + 2, "{before:?} {after:?}");
    // Scripts read too: twice for an extend, and for a refusal.
    assert!(
        after.1 - before.1 <= EXTENDS * 3 + 6,
        "{before:?} {after:?}"
    );
    assert!(holder.release().await.unwrap().is_released());
    drop(served(waiting).await);
}

/// The server reports a release to all of them in the same order each time.
#[tokio::test]
async fn of_those_that_a_release_wakes_only_one_that_was_overtaken_asks_without_a_read() {
    let server = RedisServer::start().unwrap();
    let (waits_long, waits_since_now) = (connected(&server).await, connected(&server).await);
    let raw = Raw::connect(&server.url()).await;
    let key = LockKey::new("k").unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let watch = async |backend: &RedisBackend| {
        let watch = backend.watch(WatchRequest::new(&key, deadline)).await;
        watch.unwrap().expect("wake-ups")
    };
    let begin = async |lease: u32| {
        let value = format!(r#"{{"lockId":"{lease:022}"}}"#);
        raw.run::<()>(&["SET", "syncguard:k", &value]).await;
    };
    let reads = async || raw.commands_run("get").await;

    begin(0).await;
    let mut long = watch(&waits_long).await;
    let is_last = Arc::new(AtomicBool::new(false));
    let patient = tokio::spawn({
        let is_last = Arc::clone(&is_last);
        async move {
            while !is_last.load(Ordering::SeqCst) {
                long.changed().await.unwrap();
            }
        }
    });
    for lease in 1..=4 {
        let before = reads().await;
        begin(lease).await;
        let is_read = async || reads().await > before;
        eventually("the watch reads the new lease", is_read).await;
    }
    let mut since_now = watch(&waits_since_now).await;
    let before = reads().await;
    is_last.store(true, Ordering::SeqCst);
    let _: i64 = raw.run(&["DEL", "syncguard:k"]).await;
    let both = async { (since_now.changed().await.unwrap(), patient.await.unwrap()) };
    tokio::time::timeout(Duration::from_secs(20), both)
        .await
        .expect("both are woken");
    assert_eq!(reads().await - before, 1);
}

#[tokio::test]
async fn a_thousand_keys_are_watched_on_one_connection_each_woken_by_its_own() {
    const KEYS: usize = 1_000;
    let server = RedisServer::start().unwrap();
    let (locks, elsewhere) = two_processes(&server).await;
    let raw = Raw::connect(&server.url()).await;
    let mut all = Vec::new();
    for key in (0..KEYS).map(|key| format!("k{key}")) {
        let holder = granted(&elsewhere, &key).await;
        all.push((holder, waiter(&locks, &key)));
    }
    until_watching(&raw).await;
    eventually("all wait", async || {
        raw.info("stats", "tracking_total_keys").await >= 1_000
    })
    .await;
    assert_eq!(watching(&raw).await, 1);
    let before = raw.commands_run("evalsha").await;
    for (holder, waiting) in all {
        assert!(holder.release().await.unwrap().is_released());
        drop(served(waiting).await.detach());
    }
    let asked = raw.commands_run("evalsha").await - before;
    // A release and an acquire for each key.
    assert!(asked <= 2_100, "{asked}");
}

#[tokio::test]
async fn on_a_cluster_too() {
    let cluster = RedisCluster::start().unwrap();
    let connect = async || {
        let options = RedisOptions::new().prefix("{syncguard}");
        let backend = RedisBackend::connect_with(&cluster.url(), options).await;
        Locks::new(backend.unwrap())
    };
    let (locks, elsewhere) = (connect().await, connect().await);
    for _ in 0..50 {
        let holder = granted(&elsewhere, "k").await;
        let waiting = waiter(&locks, "k");
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(holder.release().await.unwrap().is_released());
        assert!(served(waiting).await.release().await.unwrap().is_released());
    }
}

#[tokio::test]
async fn a_caller_that_waits_through_a_failover_is_served_and_wake_ups_come_back() {
    let mut servers = RedisSentinel::start().unwrap();
    let connect = async || Locks::new(RedisBackend::connect(&servers.url()).await.unwrap());
    let (locks, elsewhere) = (connect().await, connect().await);
    let raw = Raw::connect(&servers.primary().url()).await;
    let held = elsewhere.try_lock("k").ttl(NEVER).await.unwrap();
    let held = held.expect("the key is free").detach();
    let request = locks.lock("k").timeout(NEVER).retry_failures(true);
    let waiting = tokio::spawn(async move { request.await.unwrap() });
    until_watching(&raw).await;
    // `WAIT` counts what its own connection wrote.
    let () = raw.run(&["SET", "last", "1"]).await;
    let replicas: i64 = raw.run(&["WAIT", "1", "10000"]).await;
    assert_eq!(replicas, 1);

    servers.primary_mut().kill();
    eventually("the new primary releases", async || {
        elsewhere.release(*held.lock_id()).await.is_ok()
    })
    .await;
    assert!(served(waiting).await.release().await.unwrap().is_released());

    let raw = Raw::connect(&servers.replica().url()).await;
    let holder = granted(&elsewhere, "k").await;
    until_watching_again(&locks, &raw).await;
    let waiting = waiter(&locks, "k");
    until_watching(&raw).await;
    assert!(holder.release().await.unwrap().is_released());
    drop(served(waiting).await);
}

#[tokio::test]
async fn renewals_of_a_holder_do_not_hide_its_release() {
    let server = RedisServer::start().unwrap();
    let (locks, elsewhere) = two_processes(&server).await;
    let request = elsewhere.lock("k").ttl(Duration::from_secs(3));
    let holder = request.auto_extend(AutoExtend::new()).await.unwrap();
    let waiting = waiter(&locks, "k");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let released = Instant::now();
    assert!(holder.release().await.unwrap().is_released());
    drop(served(waiting).await);
    assert!(
        released.elapsed() < Duration::from_secs(3),
        "it came with the expiry"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_takes_a_key_without_pause_leaves_a_third_to_another() {
    let server = RedisServer::start().unwrap();
    let (one, other) = two_processes(&server).await;
    share_a_key([one, other]).await.unwrap();
}
