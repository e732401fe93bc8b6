//! Hooks that belong to no operation: waits and background releases.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use opentelemetry_sdk::metrics::data::{AggregatedMetrics, HistogramDataPoint, MetricData};
use syncguard_core::observe::{Observer, Operation, WaitEnd};
use syncguard_core::{ErrorCode, LockOptions};

use super::KEY;
use super::sdk::{Points, Sdk};
use crate::common::{Fault, FaultyBackend, PATIENCE};

#[tokio::test]
async fn callers_that_wait_are_counted_and_their_waits_timed() {
    let sdk = Sdk::new();
    let locks = sdk.observed_memory();
    let holder = locks.try_lock(KEY).await.unwrap().unwrap();
    let hold = Duration::from_millis(30);
    let options = LockOptions::new().retry_delay(Duration::from_millis(2));
    let waiting = || locks.lock(KEY).options(&options);
    let granted = waiting().run(async |_| sdk.waiting());
    let watch = async {
        tokio::time::sleep(hold).await;
        let waiting = sdk.waiting();
        let _ = holder.release().await.unwrap();
        waiting
    };
    let (granted, seen) = tokio::join!(granted, watch);
    assert_eq!(seen, 1.0);
    let wakes = [("wake.reason=hand-over".to_owned(), 1.0)];
    assert_eq!(sdk.points("syncguard.lock.wakes"), wakes.into());
    let in_section = granted.unwrap().into_value();
    assert_eq!(in_section, 0.0, "a holder does not wait");
    let longest = sdk.read("syncguard.lock.wait_time", |metric| match metric.data() {
        AggregatedMetrics::F64(MetricData::Histogram(histogram)) => histogram
            .data_points()
            .next()
            .and_then(HistogramDataPoint::max),
        other => panic!("{other:?}"),
    });
    assert!(longest.flatten().unwrap() >= hold.as_secs_f64());

    let _holder = locks.try_lock(KEY).await.unwrap().unwrap();
    waiting().max_retries(0).await.unwrap_err();
    let dropped = waiting().into_future();
    drop(tokio::time::timeout(Duration::from_millis(5), dropped).await);
    let expected = [
        "operation.result=ok",
        "error.type=AcquisitionTimeout operation.result=fail",
        "error.type=abandoned operation.result=fail",
    ];
    let expected: Points = expected.map(|end| (end.to_owned(), 1.0)).into();
    assert_eq!(sdk.points("syncguard.lock.wait_time"), expected);
    assert_eq!(sdk.waiting(), 0.0);
}

#[tokio::test]
async fn background_releases_are_counted_by_result() {
    let (sdk, faulty) = (Sdk::new(), FaultyBackend::default());
    let locks = sdk.observe(faulty.locks());
    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    locks.try_lock(KEY).await.unwrap_err();
    // For good, unlike a password that is being rotated.
    let refused = Fault::Refuse(ErrorCode::InvalidArgument);
    faulty.plan(Operation::Release, [Fault::Pass, refused, refused]);
    locks.drain(PATIENCE).await.unwrap();
    let guard = locks.try_lock(KEY).await.unwrap().unwrap();
    guard.release().await.unwrap_err();
    locks.drain(PATIENCE).await.unwrap();

    let expected = [
        "operation.name=acquire reclaim.result=released",
        "operation.name=release reclaim.result=given-up",
    ];
    let expected: Points = expected.map(|found| (found.to_owned(), 1.0)).into();
    assert_eq!(sdk.points("syncguard.lock.reclaims"), expected);
}

#[tokio::test]
async fn only_the_observed_handle_is_measured_and_other_observers_stay() {
    let (sdk, faulty) = (Sdk::new(), FaultyBackend::default());
    let waits = Arc::new(Waits::default());
    let plain = faulty.builder().observe(waits.clone()).build();
    let locks = sdk.observe(plain.clone());
    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    plain.try_lock(KEY).await.unwrap_err();
    plain.drain(PATIENCE).await.unwrap();
    let _ = plain.lock(KEY).run(async |_| ()).await.unwrap();
    for name in [
        "syncguard.operations",
        "syncguard.lock.reclaims",
        "syncguard.lock.wait_time",
    ] {
        assert_eq!(sdk.points(name), Points::new(), "{name}");
    }
    assert_eq!(waits.0.load(Ordering::Relaxed), 1);

    let _ = locks.lock(KEY).run(async |_| ()).await.unwrap();
    let measured: Points = [("operation.result=ok".to_owned(), 1.0)].into();
    assert_eq!(sdk.points("syncguard.lock.wait_time"), measured);
    assert_eq!(waits.0.load(Ordering::Relaxed), 2);
}

#[derive(Default)]
struct Waits(AtomicU32);

impl Observer for Waits {
    fn wait_ended(&self, _: &WaitEnd<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
