//! Round trips, and answers that do not tell what happened.

mod common;

use std::time::Duration;

use common::proxy::{Fault, Proxy};
use common::{Database, id, key, take, ttl};
use syncguard_core::{
    AcquireResult, ErrorCode, LockBackend as _, LockOptions, Lookup, Managed, ManagedBackend as _,
    Policy, lock, owns,
};
use tonic::Code;

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
async fn two_round_trips_to_change_and_one_to_know() {
    let direct = Database::new();
    let (proxy, database) = Proxy::before(&direct).await;
    let store = database.store().await;
    assert_eq!(proxy.requests(), "", "connecting asks nothing");

    let grant = take(&store, "k").await;
    assert_eq!(proxy.requests(), "BatchGetDocuments 1, Commit 1");
    assert_eq!(proxy.authorization().as_deref(), Some("Bearer owner"));
    let refused = store.acquire(&key("k"), &id(), ttl(1_000)).await.unwrap();
    assert!(refused.is_locked());
    assert_eq!(proxy.requests(), "BatchGetDocuments 1");
    assert!(store.is_locked(&key("k")).await.unwrap());
    assert_eq!(proxy.requests(), "BatchGetDocuments 1");
    assert!(
        store
            .lookup(Lookup::Key(&key("k")))
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(proxy.requests(), "BatchGetDocuments 1");
    assert!(
        store
            .lookup(Lookup::Id(&grant.lock_id))
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(proxy.requests(), "RunQuery 1");
    let extended = store.extend(&grant.lock_id, ttl(9_000)).await.unwrap();
    assert!(extended.expires_at_ms().is_some());
    assert_eq!(proxy.requests(), "Commit 1, RunQuery 1");
    let replayed = store
        .acquire(&key("k"), &grant.lock_id, ttl(1_000))
        .await
        .unwrap();
    assert_eq!(replayed.granted().unwrap().fence, grant.fence);
    assert_eq!(proxy.requests(), "BatchGetDocuments 1");
    assert!(store.release(&grant.lock_id).await.unwrap().is_released());
    assert_eq!(proxy.requests(), "Commit 1, RunQuery 1");
    assert!(!store.release(&grant.lock_id).await.unwrap().is_released());
    assert_eq!(proxy.requests(), "RunQuery 1");
}

#[tokio::test]
async fn a_commit_applied_but_reported_failed_is_settled_by_the_next_look() {
    for code in
        UNDECIDED
            .into_iter()
            .chain([Code::FailedPrecondition, Code::AlreadyExists, Code::Aborted])
    {
        let direct = Database::new();
        let (proxy, database) = Proxy::before(&direct).await;
        let store = database.store().await;
        proxy.fail_next("Commit", Fault::AppliedThen(code));
        let grant = take(&store, "k").await;
        assert_eq!(
            proxy.requests(),
            "BatchGetDocuments 2, Commit 1",
            "{code:?}"
        );
        let info = direct
            .store()
            .await
            .lookup(Lookup::Id(&grant.lock_id))
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
async fn an_outcome_that_no_look_can_settle_is_unknown() {
    for code in UNDECIDED {
        let direct = Database::new();
        let (proxy, database) = Proxy::before(&direct).await;
        let store = database.store().await;

        // Applied, and the look fails.
        let this = id();
        proxy.fail_next(GET, Fault::None);
        proxy.fail_next("Commit", Fault::AppliedThen(code));
        proxy.fail_next(GET, Fault::Refused(Code::Unavailable));
        let attempt = store.acquire(&key("k"), &this, ttl(60_000)).await;
        let error = attempt.unwrap_err();
        assert!(error.outcome_unknown(), "{code:?}");
        assert_ne!(error.code(), ErrorCode::InvalidArgument);
        // The same id asked again, or released, settles it.
        let again = store.acquire(&key("k"), &this, ttl(60_000)).await.unwrap();
        assert_eq!(again.granted().unwrap().fence.get(), 1);
        assert!(store.release(&this).await.unwrap().is_released());

        // Not applied, as far as can be seen: it may still be on its way.
        proxy.fail_next("Commit", Fault::Refused(code));
        let error = store
            .acquire(&key("k"), &id(), ttl(60_000))
            .await
            .unwrap_err();
        assert!(error.outcome_unknown(), "{code:?}");
        assert!(direct.list("locks").await.is_empty());
    }
}

#[tokio::test]
async fn releases_and_extends_of_unknown_outcome_can_be_asked_again() {
    for code in UNDECIDED {
        let (proxy, database) = Proxy::before(&Database::new()).await;
        let store = database.store().await;
        let grant = take(&store, "k").await;
        for fault in [Fault::AppliedThen(code), Fault::Refused(code)] {
            proxy.fail_next("Commit", fault);
            let error = store.extend(&grant.lock_id, ttl(60_000)).await.unwrap_err();
            assert!(error.outcome_unknown(), "{code:?}");
            let extended = store.extend(&grant.lock_id, ttl(60_000)).await.unwrap();
            assert!(extended.expires_at_ms().is_some());
        }
        proxy.fail_next("Commit", Fault::AppliedThen(code));
        let error = store.release(&grant.lock_id).await.unwrap_err();
        assert!(error.outcome_unknown(), "{code:?}");
        assert!(!store.release(&grant.lock_id).await.unwrap().is_released());
        assert!(!store.is_locked(&key("k")).await.unwrap());
    }
}

#[tokio::test]
async fn a_refusal_leaves_nothing_in_doubt() {
    let refusals = [
        (Code::PermissionDenied, ErrorCode::AuthFailed),
        (Code::Unauthenticated, ErrorCode::AuthFailed),
        (Code::InvalidArgument, ErrorCode::InvalidArgument),
        (Code::ResourceExhausted, ErrorCode::RateLimited),
        (Code::Unimplemented, ErrorCode::Internal),
    ];
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let store = database.store().await;
    for (code, expected) in refusals {
        for method in [GET, "Commit"] {
            proxy.fail_next(method, Fault::Refused(code));
            let error = store
                .acquire(&key("k"), &id(), ttl(1_000))
                .await
                .unwrap_err();
            assert_eq!(error.code(), expected, "{code:?}");
            assert!(!error.outcome_unknown());
        }
    }
    let _ = take(&store, "k").await;
}

#[tokio::test]
async fn conflicts_are_read_again_and_not_for_ever() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let store = database.store().await;
    for code in [
        Code::Aborted,
        Code::FailedPrecondition,
        Code::AlreadyExists,
        Code::NotFound,
    ] {
        for _ in 0..5 {
            proxy.fail_next("Commit", Fault::Refused(code));
        }
        let grant = take(&store, "k").await;
        assert_eq!(proxy.requests(), "BatchGetDocuments 6, Commit 6");
        proxy.fail_next("Commit", Fault::Refused(code));
        assert!(
            store
                .extend(&grant.lock_id, ttl(9_000))
                .await
                .unwrap()
                .expires_at_ms()
                .is_some()
        );
        proxy.fail_next("Commit", Fault::Refused(code));
        assert!(store.release(&grant.lock_id).await.unwrap().is_released());
        assert_eq!(proxy.requests(), "Commit 4, RunQuery 4");
    }
    for _ in 0..100 {
        proxy.fail_next("Commit", Fault::Refused(Code::Aborted));
    }
    let error = store
        .acquire(&key("k"), &id(), ttl(1_000))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(!error.outcome_unknown() && error.is_retryable());
}

#[tokio::test]
async fn an_acquire_delivered_twice_is_one_grant() {
    let database = Database::new();
    let (store, other, this) = (database.store().await, database.store().await, id());
    for n in 0..10 {
        let key = key(&format!("k{n}"));
        let (first, second) = tokio::join!(
            store.acquire(&key, &this, ttl(60_000)),
            other.acquire(&key, &this, ttl(60_000))
        );
        let (first, second) = (
            first.unwrap().granted().unwrap(),
            second.unwrap().granted().unwrap(),
        );
        assert_eq!(first, second);
        assert_eq!(first.fence.get(), 1);
        assert!(store.release(&this).await.unwrap().is_released());
    }
}

/// What came of it is given back: there is no lease with nothing left.
#[tokio::test]
async fn a_grant_that_arrives_after_its_end_is_given_back() {
    let direct = Database::new();
    let (proxy, database) = Proxy::before(&direct).await;
    let backend = database.backend().await;
    proxy.fail_next("Commit", Fault::AnsweredLate(Duration::from_millis(700)));
    let error = backend
        .acquire(&key("k"), &id(), ttl(600))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(error.outcome_unknown());
    backend.drain(Duration::from_secs(20)).await.unwrap();
    assert!(direct.list("locks").await.is_empty());
}

#[tokio::test]
async fn an_acquire_whose_reply_is_lost_is_given_back() {
    let direct = Database::new();
    let (proxy, database) = Proxy::before(&direct).await;
    let policy = Policy::new().with_operation_timeout(Duration::from_secs(2));
    let backend = Managed::with_policy(database.store().await, policy);
    proxy.fail_next("Commit", Fault::AnsweredLate(Duration::from_secs(3_600)));
    let error = backend
        .acquire(&key("k"), &id(), ttl(60_000))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(error.outcome_unknown());
    backend.drain(Duration::from_secs(20)).await.unwrap();
    let _ = take(&direct.store().await, "k").await;
}

/// It held nothing in the database between its read and its commit.
#[tokio::test]
async fn a_holder_that_dies_between_read_and_commit_is_in_nobodys_way() {
    let direct = Database::new();
    let (proxy, database) = Proxy::before(&direct).await;
    let dying = database.store().await;
    proxy.fail_next("Commit", Fault::Lost);
    let (key, this) = (key("k"), id());
    let half = dying.acquire(&key, &this, ttl(60_000));
    let died = tokio::time::timeout(Duration::from_secs(1), half).await;
    assert!(died.is_err());
    drop(dying);
    let started = std::time::Instant::now();
    let _ = take(&direct.store().await, "k").await;
    assert!(started.elapsed() < Duration::from_secs(5));
}

/// Twenty at once, again and again: nobody is told of the conflicts beneath.
#[tokio::test]
async fn losers_of_a_contended_key_see_locked() {
    let database = Database::new();
    let mut stores = Vec::new();
    for _ in 0..20 {
        stores.push(database.store().await);
    }
    for round in 0..5 {
        let mut contenders = tokio::task::JoinSet::new();
        for store in stores.clone() {
            contenders.spawn(async move { store.acquire(&key("k"), &id(), ttl(60_000)).await });
        }
        let answers = contenders.join_all().await;
        let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        let granted: Vec<_> = answers
            .iter()
            .filter_map(|answer| answer.granted())
            .collect();
        assert_eq!(granted.len(), 1);
        assert_eq!(
            answers
                .iter()
                .filter(|answer| **answer == AcquireResult::Locked)
                .count(),
            19
        );
        assert_eq!(granted[0].fence.get(), round + 1, "losers use no fence");
        assert!(
            stores[0]
                .release(&granted[0].lock_id)
                .await
                .unwrap()
                .is_released()
        );
    }
}

/// One holder's extends, all at once: each loses one race at most.
#[tokio::test]
async fn extends_at_once_all_succeed() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let store = database.store().await;
    let grant = take(&store, "k").await;
    let _ = proxy.requests();
    let mut extends = tokio::task::JoinSet::new();
    for n in 0..16 {
        let store = store.clone();
        extends.spawn(async move { store.extend(&grant.lock_id, ttl(30_000 + n * 1_000)).await });
    }
    let answers = extends.join_all().await;
    let ends: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.unwrap().expires_at_ms().unwrap())
        .collect();
    let info = store.lookup(Lookup::Key(&key("k"))).await.unwrap().unwrap();
    assert!(ends.contains(&info.expires_at_ms));
    assert_eq!(info.fence, grant.fence);
}

/// What is nested in a future takes its room in it; and a future that is moved takes it on the stack.
#[tokio::test]
async fn futures_are_small_enough_to_be_nested_and_moved() {
    const KILOBYTE: usize = 1_024;
    let backend = Managed::new(Database::new().store().await);
    let (key, id) = (key("k"), id());
    for (call, size) in [
        ("acquire", size_of_val(&backend.acquire(&key, &id, ttl(1)))),
        ("release", size_of_val(&backend.release(&id))),
        ("extend", size_of_val(&backend.extend(&id, ttl(1)))),
        ("is_locked", size_of_val(&backend.is_locked(&key))),
        ("lookup", size_of_val(&backend.lookup(Lookup::Key(&key)))),
        ("owns", size_of_val(&owns(&backend, &id))),
        (
            "lock",
            size_of_val(&lock(&backend, "k", LockOptions::new(), async |_| ())),
        ),
    ] {
        assert!(size <= 8 * KILOBYTE, "{call}: {size}");
    }
}
