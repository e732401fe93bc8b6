//! A store that cannot be reached, hangs, or comes back.

mod common;

use std::time::{Duration, Instant};

use common::{Database, id, key, take, ttl};
use syncguard_core::{
    ErrorCode, LockBackend as _, LockError, Managed, ManagedBackend as _, Policy,
};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions, FirestoreStore};
use syncguard_testkit::FirestoreEmulator;
use tokio::net::TcpListener;

const DEADLINE: Duration = Duration::from_secs(2);
/// What a busy machine may add to it.
const SLACK: Duration = Duration::from_secs(3);
/// Within which an operation works again.
const RECOVERY: Duration = Duration::from_secs(60);

fn is_outage(error: &LockError) -> bool {
    matches!(
        error.code(),
        ErrorCode::NetworkTimeout | ErrorCode::ServiceUnavailable
    )
}

/// All operations, at once and several times, fail as they should and in time.
async fn all_fail_in_time(backend: &FirestoreBackend) {
    let mut attempts = tokio::task::JoinSet::new();
    for n in 0..40 {
        let backend = backend.clone();
        attempts.spawn(async move {
            let (key, id) = (key(&format!("during-{n}")), id());
            let started = Instant::now();
            let error = match n % 4 {
                0 => backend.acquire(&key, &id, ttl(60_000)).await.unwrap_err(),
                1 => backend.release(&id).await.unwrap_err(),
                2 => backend.extend(&id, ttl(60_000)).await.unwrap_err(),
                _ => backend.is_locked(&key).await.unwrap_err(),
            };
            assert!(is_outage(&error), "{error:?}");
            assert!(
                started.elapsed() < DEADLINE + SLACK,
                "{:?}",
                started.elapsed()
            );
        });
    }
    attempts.join_all().await;
}

/// The same client works again, and nothing taken meanwhile stays.
async fn recovers(backend: &FirestoreBackend) {
    let started = Instant::now();
    while let Err(error) = backend.is_locked(&key("k")).await {
        assert!(
            is_outage(&error) && started.elapsed() < RECOVERY,
            "{error:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    backend.drain(RECOVERY).await.unwrap();
    for n in 0..40 {
        let key = key(&format!("during-{n}"));
        assert!(
            !backend.is_locked(&key).await.unwrap(),
            "no lock stays behind"
        );
    }
    let grant = take(backend, "afterwards").await;
    assert!(backend.release(&grant.lock_id).await.unwrap().is_released());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emulator_that_hangs_or_dies_and_comes_back() {
    let mut emulator = tokio::task::spawn_blocking(FirestoreEmulator::start)
        .await
        .unwrap()
        .unwrap();
    let database = Database::on(emulator.host());
    common::warm_up(&database.host);
    let policy = Policy::new().with_operation_timeout(DEADLINE);
    let backend = Managed::with_policy(database.store().await, policy);
    let held = take(&backend, "held").await;

    emulator.pause().unwrap();
    all_fail_in_time(&backend).await;
    emulator.resume().unwrap();
    recovers(&backend).await;
    assert!(backend.release(&held.lock_id).await.unwrap().is_released());

    emulator.kill();
    all_fail_in_time(&backend).await;
    let emulator = tokio::task::spawn_blocking(move || emulator.restart().map(|()| emulator));
    let _emulator = emulator.await.unwrap().unwrap();
    common::warm_up(&database.host);
    recovers(&backend).await;
}

#[tokio::test]
async fn connecting_to_nothing_fails_at_once_and_to_silence_in_time() {
    let connect = async |host: &str| {
        let options = FirestoreOptions::new().with_request_timeout(DEADLINE);
        let started = Instant::now();
        let store = FirestoreStore::connect_emulator(host, "p", options).await;
        assert!(started.elapsed() < DEADLINE + SLACK);
        store
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    // It accepts, and never says a word.
    match connect(&host).await {
        Err(error) => assert!(is_outage(&error), "{error:?}"),
        Ok(store) => {
            let backend =
                Managed::with_policy(store, Policy::new().with_operation_timeout(DEADLINE));
            let error = backend.is_locked(&key("k")).await.unwrap_err();
            assert!(is_outage(&error), "{error:?}");
        }
    }
    drop(listener);
    let error = connect(&host).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
}

#[tokio::test]
async fn bad_configuration_is_refused_before_anything_is_sent() {
    let refused = async |host: &str, database: &str, options: FirestoreOptions| {
        let store = FirestoreStore::connect_emulator(host, database, options).await;
        assert_eq!(store.unwrap_err().code(), ErrorCode::InvalidArgument);
    };
    let options = FirestoreOptions::new;
    let nobody = "127.0.0.1:1";
    refused(nobody, "", options()).await;
    refused(nobody, "projects/p", options()).await;
    refused(nobody, "p", options().with_lock_collection("a/b")).await;
    refused(nobody, "p", options().with_fence_collection("locks")).await;
    refused(nobody, "p", options().with_request_timeout(Duration::ZERO)).await;
    refused("", "p", options()).await;
    refused("http://127.0.0.1:1", "p", options()).await;
    refused("not a host", "p", options()).await;
}

/// Without cryptography TLS would panic; the error says what to do.
#[cfg(not(feature = "default-crypto"))]
#[tokio::test]
async fn production_without_a_crypto_provider_is_an_error_that_helps() {
    let error = FirestoreStore::connect("p", FirestoreOptions::new())
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::AuthFailed);
    assert!(error.message().contains("default-crypto"));
}
