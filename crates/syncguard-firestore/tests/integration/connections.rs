//! Connections that are lost, servers that are no Firestore, and calls whose caller goes away.

use std::error::Error as _;
use std::time::{Duration, Instant};

use syncguard_core::{ErrorCode, LockError, Locks};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions};
use syncguard_testkit::FirestoreEmulator;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tonic::Code;

use crate::common::proxy::{Fault, Proxy};
use crate::common::relay::Relay;
use crate::common::{Database, id};

const GET: &str = "BatchGetDocuments";
/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(60);
const MINUTE: Duration = Duration::from_secs(60);

fn locks_over(backend: FirestoreBackend, timeout: Duration) -> Locks {
    Locks::builder(backend).operation_timeout(timeout).build()
}

async fn through(relay: &Relay, database: &Database, timeout: Duration) -> Locks {
    let host = relay.host.clone();
    let project = database.project.clone();
    let behind = Database { host, project };
    let options = FirestoreOptions::new().request_timeout(PATIENCE);
    locks_over(behind.backend_with(options).await, timeout)
}

/// What the sources of an error say.
fn seen(error: &LockError) -> String {
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// Servers close a connection on which many streams are reset, and all calls on it fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_calls_reset_no_stream_and_leave_nothing() {
    let database = Database::new();
    let relay = Relay::to(&database.host);
    let locks = through(&relay, &database, PATIENCE).await;
    let held = locks
        .try_lock("held")
        .ttl(10 * MINUTE)
        .await
        .unwrap()
        .unwrap();
    let mut dropped = 0;
    for n in 0..200_u64 {
        let key = format!("k{n}");
        // From before the read is sent until after the commit is answered.
        let within = Duration::from_micros(n * 100);
        let attempt = locks.try_lock(key.as_str()).ttl(10 * MINUTE).attempt();
        dropped += usize::from(tokio::time::timeout(within, attempt).await.is_err());
        let other = locks.is_locked(key.as_str());
        dropped += usize::from(tokio::time::timeout(within / 2, other).await.is_err());
        let extend = locks.extend(*held.lock_id(), 10 * MINUTE);
        dropped += usize::from(tokio::time::timeout(within / 2, extend).await.is_err());
    }
    assert!(dropped > 20, "{dropped} calls were dropped");
    // Long before the TTL. What was not dropped half-way is a guard that was dropped.
    let direct = database.locks().await;
    let started = Instant::now();
    for key in (0..200).map(|n| format!("k{n}")) {
        while direct.is_locked(key.as_str()).await.unwrap() {
            assert!(started.elapsed() < PATIENCE, "{key} is still locked");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert!(held.release().await.unwrap().is_released());
    assert_eq!((relay.resets(), relay.connections()), (0, 1));
}

/// A call goes on after its caller has dropped it, but not for ever.
#[tokio::test]
async fn a_dropped_call_ends_by_its_deadline() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let relay = Relay::to(&database.host);
    let locks = through(&relay, &database, Duration::from_secs(2)).await;
    proxy.fail_next(GET, Fault::Lost);
    let started = Instant::now();
    let lost = locks.is_locked("k");
    let half = tokio::time::timeout(Duration::from_secs(1), lost).await;
    assert!(half.is_err());
    while relay.resets() == 0 {
        assert!(started.elapsed() < PATIENCE, "it hangs for ever");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        started.elapsed() >= Duration::from_secs(2),
        "it was reset when it was dropped"
    );
}

#[tokio::test]
async fn a_connection_that_is_lost_without_notice_fails_one_operation() {
    let database = Database::new();
    let relay = Relay::to(&database.host);
    let locks = through(&relay, &database, Duration::from_secs(3)).await;
    assert!(!locks.is_locked("k").await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    relay.lose_connections();
    let error = locks.is_locked("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    works_soon(&locks, 2).await;
    assert_eq!(relay.connections(), 2);
}

/// With deadlines so short that no timeout alone proves a loss. Keepalive takes a minute.
#[tokio::test]
async fn a_connection_that_is_lost_without_notice_is_replaced_however_short_the_deadlines_are() {
    let database = Database::new();
    let relay = Relay::to(&database.host);
    let locks = through(&relay, &database, Duration::from_millis(900)).await;
    while locks.is_locked("k").await.is_err() {}
    let connections = relay.connections();
    relay.lose_connections();
    let lost = Instant::now();
    while let Err(error) = locks.is_locked("k").await {
        assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
        assert!(lost.elapsed() < MINUTE / 2, "it is not replaced");
    }
    assert!(relay.connections() > connections);
}

#[tokio::test]
async fn an_address_that_leads_to_another_server_after_a_failover() {
    let database = Database::new();
    let relay = Relay::to(&database.host);
    let locks = through(&relay, &database, Duration::from_secs(3)).await;
    let held = locks.try_lock("held").ttl(MINUTE).await.unwrap().unwrap();
    let standby = tokio::task::spawn_blocking(FirestoreEmulator::start).await;
    let standby = standby.unwrap().unwrap();
    crate::common::warm_up(&standby.host());
    relay.lead_to(&standby.host());
    relay.lose_connections();
    works_soon(&locks, 3).await;
    // The standby has lost it.
    assert!(!locks.is_locked("held").await.unwrap());
    drop(held.detach());
}

/// One of so many operations in a row works.
async fn works_soon(locks: &Locks, attempts: usize) {
    let mut errors = Vec::new();
    for _ in 0..attempts {
        match locks.try_lock("afterwards").ttl(MINUTE).await {
            Ok(guard) => {
                assert!(guard.unwrap().release().await.unwrap().is_released());
                return;
            }
            Err(error) => errors.push(error),
        }
    }
    panic!("{errors:?}");
}

#[test]
fn after_the_runtime_of_its_connection_has_ended_the_error_says_so() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (first, second) = (runtime(), runtime());
    let (database, locks) = first.block_on(async {
        let database = Database::new();
        let locks = locks_over(database.backend().await, PATIENCE);
        assert!(!locks.is_locked("k").await.unwrap());
        (database, locks)
    });
    // Beside the first runtime it works.
    second.block_on(async {
        let guard = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
        assert!(guard.release().await.unwrap().is_released());
    });
    drop(first);
    second.block_on(async {
        let started = Instant::now();
        let errors = [
            locks.try_lock("k").ttl(MINUTE).await.unwrap_err(),
            locks.release(id()).await.unwrap_err(),
            locks.extend(id(), MINUTE).await.unwrap_err(),
            locks.is_locked("k").await.unwrap_err(),
        ];
        assert!(started.elapsed() < PATIENCE / 2, "at once");
        for error in errors {
            assert_eq!(error.code(), ErrorCode::InvalidArgument);
            assert!(!error.outcome_unknown(), "{error:?}");
            assert!(error.message().contains("runtime"), "{error:?}");
        }
        locks.drain(PATIENCE).await.unwrap();
        let again = locks_over(database.backend().await, PATIENCE);
        assert!(!again.is_locked("k").await.unwrap());
    });
}

/// A server that reads, replies with this, and closes the connection.
async fn server_that_says(reply: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                if !reply.is_empty() {
                    let _ = client.read(&mut [0; 1024]).await;
                }
                let _ = client.write_all(reply).await;
                let _ = client.shutdown().await;
                let _ = client.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    host
}

#[tokio::test]
async fn a_server_that_is_no_firestore_is_unavailable() {
    for (reply, what) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
            "frame",
        ),
        (b"-ERR unknown command 'PRI'\r\n", "frame"),
        (b"", "connection"),
    ] {
        let host = server_that_says(reply).await;
        let backend = FirestoreBackend::connect_emulator(&host, "p", FirestoreOptions::new()).await;
        let errors = match backend {
            Err(error) => vec![error],
            Ok(backend) => {
                let locks = locks_over(backend, PATIENCE);
                vec![
                    locks.try_lock("k").await.unwrap_err(),
                    locks.is_locked("k").await.unwrap_err(),
                    locks.preflight().await.unwrap_err(),
                    locks.purge_expired().await.unwrap_err(),
                ]
            }
        };
        for error in errors {
            assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
            assert!(seen(&error).contains(what), "{what}: {error:?}");
        }
    }
}

