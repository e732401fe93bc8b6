//! Round trips, and outcomes that the answer does not reveal.

use std::time::Duration;

use syncguard_core::backend::{LockBackend as _, Lookup};
use syncguard_core::{ErrorCode, Locks};
use tonic::Code;

use crate::common::proxy::{Fault, Proxy};
use crate::common::requests::{acquire, extend, is_locked, lookup, release};
use crate::common::{Database, id, key, released, take, ttl};

const GET: &str = "BatchGetDocuments";
const UNDECIDED: [Code; 6] = [
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::Internal,
    Code::Unknown,
    Code::Cancelled,
    Code::DataLoss,
];

#[tokio::test]
async fn a_change_takes_two_round_trips_and_a_read_one() {
    let direct = Database::new();
    let (proxy, database) = Proxy::before(&direct).await;
    let backend = database.backend().await;
    assert_eq!(proxy.requests(), "", "connecting sends no request");

    let grant = take(&backend, "k").await;
    assert_eq!(proxy.requests(), "BatchGetDocuments 1, Commit 1");
    assert_eq!(proxy.authorization().as_deref(), Some("Bearer owner"));
    let refused = backend
        .acquire(acquire(&key("k"), &id(), ttl(1_000)))
        .await
        .unwrap();
    assert!(refused.is_locked());
    assert_eq!(proxy.requests(), "BatchGetDocuments 1");
    assert!(backend.is_locked(is_locked(&key("k"))).await.unwrap());
    assert_eq!(proxy.requests(), "BatchGetDocuments 1");
    assert!(
        backend
            .lookup_raw(lookup(Lookup::Key(&key("k"))))
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(proxy.requests(), "BatchGetDocuments 1");
    assert!(
        backend
            .lookup_raw(lookup(Lookup::Id(&grant.lock_id)))
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(proxy.requests(), "RunQuery 1");
    let extended = backend
        .extend(extend(&grant.lock_id, ttl(9_000)))
        .await
        .unwrap();
    assert!(extended.expires_at_ms().is_some());
    assert_eq!(proxy.requests(), "Commit 1, RunQuery 1");
    let replayed = backend
        .acquire(acquire(&key("k"), &grant.lock_id, ttl(1_000)))
        .await
        .unwrap();
    assert_eq!(replayed.granted().unwrap().fence, grant.fence);
    assert_eq!(proxy.requests(), "BatchGetDocuments 1");
    assert!(released(&backend, &grant.lock_id).await);
    assert_eq!(proxy.requests(), "Commit 1, RunQuery 1");
    assert!(!released(&backend, &grant.lock_id).await);
    assert_eq!(proxy.requests(), "RunQuery 1");
}

#[tokio::test]
async fn a_commit_applied_but_reported_failed_is_settled_by_the_next_read() {
    for code in
        UNDECIDED
            .into_iter()
            .chain([Code::FailedPrecondition, Code::AlreadyExists, Code::Aborted])
    {
        let direct = Database::new();
        let (proxy, database) = Proxy::before(&direct).await;
        let backend = database.backend().await;
        proxy.fail_next("Commit", Fault::AppliedThen(code));
        let grant = take(&backend, "k").await;
        assert_eq!(
            proxy.requests(),
            "BatchGetDocuments 2, Commit 1",
            "{code:?}"
        );
        let info = direct
            .backend()
            .await
            .lookup_raw(lookup(Lookup::Id(&grant.lock_id)))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (info.fence, info.expires_at_ms),
            (grant.fence, grant.expires_at_ms)
        );
        assert_eq!(grant.fence.get(), 1, "it was committed once");
    }
}

#[tokio::test]
async fn an_outcome_that_no_read_can_settle_is_unknown() {
    for code in UNDECIDED {
        let direct = Database::new();
        let (proxy, database) = Proxy::before(&direct).await;
        let backend = database.backend().await;

        // Applied, and the read fails.
        let this = id();
        proxy.fail_next(GET, Fault::None);
        proxy.fail_next("Commit", Fault::AppliedThen(code));
        proxy.fail_next(GET, Fault::Refused(Code::Unavailable));
        let attempt = backend
            .acquire(acquire(&key("k"), &this, ttl(60_000)))
            .await;
        let error = attempt.unwrap_err();
        assert!(error.outcome_unknown(), "{code:?}");
        assert_ne!(error.code(), ErrorCode::InvalidArgument);
        // A repeated acquire or a release with the same id settles it.
        let again = backend
            .acquire(acquire(&key("k"), &this, ttl(60_000)))
            .await
            .unwrap();
        assert_eq!(again.granted().unwrap().fence.get(), 1);
        assert!(released(&backend, &this).await);

        // The read does not find it, but it may still be on its way.
        proxy.fail_next("Commit", Fault::Refused(code));
        let error = backend
            .acquire(acquire(&key("k"), &id(), ttl(60_000)))
            .await
            .unwrap_err();
        assert!(error.outcome_unknown(), "{code:?}");
        assert!(direct.list("locks").await.is_empty());
    }
}

#[tokio::test]
async fn releases_and_extends_of_unknown_outcome_can_be_repeated() {
    for code in UNDECIDED {
        let (proxy, database) = Proxy::before(&Database::new()).await;
        let backend = database.backend().await;
        let grant = take(&backend, "k").await;
        for fault in [Fault::AppliedThen(code), Fault::Refused(code)] {
            proxy.fail_next("Commit", fault);
            let error = backend
                .extend(extend(&grant.lock_id, ttl(60_000)))
                .await
                .unwrap_err();
            assert!(error.outcome_unknown(), "{code:?}");
            let extended = backend
                .extend(extend(&grant.lock_id, ttl(60_000)))
                .await
                .unwrap();
            assert!(extended.expires_at_ms().is_some());
        }
        proxy.fail_next("Commit", Fault::AppliedThen(code));
        let error = backend.release(release(&grant.lock_id)).await.unwrap_err();
        assert!(error.outcome_unknown(), "{code:?}");
        assert!(!released(&backend, &grant.lock_id).await);
        assert!(!backend.is_locked(is_locked(&key("k"))).await.unwrap());
    }
}

#[tokio::test]
async fn a_refusal_has_a_known_outcome() {
    let refusals = [
        (Code::PermissionDenied, ErrorCode::AuthFailed),
        (Code::Unauthenticated, ErrorCode::AuthFailed),
        (Code::InvalidArgument, ErrorCode::InvalidArgument),
        (Code::ResourceExhausted, ErrorCode::RateLimited),
        (Code::Unimplemented, ErrorCode::ServiceUnavailable),
    ];
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let backend = database.backend().await;
    for (code, expected) in refusals {
        for method in [GET, "Commit"] {
            proxy.fail_next(method, Fault::Refused(code));
            let error = backend
                .acquire(acquire(&key("k"), &id(), ttl(1_000)))
                .await
                .unwrap_err();
            assert_eq!(error.code(), expected, "{code:?}");
            assert!(!error.outcome_unknown());
        }
    }
    let _ = take(&backend, "k").await;
}

#[tokio::test]
async fn conflicts_are_read_again_and_not_for_ever() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let backend = database.backend().await;
    for code in [
        Code::Aborted,
        Code::FailedPrecondition,
        Code::AlreadyExists,
        Code::NotFound,
    ] {
        for _ in 0..5 {
            proxy.fail_next("Commit", Fault::Refused(code));
        }
        let grant = take(&backend, "k").await;
        assert_eq!(proxy.requests(), "BatchGetDocuments 6, Commit 6");
        proxy.fail_next("Commit", Fault::Refused(code));
        assert!(
            backend
                .extend(extend(&grant.lock_id, ttl(9_000)))
                .await
                .unwrap()
                .expires_at_ms()
                .is_some()
        );
        proxy.fail_next("Commit", Fault::Refused(code));
        assert!(released(&backend, &grant.lock_id).await);
        assert_eq!(proxy.requests(), "Commit 4, RunQuery 4");
    }
    for _ in 0..100 {
        proxy.fail_next("Commit", Fault::Refused(Code::Aborted));
    }
    let error = backend
        .acquire(acquire(&key("k"), &id(), ttl(1_000)))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(!error.outcome_unknown() && error.is_retryable());
}

