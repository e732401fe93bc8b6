//! The deadline of a request: the backend stops there, and its error says what is known.

use std::time::Duration;

use syncguard_core::backend::{
    AcquireRequest, ExtendRequest, IsLockedRequest, LockBackend as _, Lookup, LookupRequest,
    PreflightRequest, PurgeRequest, ReleaseRequest,
};
use syncguard_core::{ErrorCode, LockError};
use syncguard_firestore::FirestoreOptions;
use tokio::time::Instant;
use tonic::Code;

use crate::common::proxy::{Fault, Proxy};
use crate::common::{Database, id, key, take, ttl};

const GET: &str = "BatchGetDocuments";
const HOUR: Duration = Duration::from_secs(3_600);
/// Long enough on any machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for an answer on a busy machine.
const WITHIN: Duration = Duration::from_secs(2);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(3);

fn is_timeout(error: &LockError) -> bool {
    error.code() == ErrorCode::NetworkTimeout
}

#[tokio::test]
async fn past_its_deadline_nothing_is_sent() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let backend = database.backend().await;
    let grant = take(&backend, "held").await;
    let _ = proxy.requests();
    let (key, id, ttl) = (key("k"), id(), ttl(30_000));
    let now = Instant::now();
    let by = Lookup::Id(&grant.lock_id);
    let errors = [
        (
            "acquire",
            backend
                .acquire(AcquireRequest::new(&key, &id, ttl, now))
                .await
                .err(),
        ),
        (
            "release",
            backend
                .release(ReleaseRequest::new(&grant.lock_id, now))
                .await
                .err(),
        ),
        (
            "extend",
            backend
                .extend(ExtendRequest::new(&grant.lock_id, ttl, now))
                .await
                .err(),
        ),
        (
            "lookup_raw",
            backend.lookup_raw(LookupRequest::new(by, now)).await.err(),
        ),
        (
            "is_locked",
            backend
                .is_locked(IsLockedRequest::new(&key, now))
                .await
                .err(),
        ),
        (
            "preflight",
            backend.preflight(PreflightRequest::new(now)).await.err(),
        ),
        (
            "purge_expired",
            backend
                .purge_expired(PurgeRequest::new(10, now))
                .await
                .err(),
        ),
    ];
    for (call, error) in errors {
        let error = error.expect(call);
        assert!(
            is_timeout(&error) && !error.outcome_unknown(),
            "{call}: {error:?}"
        );
    }
    assert_eq!(proxy.requests(), "");
}

#[tokio::test]
async fn a_read_without_an_answer_ends_at_the_deadline_with_a_known_outcome() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let backend = database.backend().await;
    let (key, id) = (key("k"), id());
    proxy.fail_next(GET, Fault::Lost);
    proxy.fail_next("RunQuery", Fault::Lost);
    let started = Instant::now();
    let deadline = started + WITHIN;
    let acquire = backend.acquire(AcquireRequest::new(&key, &id, ttl(30_000), deadline));
    let release = backend.release(ReleaseRequest::new(&id, deadline));
    let (acquired, released) = tokio::join!(acquire, release);
    for error in [acquired.unwrap_err(), released.unwrap_err()] {
        assert!(is_timeout(&error) && !error.outcome_unknown(), "{error:?}");
    }
    assert!((WITHIN..WITHIN + SLACK).contains(&started.elapsed()));
    assert_eq!(proxy.requests(), "BatchGetDocuments 1, RunQuery 1");
}

#[tokio::test]
async fn a_commit_without_an_answer_ends_at_the_deadline_with_an_unknown_outcome() {
    let direct = Database::new();
    let (proxy, database) = Proxy::before(&direct).await;
    let backend = database.backend().await;
    let (key, id) = (key("k"), id());

    proxy.fail_next("Commit", Fault::AnsweredLate(HOUR));
    let started = Instant::now();
    let request = AcquireRequest::new(&key, &id, ttl(30_000), started + WITHIN);
    let error = backend.acquire(request).await.unwrap_err();
    assert!(is_timeout(&error) && error.outcome_unknown(), "{error:?}");
    assert!((WITHIN..WITHIN + SLACK).contains(&started.elapsed()));
    // It would read again to settle that, but the caller is gone.
    assert_eq!(proxy.requests(), "BatchGetDocuments 1, Commit 1");
    assert_eq!(direct.list("locks").await.len(), 1);

    for _ in 0..2 {
        proxy.fail_next("Commit", Fault::AnsweredLate(HOUR));
    }
    let deadline = Instant::now() + WITHIN;
    let extend = ExtendRequest::new(&id, ttl(30_000), deadline);
    let error = backend.extend(extend).await.unwrap_err();
    assert!(is_timeout(&error) && error.outcome_unknown(), "{error:?}");
    let deadline = Instant::now() + WITHIN;
    let release = ReleaseRequest::new(&id, deadline);
    let error = backend.release(release).await.unwrap_err();
    assert!(is_timeout(&error) && error.outcome_unknown(), "{error:?}");
    assert_eq!(proxy.requests(), "Commit 2, RunQuery 2");
}

