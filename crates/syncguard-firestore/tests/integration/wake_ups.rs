//! Callers that wait are woken when the key becomes free, by any client.

use std::time::Duration;

use syncguard_core::backend::{LockBackend as _, Watch};
use syncguard_core::{LockGuard, Locks};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions};
use syncguard_testkit::{FaultProxy, share_a_key};
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tonic::Code;

use crate::common::proxy::{Fault, Proxy};
use crate::common::relay::Relay;
use crate::common::{Database, key, requests};

/// No poll comes within this time: only a wake-up serves a caller.
const NEVER: Duration = Duration::from_secs(3_600);
/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A database on an emulator that has served a stream before: on a busy machine the first can take longer
/// than a store waits for it.
async fn listening() -> Database {
    let database = Database::new();
    let backend = database.backend().await;
    let started = Instant::now();
    while !matches!(
        backend.watch(requests::watch(&key("first"))).await,
        Ok(Some(_))
    ) {
        assert!(
            started.elapsed() < PATIENCE,
            "the emulator serves no stream"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    database
}

/// Locks behind a proxy, and locks of another process.
async fn two_processes() -> (Proxy, Locks, Locks, Database) {
    let database = listening().await;
    let elsewhere = database.locks().await;
    let (proxy, behind) = Proxy::before(&database).await;
    (proxy, behind.locks().await, elsewhere, database)
}

/// A caller that does not poll.
fn waiter(locks: &Locks, key: &str) -> JoinHandle<LockGuard> {
    let request = locks.lock(key).timeout(NEVER).retry_delay(NEVER);
    tokio::spawn(async move { request.await.unwrap() })
}

/// A caller that polls.
fn polling(locks: &Locks, key: &str) -> JoinHandle<LockGuard> {
    let request = locks.lock(key).timeout(NEVER).retry_failures(true);
    tokio::spawn(async move { request.await.unwrap() })
}

async fn served(waiter: JoinHandle<LockGuard>) -> LockGuard {
    let served = tokio::time::timeout(PATIENCE, waiter).await;
    served.expect("the waiter sleeps on").unwrap()
}

async fn granted(locks: &Locks, key: &str) -> LockGuard {
    let guard = locks.try_lock(key).ttl(NEVER).await.unwrap();
    guard.expect("the key is free")
}

async fn released(guard: LockGuard) {
    assert!(guard.release().await.unwrap().is_released());
}

async fn watch(backend: &FirestoreBackend, name: &str) -> Option<Watch> {
    backend.watch(requests::watch(&key(name))).await.unwrap()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "not so: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_watching(proxy: &Proxy, targets: usize) {
    until("targets", || proxy.listens.targets() == targets).await;
    // The reply that says they are in place.
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn a_release_by_any_client_wakes_and_nothing_is_left_afterwards() {
    let (proxy, locks, elsewhere, database) = two_processes().await;
    released(locks.lock("k").await.unwrap()).await;
    let holder = granted(&elsewhere, "k").await;
    assert!(locks.try_lock("k").await.unwrap().is_none());
    assert_eq!(proxy.listens.opened(), 0, "nobody has waited");

    let waiting = waiter(&locks, "k");
    until_watching(&proxy, 1).await;
    released(holder).await;
    released(served(waiting).await).await;
    until("no target is left", || proxy.listens.targets() == 0).await;

    // As another implementation does it.
    let holder = granted(&elsewhere, "k").await;
    let waiting = waiter(&locks, "k");
    until_watching(&proxy, 1).await;
    database.delete("locks", "k").await;
    drop(holder.detach());
    let holder = served(waiting).await;

    let waiting = waiter(&locks, "other");
    released(served(waiting).await).await;
    let holder_of_other = granted(&elsewhere, "other").await;
    let waiting = waiter(&locks, "other");
    until_watching(&proxy, 1).await;
    waiting.abort();
    until("no target is left", || proxy.listens.targets() == 0).await;
    released(holder).await;
    released(holder_of_other).await;
    assert_eq!((proxy.listens.opened(), proxy.listens.open()), (1, 1));
    until("the unused stream is closed", || proxy.listens.open() == 0).await;
}

#[tokio::test]
async fn no_wake_up_is_lost_between_the_first_question_and_the_watch() {
    let database = listening().await;
    let (locks, elsewhere) = (database.locks().await, database.locks().await);
    for round in 0..200_u64 {
        let holder = granted(&elsewhere, "k").await;
        let waiting = waiter(&locks, "k");
        // Released at about the time of each step that leads to the watch.
        tokio::time::sleep(Duration::from_micros(round % 20 * 500)).await;
        released(holder).await;
        released(served(waiting).await).await;
    }
}

#[tokio::test]
async fn an_extend_costs_a_waiting_process_nothing() {
    let (proxy, locks, elsewhere, _) = two_processes().await;
    let holder = granted(&elsewhere, "k").await;
    let waiting = waiter(&locks, "k");
    until_watching(&proxy, 1).await;
    let _ = proxy.requests();
    for _ in 0..50 {
        let extended = holder.extend(Duration::from_secs(60)).await.unwrap();
        assert!(extended.expires_at_ms().is_some());
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(proxy.requests(), "");
    released(holder).await;
    released(served(waiting).await).await;
}

#[tokio::test]
async fn a_stream_that_is_cut_costs_a_poll_and_comes_back() {
    const KEYS: usize = 8;
    let database = listening().await;
    let elsewhere = database.locks().await;
    let (proxy, behind) = Proxy::before(&database).await;
    let port = behind.host.rsplit(':').next().unwrap().parse().unwrap();
    let cut = FaultProxy::start(port).unwrap();
    let through = Database {
        host: cut.address(),
        project: database.project.clone(),
    };
    let locks = through.locks().await;
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for key in (0..KEYS).map(|key| format!("k{key}")) {
        holders.push(granted(&elsewhere, &key).await);
        waiters.push(polling(&locks, &key));
    }
    until_watching(&proxy, KEYS).await;
    cut.reset_all();
    until("the stream is lost", || proxy.listens.opened() > 1).await;
    for holder in holders {
        released(holder).await;
    }
    for waiting in waiters {
        released(served(waiting).await).await;
    }

    let holder = granted(&elsewhere, "k").await;
    let waiting = waiter(&locks, "k");
    until_watching(&proxy, 1).await;
    released(holder).await;
    released(served(waiting).await).await;
}

#[tokio::test]
async fn a_watch_on_a_connection_that_was_lost_without_notice_is_lost() {
    let database = listening().await;
    let relay = Relay::to(&database.host);
    let behind = Database {
        host: relay.host.clone(),
        project: database.project.clone(),
    };
    let options = FirestoreOptions::new().request_timeout(PATIENCE);
    let backend = behind.backend_with(options).await;
    let locks = Locks::builder(backend.clone())
        .operation_timeout(Duration::from_secs(3))
        .build();
    let holder = granted(&locks, "k").await;
    let mut watch = watch(&backend, "k").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    relay.lose_connections();
    // A poll finds it out.
    locks.is_locked("k").await.unwrap_err();
    let lost = tokio::time::timeout(PATIENCE, watch.changed()).await;
    assert!(lost.expect("it was not noticed").is_err());
    drop(holder.detach());
}

#[test]
fn a_stream_outlives_the_runtime_of_the_caller_who_opened_it() {
    let (first, second) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let (proxy, locks, elsewhere, _) = first.block_on(two_processes());
    let holder = first.block_on(granted(&elsewhere, "k"));
    let other = first.block_on(granted(&elsewhere, "other"));
    second.block_on(async {
        drop(waiter(&locks, "other"));
        until_watching(&proxy, 1).await;
    });
    first.block_on(async {
        let waiting = waiter(&locks, "k");
        until_watching(&proxy, 2).await;
        second.shutdown_background();
        until("a new stream", || proxy.listens.opened() == 2).await;
        until_watching(&proxy, 1).await;
        released(holder).await;
        released(served(waiting).await).await;
        released(other).await;
    });
}

#[tokio::test]
async fn where_the_stream_is_refused_a_caller_polls() {
    let database = listening().await;
    let elsewhere = database.locks().await;
    let (proxy, behind) = Proxy::before(&database).await;
    for fault in [
        Fault::Refused(Code::PermissionDenied),
        Fault::Refused(Code::Unimplemented),
        Fault::PlainHttp(404),
        Fault::Lost,
    ] {
        let locks = behind.locks().await;
        let opened = proxy.listens.opened();
        proxy.fail_next("Listen", fault);
        for _ in 0..3 {
            let holder = granted(&elsewhere, "k").await;
            let waiting = polling(&locks, "k");
            tokio::time::sleep(Duration::from_millis(500)).await;
            released(holder).await;
            released(served(waiting).await).await;
        }
        // A refusal holds for a minute. A server that does not reply is tried again.
        let tried = proxy.listens.opened() - opened;
        let is_silent = matches!(fault, Fault::Lost);
        assert!(tried == 1 || is_silent, "{fault:?}: {tried}");
    }
}

#[tokio::test]
async fn without_wake_ups_no_stream_is_opened() {
    let database = listening().await;
    let elsewhere = database.locks().await;
    let (proxy, behind) = Proxy::before(&database).await;
    let backend = behind.backend().await;
    let locks = Locks::builder(backend).wake_ups(false).build();
    let holder = granted(&elsewhere, "k").await;
    let waiting = polling(&locks, "k");
    tokio::time::sleep(Duration::from_secs(1)).await;
    released(holder).await;
    released(served(waiting).await).await;
    assert_eq!(proxy.listens.opened(), 0);
}

#[tokio::test]
async fn close_ends_the_stream_and_so_does_the_end_of_the_backend() {
    let database = listening().await;
    let elsewhere = database.locks().await;
    let (proxy, behind) = Proxy::before(&database).await;
    let holder = granted(&elsewhere, "k").await;
    let backend = behind.backend().await;
    let mut placed = watch(&backend, "k").await.unwrap();
    assert_eq!(proxy.listens.open(), 1);
    Locks::new(backend.clone()).close().await.unwrap();
    until("the stream is closed", || proxy.listens.open() == 0).await;
    assert!(placed.changed().await.is_err());
    assert!(watch(&backend, "k").await.is_none());
    drop(placed);

    let backend = behind.backend().await;
    let placed = watch(&backend, "k").await.unwrap();
    assert_eq!(proxy.listens.open(), 1);
    drop((placed, backend));
    until("the stream has ended", || proxy.listens.open() == 0).await;
    released(holder).await;
}

#[tokio::test]
async fn a_thousand_keys_are_watched_on_one_stream_each_woken_by_its_own() {
    const KEYS: usize = 1_000;
    let database = listening().await;
    let elsewhere = database.locks().await;
    let (proxy, behind) = Proxy::before(&database).await;
    let backend = behind.backend().await;
    let name = |index| format!("k{index}");
    let mut holders = Vec::new();
    for index in 0..KEYS {
        let holder = granted(&elsewhere, &name(index)).await;
        // With so many targets, a commit takes the emulator long: only some keys are released.
        if index % 20 == 0 {
            holders.push((index, holder));
        } else {
            drop(holder.detach());
        }
    }
    let mut watching = JoinSet::new();
    for index in 0..KEYS {
        let mut watch = watch(&backend, &name(index)).await.unwrap();
        watching.spawn(async move {
            watch.changed().await.unwrap();
            index
        });
    }
    assert_eq!((proxy.listens.opened(), proxy.listens.targets()), (1, KEYS));
    for (index, holder) in holders {
        assert!(watching.try_join_next().is_none());
        released(holder).await;
        let woken = tokio::time::timeout(PATIENCE, watching.join_next()).await;
        assert_eq!(woken.expect("it sleeps on").unwrap().unwrap(), index);
    }
    watching.shutdown().await;
    until("no target is left", || proxy.listens.targets() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_takes_a_key_without_pause_leaves_a_third_to_another() {
    let database = listening().await;
    let processes = [database.locks().await, database.locks().await];
    share_a_key(processes).await.unwrap();
}