/// No guard is made of a lease that has expired; the background releases the lock.
#[tokio::test]
async fn a_grant_that_arrives_after_its_expiry_is_released() {
    let direct = Database::new();
    let (proxy, database) = Proxy::before(&direct).await;
    let locks = database.locks().await;
    proxy.fail_next("Commit", Fault::AnsweredLate(Duration::from_millis(700)));
    let attempt = locks.try_lock("k").ttl(Duration::from_millis(600)).await;
    let error = attempt.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(error.outcome_unknown());
    locks.drain(Duration::from_secs(20)).await.unwrap();
    assert!(direct.list("locks").await.is_empty());
}

/// It locks nothing in the database between its read and its commit.
#[tokio::test]
async fn a_holder_that_dies_between_read_and_commit_keeps_nobody_out() {
    let direct = Database::new();
    let (proxy, database) = Proxy::before(&direct).await;
    let dying = database.backend().await;
    proxy.fail_next("Commit", Fault::Lost);
    let (key, this) = (key("k"), id());
    let half = dying.acquire(acquire(&key, &this, ttl(60_000)));
    let died = tokio::time::timeout(Duration::from_secs(1), half).await;
    assert!(died.is_err());
    drop(dying);
    let started = std::time::Instant::now();
    let _ = take(&direct.backend().await, "k").await;
    assert!(started.elapsed() < Duration::from_secs(5));
}

/// A future has room for all that is nested in it, and takes that room on the stack when it moves.
#[tokio::test]
async fn futures_are_small_enough_to_be_nested_and_moved() {
    const KILOBYTE: usize = 1_024;
    let backend = Database::new().backend().await;
    let locks = Locks::new(backend.clone());
    let (key, id) = (key("k"), id());
    let by_key = lookup(Lookup::Key(&key));
    for (call, size) in [
        (
            "acquire",
            size_of_val(&backend.acquire(acquire(&key, &id, ttl(1)))),
        ),
        ("release", size_of_val(&backend.release(release(&id)))),
        ("extend", size_of_val(&backend.extend(extend(&id, ttl(1))))),
        (
            "is_locked",
            size_of_val(&backend.is_locked(is_locked(&key))),
        ),
        ("lookup_raw", size_of_val(&backend.lookup_raw(by_key))),
        ("attempt", size_of_val(&locks.try_lock("k").attempt())),
        ("run", size_of_val(&locks.lock("k").run(async |_| ()))),
    ] {
        assert!(size <= 8 * KILOBYTE, "{call}: {size}");
    }
}
