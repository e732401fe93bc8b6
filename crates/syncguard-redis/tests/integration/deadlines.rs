//! Requests whose deadline is earlier than the timeout of the backend's commands.

use std::time::Duration;

use syncguard_core::backend::{
    AcquireRequest, ExtendRequest, IsLockedRequest, LockBackend, Lookup, LookupRequest,
    PreflightRequest, PurgeRequest, ReleaseRequest,
};
use syncguard_core::{ErrorCode, LockId};
use syncguard_redis::{DEFAULT_TIMEOUT, RedisBackend, RedisOptions};
use tokio::time::Instant;

use crate::common::{BareCalls as _, eventually, far_away, fresh_backend, key, secs};

#[tokio::test]
async fn nothing_is_sent_after_the_deadline() {
    let (_server, backend, raw) = fresh_backend().await;
    let (k, id) = (key("k"), LockId::generate().unwrap());
    let calls = async || raw.commands_run("evalsha").await + raw.commands_run("eval").await;
    let before = calls().await;
    let now = Instant::now();
    let errors = [
        backend
            .acquire(AcquireRequest::new(&k, &id, secs(60), now))
            .await
            .unwrap_err(),
        backend
            .release(ReleaseRequest::new(&id, now))
            .await
            .unwrap_err(),
        backend
            .extend(ExtendRequest::new(&id, secs(60), now))
            .await
            .unwrap_err(),
        backend
            .lookup_raw(LookupRequest::new(Lookup::Key(&k), now))
            .await
            .unwrap_err(),
        backend
            .is_locked(IsLockedRequest::new(&k, now))
            .await
            .unwrap_err(),
        backend
            .preflight(PreflightRequest::new(now))
            .await
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
        assert!(error.message().contains("deadline"), "{error:?}");
        assert!(!error.outcome_unknown(), "{error:?}");
    }
    assert_eq!(calls().await, before);
    assert_eq!(raw.keys().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_command_ends_by_the_deadline_or_the_timeout_whichever_is_earlier() {
    let (server, patient, _raw) = fresh_backend().await;
    let short = Duration::from_millis(300);
    let options = RedisOptions::new().timeout(short);
    let impatient = RedisBackend::connect_with(&server.url(), options).await;
    server.pause().unwrap();
    for (backend, deadline) in [
        (patient, Instant::now() + short),
        (impatient.unwrap(), far_away()),
    ] {
        let (k, id) = (key("k"), LockId::generate().unwrap());
        let begun = Instant::now();
        let acquire = backend.acquire(AcquireRequest::new(&k, &id, secs(60), deadline));
        let read = backend.is_locked(IsLockedRequest::new(&k, deadline));
        let (acquired, read) = tokio::join!(acquire, read);
        let (acquired, read) = (acquired.unwrap_err(), read.unwrap_err());
        assert!(begun.elapsed() < DEFAULT_TIMEOUT - Duration::from_secs(1));
        assert_eq!(acquired.code(), ErrorCode::NetworkTimeout, "{acquired:?}");
        assert!(acquired.outcome_unknown(), "it may have been sent");
        assert_eq!(read.code(), ErrorCode::NetworkTimeout, "{read:?}");
        assert!(!read.outcome_unknown(), "a read changes nothing");
    }
}

#[tokio::test]
async fn the_preflight_and_a_purge_end_by_their_deadline_against_a_server_that_hangs() {
    let (server, backend, _raw) = fresh_backend().await;
    server.pause().unwrap();
    let begun = Instant::now();
    let deadline = begun + Duration::from_millis(500);
    let checked = backend.preflight(PreflightRequest::new(deadline)).await;
    assert_eq!(checked.unwrap_err().code(), ErrorCode::NetworkTimeout);
    let purged = backend.purge_expired(PurgeRequest::new(10, deadline)).await;
    assert_eq!(purged.unwrap(), 0, "Redis removes expired locks itself");
    assert!(begun.elapsed() < DEFAULT_TIMEOUT - Duration::from_secs(1));
}

#[tokio::test]
async fn what_waits_for_a_lost_connection_is_not_sent_after_the_deadline() {
    let (mut server, backend, _raw) = fresh_backend().await;
    assert!(!backend.is_key_locked("k").await.unwrap());
    server.kill();
    // Until the driver has seen that the connection is lost, it queues commands.
    for number in 0..20 {
        let (k, id) = (key(&format!("k{number}")), LockId::generate().unwrap());
        let deadline = Instant::now() + Duration::from_millis(20);
        let acquire = backend.acquire(AcquireRequest::new(&k, &id, secs(60), deadline));
        let error = acquire.await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        assert!(Instant::now() < deadline + Duration::from_secs(2));
    }
    server.restart().unwrap();
    eventually("it works again", async || {
        backend.is_key_locked("k").await.is_ok()
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    for number in 0..20 {
        let text = format!("k{number}");
        assert!(!backend.is_key_locked(&text).await.unwrap(), "{text}");
    }
}
