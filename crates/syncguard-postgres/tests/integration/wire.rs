//! What goes over the wire, and what happens to an operation whose reply is lost or late.

use std::time::{Duration, Instant};

use syncguard_core::backend::{self, AcquireRequest, Lookup};
use syncguard_core::{ErrorCode, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};

use crate::common::proxy::Wire;
use crate::common::{BareCalls as _, Fixture, id, key, ttl};

const MINUTE: Duration = Duration::from_secs(60);

/// A backend behind a proxy, with one connection.
async fn wired(fixture: &Fixture, options: PostgresOptions) -> (Wire, PostgresBackend) {
    let (wire, url) = Wire::to(&fixture.url);
    let options = fixture.named(options.max_connections(1));
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    (wire, backend)
}

/// The messages of an operation, and whatever follows it.
async fn messages(wire: &Wire) -> String {
    tokio::time::sleep(Duration::from_millis(200)).await;
    wire.sent()
}

#[tokio::test]
async fn every_operation_is_one_statement_in_one_round_trip_prepared_once() {
    let fixture = Fixture::new().await;
    let (wire, backend) = wired(&fixture, PostgresOptions::new()).await;
    let (key, id) = (key("wire"), id());
    // Bind, Execute, Close of the unnamed portal, Sync; and nothing when the connection is returned.
    let expected = "BECS";
    for round in 0..3 {
        let mut seen = Vec::new();
        let _ = wire.sent();
        let _ = backend.acquire(&key, &id, ttl(60_000)).await.unwrap();
        seen.push(messages(&wire).await);
        let _ = backend
            .acquire(&key, &crate::common::id(), ttl(60_000))
            .await
            .unwrap();
        seen.push(messages(&wire).await);
        let _ = backend.extend(&id, ttl(60_000)).await.unwrap();
        seen.push(messages(&wire).await);
        assert!(backend.is_locked(&key).await.unwrap());
        seen.push(messages(&wire).await);
        assert!(
            backend
                .lookup_raw(Lookup::Key(&key))
                .await
                .unwrap()
                .is_some()
        );
        seen.push(messages(&wire).await);
        assert!(backend.lookup_raw(Lookup::Id(&id)).await.unwrap().is_some());
        seen.push(messages(&wire).await);
        assert!(backend.release(&id).await.unwrap().is_released());
        seen.push(messages(&wire).await);
        // The same statement replies why it failed.
        assert!(!backend.release(&id).await.unwrap().is_released());
        seen.push(messages(&wire).await);
        if round > 0 {
            assert!(seen.iter().all(|sent| sent == expected), "{seen:?}");
        }
    }
}

#[tokio::test]
async fn past_its_deadline_an_operation_sends_nothing() {
    let fixture = Fixture::new().await;
    let (wire, backend) = wired(&fixture, PostgresOptions::new()).await;
    let (key, id) = (key("overdue"), id());
    assert!(!backend.is_locked(&key).await.unwrap());
    let _ = messages(&wire).await;
    let request = AcquireRequest::new(&key, &id, ttl(60_000), tokio::time::Instant::now());
    let error = backend::LockBackend::acquire(&backend, request)
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
    assert!(!error.outcome_unknown());
    assert_eq!(messages(&wire).await, "");
    assert!(
        !backend.is_locked(&key).await.unwrap(),
        "the connection is usable"
    );
}

#[tokio::test]
async fn a_reply_later_than_the_ttl_is_no_lease_and_the_lock_is_released() {
    let fixture = Fixture::new().await;
    let (wire, backend) = wired(&fixture, PostgresOptions::new()).await;
    let locks = Locks::new(backend);
    assert!(!locks.is_locked("late").await.unwrap());
    wire.hold_replies(true);
    let freed = tokio::spawn({
        let wire = wire.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(600)).await;
            wire.hold_replies(false);
        }
    });
    let error = locks
        .try_lock("late")
        .ttl(Duration::from_millis(200))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(error.outcome_unknown());
    freed.await.unwrap();
    locks.drain(Duration::from_secs(10)).await.unwrap();
    assert_eq!(fixture.number("SELECT count(*) FROM {locks}").await, 0);
}

#[tokio::test]
async fn a_lost_reply_is_an_unknown_outcome_and_settled() {
    let fixture = Fixture::new().await;
    let (wire, backend) = wired(&fixture, PostgresOptions::new()).await;
    let locks = Locks::new(backend);
    assert!(!locks.is_locked("lost").await.unwrap());

    wire.lose_replies(true);
    let error = locks.try_lock("lost").ttl(MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(error.outcome_unknown());
    wire.lose_replies(false);
    let started = Instant::now();
    while fixture.locks.is_locked("lost").await.unwrap() {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "it waits for its TTL"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    locks.drain(Duration::from_secs(10)).await.unwrap();

    let lease = locks
        .try_lock("lost")
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap()
        .detach();
    wire.lose_replies(true);
    let error = locks.release(lease.lock_id()).await.unwrap_err();
    assert!(error.outcome_unknown());
    wire.lose_replies(false);
    let _ = locks.release(lease.lock_id()).await.unwrap();
    assert!(!locks.is_locked("lost").await.unwrap());
}

#[tokio::test]
async fn a_release_dropped_before_its_reply_arrives_frees_the_key() {
    let fixture = Fixture::new().await;
    let (wire, backend) = wired(&fixture, PostgresOptions::new()).await;
    let locks = Locks::new(backend);
    let guard = locks
        .try_lock("dropped")
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap();
    wire.hold_replies(true);
    let release = tokio::time::timeout(Duration::from_millis(100), guard.release());
    assert!(release.await.is_err(), "the reply is held up");
    wire.hold_replies(false);
    locks.drain(Duration::from_secs(10)).await.unwrap();
    assert!(!locks.is_locked("dropped").await.unwrap());
}

#[tokio::test]
async fn a_sections_outcome_survives_its_release() {
    let fixture = Fixture::new().await;
    let (wire, backend) = wired(&fixture, PostgresOptions::new()).await;
    let locks = &Locks::new(backend);
    let receipt = locks
        .lock("fails")
        .run(async |_| {
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
    locks.drain(Duration::from_secs(10)).await.unwrap();
    assert!(!locks.is_locked("fails").await.unwrap());

    let receipt = locks
        .lock("overruns")
        .run(async |_| {
            fixture.age("overruns", Duration::from_secs(5)).await;
            "done"
        })
        .await
        .unwrap();
    assert!(receipt.overran());
    assert_eq!(receipt.into_value(), "done");
}
