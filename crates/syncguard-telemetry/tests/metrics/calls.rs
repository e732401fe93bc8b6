//! Calls: how many, how long, and in which units.

use std::time::Duration;

use syncguard_core::{
    ErrorCode, LockOptions, ManagedBackend as _, Operation, acquire, is_locked, lock, release,
};

use crate::KEY;
use crate::common::{Fault, FaultyStore, PATIENCE, TTL};
use crate::sdk::{Points, Sdk};

#[tokio::test]
async fn operations_are_counted_and_timed_by_result() {
    let (sdk, store) = (Sdk::new(), FaultyStore::default());
    let backend = sdk.decorate(store.managed());
    let guard = acquire(&backend, KEY, TTL).await.unwrap().unwrap();
    for _ in 0..3 {
        assert!(acquire(&backend, KEY, TTL).await.unwrap().is_none());
    }
    store.plan(
        Operation::IsLocked,
        [Fault::Refuse(ErrorCode::RateLimited), Fault::Hang],
    );
    is_locked(&backend, KEY).await.unwrap_err();
    let hanging = is_locked(&backend, KEY);
    drop(tokio::time::timeout(Duration::from_millis(5), hanging).await);
    let id = *guard.lock_id();
    let _ = guard.release().await.unwrap();
    let _ = release(&backend, &id).await.unwrap();

    let expected = [
        ("operation.name=acquire operation.result=ok", 1.0),
        (
            "operation.name=acquire operation.reason=locked operation.result=fail",
            3.0,
        ),
        (
            "error.type=RateLimited operation.name=isLocked operation.result=fail",
            1.0,
        ),
        (
            "error.type=abandoned operation.name=isLocked operation.result=fail",
            1.0,
        ),
        ("operation.name=release operation.result=ok", 1.0),
        (
            "operation.name=release operation.reason=not-found operation.result=fail",
            1.0,
        ),
    ];
    let expected: Points = expected
        .into_iter()
        .map(|(attributes, count)| (attributes.to_owned(), count))
        .collect();
    assert_eq!(sdk.points("syncguard.operations"), expected);
    assert_eq!(sdk.points("syncguard.operation.duration"), expected);
}

#[tokio::test]
async fn units_are_those_of_the_conventions() {
    let sdk = Sdk::new();
    let store = FaultyStore::with_skew(Some(1));
    let backend = sdk.decorate(store.managed());
    store.plan(Operation::Acquire, [Fault::LoseReply]);
    acquire(&backend, KEY, TTL).await.unwrap_err();
    backend.drain(PATIENCE).await.unwrap();
    let _ = lock(&backend, KEY, LockOptions::new(), async |_| ())
        .await
        .unwrap();
    let guard = acquire(&backend, KEY, TTL).await.unwrap().unwrap();
    let _ = release(backend.get_ref(), guard.lock_id()).await.unwrap();
    let _ = guard.release().await.unwrap();

    for (name, unit) in [
        ("syncguard.operations", "{operation}"),
        ("syncguard.operation.duration", "s"),
        ("syncguard.lock.held", "{lock}"),
        ("syncguard.lock.hold_time", "s"),
        ("syncguard.lock.lost", "{lock}"),
        ("syncguard.lock.waiting", "{caller}"),
        ("syncguard.lock.wait_time", "s"),
        ("syncguard.lock.reclaims", "{call}"),
        ("syncguard.clock.skew", "s"),
    ] {
        let shown = sdk.read(name, |metric| metric.unit().to_owned());
        assert_eq!(shown.as_deref(), Some(unit), "{name}");
    }
}

#[tokio::test]
async fn clock_skew_is_shown_where_it_is_measured() {
    for (skew_ms, shown) in [
        (Some(250), Some(0.25)),
        (Some(-1_500), Some(-1.5)),
        (None, None),
    ] {
        let sdk = Sdk::new();
        let store = FaultyStore::with_skew(skew_ms);
        let backend = sdk.decorate(store.managed());
        is_locked(&backend, KEY).await.unwrap();
        let expected: Points = shown
            .map(|skew| (String::new(), skew))
            .into_iter()
            .collect();
        assert_eq!(sdk.points("syncguard.clock.skew"), expected);
    }
}
