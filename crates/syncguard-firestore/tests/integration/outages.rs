//! A server that cannot be reached, hangs, or comes back.

use std::time::{Duration, Instant};

use syncguard_core::observe::Operation;
use syncguard_core::{ErrorCode, LockError, Locks};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions};
use syncguard_testkit::{FirestoreEmulator, in_time};
use tokio::net::TcpListener;

use crate::common::{Database, id};

const DEADLINE: Duration = Duration::from_secs(2);
/// Within which an operation works again.
const RECOVERY: Duration = Duration::from_secs(60);

fn is_outage(error: &LockError) -> bool {
    matches!(
        error.code(),
        ErrorCode::NetworkTimeout | ErrorCode::ServiceUnavailable
    )
}

fn locks_over(backend: FirestoreBackend) -> Locks {
    Locks::builder(backend).operation_timeout(DEADLINE).build()
}

/// Many operations of each kind at once: all fail with the right code before the deadline.
async fn all_fail_in_time(locks: &Locks) {
    let mut attempts = tokio::task::JoinSet::new();
    for n in 0..40 {
        let locks = locks.clone();
        attempts.spawn(async move {
            let (key, id, ttl) = (format!("during-{n}"), id(), Duration::from_secs(60));
            let failed = in_time(DEADLINE, async {
                match n % 4 {
                    0 => locks.try_lock(key).ttl(ttl).await.map(drop),
                    1 => locks.release(id).await.map(drop),
                    2 => locks.extend(id, ttl).await.map(drop),
                    _ => locks.is_locked(key).await.map(drop),
                }
            });
            let error = failed.await.unwrap().unwrap_err();
            assert!(is_outage(&error), "{error:?}");
        });
    }
    attempts.join_all().await;
}

/// The same client works again, and no lock of the failed attempts stays.
async fn recovers(locks: &Locks) {
    let started = Instant::now();
    while let Err(error) = locks.is_locked("k").await {
        assert!(
            is_outage(&error) && started.elapsed() < RECOVERY,
            "{error:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    locks.drain(RECOVERY).await.unwrap();
    for n in 0..40 {
        let key = format!("during-{n}");
        assert!(!locks.is_locked(key).await.unwrap(), "no lock stays behind");
    }
    let guard = locks.try_lock("afterwards").await.unwrap().unwrap();
    assert!(guard.release().await.unwrap().is_released());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emulator_that_hangs_or_dies_and_comes_back() {
    let mut emulator = tokio::task::spawn_blocking(FirestoreEmulator::start)
        .await
        .unwrap()
        .unwrap();
    let database = Database::on(emulator.host());
    crate::common::warm_up(&database.host);
    let locks = locks_over(database.backend().await);
    let held = locks.try_lock("held").await.unwrap().unwrap().detach();

    emulator.pause().unwrap();
    all_fail_in_time(&locks).await;
    emulator.resume().unwrap();
    recovers(&locks).await;
    assert!(locks.release(held.lock_id()).await.unwrap().is_released());

    emulator.kill();
    all_fail_in_time(&locks).await;
    let emulator = tokio::task::spawn_blocking(move || emulator.restart().map(|()| emulator));
    let _emulator = emulator.await.unwrap().unwrap();
    crate::common::warm_up(&database.host);
    recovers(&locks).await;
}

#[tokio::test]
async fn connecting_to_nothing_fails_at_once_and_to_silence_in_time() {
    let connect = async |host: &str| {
        let options = FirestoreOptions::new().request_timeout(DEADLINE);
        let connecting = FirestoreBackend::connect_emulator(host, "p", options);
        in_time(DEADLINE, connecting).await.unwrap()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    // It accepts connections, and never sends a byte.
    match connect(&host).await {
        Err(error) => assert!(is_outage(&error), "{error:?}"),
        Ok(backend) => {
            let error = locks_over(backend).is_locked("k").await.unwrap_err();
            assert!(is_outage(&error), "{error:?}");
        }
    }
    drop(listener);
    let error = connect(&host).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert_eq!(error.operation(), Some(Operation::Setup));
}

#[tokio::test]
async fn bad_configuration_is_refused_before_anything_is_sent() {
    let refused = async |host: &str, database: &str, options: FirestoreOptions| {
        let backend = FirestoreBackend::connect_emulator(host, database, options).await;
        let error = backend.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert_eq!(error.operation(), Some(Operation::Setup));
    };
    let options = FirestoreOptions::new;
    let nobody = "127.0.0.1:1";
    refused(nobody, "", options()).await;
    refused(nobody, "projects/p", options()).await;
    refused(nobody, "p", options().lock_collection("a/b")).await;
    refused(nobody, "p", options().fence_collection("locks")).await;
    refused(nobody, "p", options().request_timeout(Duration::ZERO)).await;
    refused("", "p", options()).await;
    refused("http://127.0.0.1:1", "p", options()).await;
    refused("not a host", "p", options()).await;
    // Without a port it would be port 80.
    refused("127.0.0.1", "p", options()).await;
    refused("localhost:", "p", options()).await;
    refused("localhost:port", "p", options()).await;
    refused("localhost:99999", "p", options()).await;
}

/// Without cryptography TLS would panic; the error says what to do.
#[cfg(not(feature = "default-crypto"))]
#[tokio::test]
async fn production_without_a_crypto_provider_is_an_error_that_helps() {
    let error = FirestoreBackend::connect("p", FirestoreOptions::new())
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::AuthFailed);
    assert!(error.message().contains("default-crypto"));
}
