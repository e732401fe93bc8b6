//! What goes over the wire, and what becomes of an operation whose answer does not.

mod common;

use std::time::{Duration, Instant};

use common::proxy::Wire;
use common::{Fixture, id, key, ttl};
use syncguard_core::{
    ErrorCode, LockBackend as _, LockOptions, Lookup, ManagedBackend as _, acquire, is_locked,
    lock, release,
};
use syncguard_postgres::{PostgresBackend, PostgresOptions, PostgresStore};

const MINUTE: Duration = Duration::from_secs(60);

/// A store behind a proxy, with one connection.
async fn wired(fixture: &Fixture, options: PostgresOptions) -> (Wire, PostgresStore) {
    let (wire, url) = Wire::to(&fixture.url).await;
    let options = fixture.named(options.with_max_connections(1));
    let store = PostgresStore::connect_with(&url, options).await.unwrap();
    (wire, store)
}

/// The messages of an operation, and whatever follows it.
async fn messages(wire: &Wire) -> String {
    tokio::time::sleep(Duration::from_millis(200)).await;
    wire.sent()
}

#[tokio::test]
async fn every_operation_is_one_statement_in_one_round_trip_prepared_once() {
    let fixture = Fixture::new().await;
    let (wire, store) = wired(&fixture, PostgresOptions::new()).await;
    let (key, id) = (key("wire"), id());
    // Bind, Execute, Close of the unnamed portal, Sync; and nothing to take the connection back.
    let expected = "BECS";
    for round in 0..3 {
        let mut seen = Vec::new();
        let _ = wire.sent();
        let _ = store.acquire(&key, &id, ttl(60_000)).await.unwrap();
        seen.push(messages(&wire).await);
        let _ = store
            .acquire(&key, &common::id(), ttl(60_000))
            .await
            .unwrap();
        seen.push(messages(&wire).await);
        let _ = store.extend(&id, ttl(60_000)).await.unwrap();
        seen.push(messages(&wire).await);
        assert!(store.is_locked(&key).await.unwrap());
        seen.push(messages(&wire).await);
        assert!(store.lookup_raw(Lookup::Key(&key)).await.unwrap().is_some());
        seen.push(messages(&wire).await);
        assert!(store.lookup_raw(Lookup::Id(&id)).await.unwrap().is_some());
        seen.push(messages(&wire).await);
        assert!(store.release(&id).await.unwrap().is_released());
        seen.push(messages(&wire).await);
        // Why it failed comes with the same statement.
        assert!(!store.release(&id).await.unwrap().is_released());
        seen.push(messages(&wire).await);
        if round > 0 {
            assert!(seen.iter().all(|sent| sent == expected), "{seen:?}");
        }
    }
}

#[tokio::test]
async fn a_reply_later_than_the_ttl_is_no_lease_and_the_lock_is_given_back() {
    let fixture = Fixture::new().await;
    let (wire, store) = wired(&fixture, PostgresOptions::new()).await;
    let backend = PostgresBackend::new(store);
    assert!(!is_locked(&backend, "late").await.unwrap());
    wire.hold_replies(true);
    let freed = tokio::spawn({
        let wire = wire.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(600)).await;
            wire.hold_replies(false);
        }
    });
    let error = acquire(&backend, "late", Duration::from_millis(200))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(error.outcome_unknown());
    freed.await.unwrap();
    backend.drain(Duration::from_secs(10)).await.unwrap();
    assert_eq!(fixture.number("SELECT count(*) FROM {locks}").await, 0);
}

#[tokio::test]
async fn a_lost_reply_is_an_unknown_outcome_and_settled() {
    let fixture = Fixture::new().await;
    let (wire, store) = wired(&fixture, PostgresOptions::new()).await;
    let backend = PostgresBackend::new(store);
    assert!(!is_locked(&backend, "lost").await.unwrap());

    wire.lose_replies(true);
    let error = acquire(&backend, "lost", MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(error.outcome_unknown());
    wire.lose_replies(false);
    let started = Instant::now();
    while is_locked(&fixture.backend, "lost").await.unwrap() {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "it waits for its TTL"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    backend.drain(Duration::from_secs(10)).await.unwrap();

    let lease = acquire(&backend, "lost", MINUTE)
        .await
        .unwrap()
        .unwrap()
        .detach();
    wire.lose_replies(true);
    let error = release(&backend, lease.lock_id()).await.unwrap_err();
    assert!(error.outcome_unknown());
    wire.lose_replies(false);
    let _ = release(&backend, lease.lock_id()).await.unwrap();
    assert!(!is_locked(&backend, "lost").await.unwrap());
}

#[tokio::test]
async fn a_release_dropped_while_its_answer_is_under_way_frees_the_key() {
    let fixture = Fixture::new().await;
    let (wire, store) = wired(&fixture, PostgresOptions::new()).await;
    let backend = PostgresBackend::new(store);
    let guard = acquire(&backend, "dropped", MINUTE).await.unwrap().unwrap();
    wire.hold_replies(true);
    let release = tokio::time::timeout(Duration::from_millis(100), guard.release());
    assert!(release.await.is_err(), "the answer is held up");
    wire.hold_replies(false);
    backend.drain(Duration::from_secs(10)).await.unwrap();
    assert!(!is_locked(&backend, "dropped").await.unwrap());
}

#[tokio::test]
async fn a_sections_outcome_survives_its_release() {
    let fixture = Fixture::new().await;
    let (wire, store) = wired(&fixture, PostgresOptions::new()).await;
    let backend = &PostgresBackend::new(store);
    let receipt = lock(backend, "fails", LockOptions::new(), async |_| {
        wire.lose_replies(true);
        Err::<(), _>("the section failed")
    })
    .await
    .unwrap();
    wire.lose_replies(false);
    let error = receipt.release_error().unwrap();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(error.outcome_unknown());
    assert_eq!(receipt.into_value(), Err("the section failed"));
    backend.drain(Duration::from_secs(10)).await.unwrap();
    assert!(!is_locked(backend, "fails").await.unwrap());

    let receipt = lock(backend, "overruns", LockOptions::new(), async |_| {
        fixture.age("overruns", Duration::from_secs(5)).await;
        "done"
    })
    .await
    .unwrap();
    assert!(receipt.overran());
    assert_eq!(receipt.into_value(), "done");
}