#[tokio::test]
async fn after_a_refused_commit_the_deadline_leaves_a_known_outcome() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let backend = database.backend().await;
    let grant = take(&backend, "held").await;
    let _ = proxy.requests();
    let (key, id) = (key("k"), id());
    for _ in 0..3 {
        proxy.fail_next("Commit", Fault::Refused(Code::Aborted));
    }
    // Each operation reads, is refused, and reads again in vain.
    for fault in [Fault::None, Fault::Lost] {
        proxy.fail_next(GET, fault);
    }
    let deadline = Instant::now() + WITHIN;
    let acquire = AcquireRequest::new(&key, &id, ttl(30_000), deadline);
    let acquired = backend.acquire(acquire).await.unwrap_err();
    for fault in [Fault::None, Fault::Lost] {
        proxy.fail_next("RunQuery", fault);
    }
    let deadline = Instant::now() + WITHIN;
    let extend = ExtendRequest::new(&grant.lock_id, ttl(30_000), deadline);
    let extended = backend.extend(extend).await.unwrap_err();
    for fault in [Fault::None, Fault::Lost] {
        proxy.fail_next("RunQuery", fault);
    }
    let deadline = Instant::now() + WITHIN;
    let release = ReleaseRequest::new(&grant.lock_id, deadline);
    let released = backend.release(release).await.unwrap_err();
    for error in [acquired, extended, released] {
        assert!(is_timeout(&error) && !error.outcome_unknown(), "{error:?}");
    }
    assert_eq!(
        proxy.requests(),
        "BatchGetDocuments 2, Commit 3, RunQuery 4"
    );
}

#[tokio::test]
async fn conflicts_are_read_again_no_longer_than_until_the_deadline() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let backend = database.backend().await;
    for _ in 0..100 {
        proxy.fail_next("Commit", Fault::Refused(Code::Aborted));
    }
    let (key, id) = (key("k"), id());
    let within = Duration::from_millis(60);
    let acquire = AcquireRequest::new(&key, &id, ttl(30_000), Instant::now() + within);
    let error = backend.acquire(acquire).await.unwrap_err();
    let expected = [ErrorCode::ServiceUnavailable, ErrorCode::NetworkTimeout];
    assert!(expected.contains(&error.code()), "{error:?}");
    // What was sent before the deadline may arrive later on a busy machine.
    let started = Instant::now();
    let _ = proxy.requests();
    loop {
        tokio::time::sleep(4 * within).await;
        if proxy.requests().is_empty() {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "it goes on");
    }
}

#[tokio::test]
async fn a_request_timeout_below_the_deadline_ends_each_request() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let options = FirestoreOptions::new().request_timeout(WITHIN);
    let backend = database.backend_with(options).await;
    let (key, id) = (key("k"), id());
    let request = || AcquireRequest::new(&key, &id, ttl(30_000), Instant::now() + HOUR);

    proxy.fail_next(GET, Fault::Lost);
    let error = backend.acquire(request()).await.unwrap_err();
    assert!(is_timeout(&error) && !error.outcome_unknown(), "{error:?}");
    assert_eq!(proxy.requests(), "BatchGetDocuments 1");

    // Time is left to read what became of the commit.
    proxy.fail_next("Commit", Fault::AnsweredLate(HOUR));
    let grant = backend.acquire(request()).await.unwrap().granted();
    assert_eq!(grant.unwrap().lock_id, id);
    assert_eq!(proxy.requests(), "BatchGetDocuments 2, Commit 1");
}
