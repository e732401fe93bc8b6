//! Operations: how many, how long, and in which units.

use std::sync::Arc;
use std::time::Duration;

use syncguard_core::observe::Operation;
use syncguard_core::{CancellationToken, ErrorCode, Locks};
use syncguard_telemetry::Telemetry;

use super::KEY;
use super::sdk::{Points, Sdk};
use crate::common::{Fault, FaultyBackend, PATIENCE, Panicking};

/// One measurement for each of these attributes.
fn once<const N: usize>(attributes: [&str; N]) -> Points {
    attributes.map(|text| (text.to_owned(), 1.0)).into()
}

#[tokio::test]
async fn operations_are_counted_and_timed_by_result() {
    let (sdk, faulty) = (Sdk::new(), FaultyBackend::default());
    let locks = sdk.observe(faulty.locks());
    let guard = locks.lock(KEY).await.unwrap();
    for _ in 0..3 {
        assert!(locks.try_lock(KEY).await.unwrap().is_none());
    }
    faulty.plan(
        Operation::IsLocked,
        [Fault::Refuse(ErrorCode::RateLimited), Fault::Hang],
    );
    locks.is_locked(KEY).await.unwrap_err();
    let hanging = locks.is_locked(KEY);
    drop(tokio::time::timeout(Duration::from_millis(5), hanging).await);
    locks.is_locked("").await.unwrap_err();
    let token = CancellationToken::new();
    token.cancel();
    locks.is_locked(KEY).cancel_on(&token).await.unwrap_err();
    let id = *guard.lock_id();
    let _ = guard.release().await.unwrap();
    let _ = locks.release(id).await.unwrap();

    let mut expected = once([
        "operation.name=acquire operation.result=ok",
        "error.type=RateLimited operation.name=isLocked operation.result=fail",
        "error.type=abandoned operation.name=isLocked operation.result=fail",
        "error.type=InvalidArgument operation.name=isLocked operation.result=fail",
        "error.type=Aborted operation.name=isLocked operation.result=fail",
        "operation.name=release operation.result=ok",
        "operation.name=release operation.reason=not-found operation.result=fail",
    ]);
    let contended = "operation.name=acquire operation.reason=locked operation.result=fail";
    expected.insert(contended.to_owned(), 3.0);
    assert_eq!(sdk.points("syncguard.operations"), expected);
    assert_eq!(sdk.points("syncguard.operation.duration"), expected);
}

#[tokio::test]
async fn units_are_those_of_the_conventions() {
    let (sdk, faulty) = (Sdk::new(), FaultyBackend::default());
    let plain = faulty.locks();
    let locks = sdk.observe(plain.clone());
    faulty.report_skew(1);
    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    locks.try_lock(KEY).await.unwrap_err();
    locks.drain(PATIENCE).await.unwrap();
    let guard = locks.lock(KEY).await.unwrap();
    let _ = plain.release(guard.lock_id()).await.unwrap();
    let _ = guard.release().await.unwrap();

    for (name, unit) in [
        ("syncguard.operations", "{operation}"),
        ("syncguard.operation.duration", "s"),
        ("syncguard.lock.held", "{lock}"),
        ("syncguard.lock.hold_time", "s"),
        ("syncguard.lock.lost", "{lock}"),
        ("syncguard.lock.waiting", "{caller}"),
        ("syncguard.lock.wait_time", "s"),
        ("syncguard.lock.line_length", "{caller}"),
        ("syncguard.lock.reclaims", "{call}"),
        ("syncguard.clock.skew", "s"),
    ] {
        let shown = sdk.read(name, |metric| metric.unit().to_owned());
        assert_eq!(shown.as_deref(), Some(unit), "{name}");
    }
}

#[tokio::test]
async fn clock_skew_is_shown_where_a_backend_reports_it() {
    for (skew_ms, shown) in [
        (Some(250), Some(0.25)),
        (Some(-1_500), Some(-1.5)),
        (None, None),
    ] {
        let (sdk, faulty) = (Sdk::new(), FaultyBackend::default());
        let locks = sdk.observe(faulty.locks());
        if let Some(skew_ms) = skew_ms {
            faulty.report_skew(skew_ms);
        }
        locks.is_locked(KEY).await.unwrap();
        let expected: Points = shown
            .map(|skew| (String::new(), skew))
            .into_iter()
            .collect();
        assert_eq!(sdk.points("syncguard.clock.skew"), expected);
    }
}

#[tokio::test]
async fn a_subscriber_that_panics_keeps_no_operation_from_the_metrics() {
    let _listening = tracing::subscriber::set_default(Panicking);
    let (sdk, faulty) = (Sdk::new(), FaultyBackend::default());
    let telemetry = Telemetry::new(sdk.options().tracing(true));
    let locks = faulty.builder().observe(Arc::new(telemetry)).build();
    locks.is_locked(KEY).await.unwrap();
    let expected = once(["operation.name=isLocked operation.result=ok"]);
    assert_eq!(sdk.points("syncguard.operations"), expected);
}

#[tokio::test]
async fn one_telemetry_tells_backends_apart() {
    let (sdk, faulty) = (Sdk::new(), FaultyBackend::default());
    let telemetry = Arc::new(Telemetry::new(sdk.options()));
    let memory = faulty.builder().observe(telemetry.clone()).build();
    let other = Locks::builder(FaultyBackend::named("other"))
        .observe(telemetry)
        .build();
    let _one = memory.lock(KEY).await.unwrap();
    let _another = other.lock(KEY).await.unwrap();
    let acquires = once([
        "operation.name=acquire operation.result=ok",
        "backend.name=other operation.name=acquire operation.result=ok",
    ]);
    assert_eq!(sdk.points("syncguard.operations"), acquires);
    let waits = once([
        "operation.result=ok",
        "backend.name=other operation.result=ok",
    ]);
    assert_eq!(sdk.points("syncguard.lock.wait_time"), waits);
}