/// As a web server that speaks HTTP/2 answers: without a gRPC status of its own.
#[tokio::test]
async fn replies_that_are_not_firestores_are_unavailable_and_say_so() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let locks = database.locks().await;
    for status in [200, 302, 404, 500, 503] {
        proxy.fail_next(GET, Fault::PlainHttp(status));
        let error = locks.is_locked("k").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
        assert!(
            status == 200 || seen(&error).contains(&status.to_string()),
            "{error:?}"
        );
        proxy.fail_next("Commit", Fault::PlainHttp(status));
        let error = locks.try_lock("k").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    }
}

/// The background goes on, and the key ends free.
#[tokio::test]
async fn a_release_goes_on_while_the_credentials_are_refused_for_a_moment() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let locks = database.locks().await;
    let guard = locks.try_lock("k").ttl(10 * MINUTE).await.unwrap().unwrap();
    for _ in 0..3 {
        proxy.fail_next("RunQuery", Fault::Refused(Code::Unauthenticated));
    }
    proxy.fail_next("Commit", Fault::Refused(Code::Unauthenticated));
    drop(guard);
    locks.drain(PATIENCE).await.unwrap();
    assert!(!locks.is_locked("k").await.unwrap());
}

/// It accepts connections, and never sends a byte.
#[tokio::test]
async fn no_call_outlasts_its_deadline_on_a_server_that_hangs() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let options = FirestoreOptions::new().request_timeout(Duration::from_secs(3_600));
    let backend = FirestoreBackend::connect_emulator(&host, "p", options)
        .await
        .unwrap();
    let locks = locks_over(backend, Duration::from_secs(2));
    let started = Instant::now();
    let (purged, checked, locked) = tokio::join!(
        locks.purge_expired(),
        locks.preflight(),
        locks.is_locked("k"),
    );
    for error in [
        purged.unwrap_err(),
        checked.unwrap_err(),
        locked.unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
    }
    locks.close().await.unwrap();
    assert!(started.elapsed() < PATIENCE);
}
