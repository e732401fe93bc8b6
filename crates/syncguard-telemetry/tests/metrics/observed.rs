//! What no call shows: waits and reclaims.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use opentelemetry_sdk::metrics::data::{AggregatedMetrics, HistogramDataPoint, MetricData};
use syncguard_core::{
    ErrorCode, LockOptions, ManagedBackend as _, Observer, Operation, WaitEnd, WaitSummary,
    acquire, lock,
};
use syncguard_memory::MemoryBackend;

use crate::KEY;
use crate::common::{Fault, FaultyStore, PATIENCE, TTL};
use crate::sdk::{Points, Sdk};

#[tokio::test]
async fn callers_that_wait_are_counted_and_their_waits_timed() {
    let (sdk, shared) = (Sdk::new(), MemoryBackend::default());
    let backend = sdk.decorate(shared.clone());
    let holder = acquire(&backend, KEY, TTL).await.unwrap().unwrap();
    let hold = Duration::from_millis(30);
    let options = LockOptions::new().with_retry_delay(Duration::from_millis(2));
    let granted = lock(&backend, KEY, options.clone(), async |_| sdk.waiting());
    let watch = async {
        tokio::time::sleep(hold).await;
        let waiting = sdk.waiting();
        let _ = holder.release().await.unwrap();
        waiting
    };
    let (granted, waiting) = tokio::join!(granted, watch);
    assert_eq!(waiting, 1.0);
    assert_eq!(
        granted.unwrap().into_value(),
        0.0,
        "no longer, once it holds"
    );
    let longest = sdk.read("syncguard.lock.wait_time", |metric| match metric.data() {
        AggregatedMetrics::F64(MetricData::Histogram(histogram)) => histogram
            .data_points()
            .next()
            .and_then(HistogramDataPoint::max),
        other => panic!("{other:?}"),
    });
    assert!(longest.flatten().unwrap() >= hold.as_secs_f64());

    let _holder = acquire(&backend, KEY, TTL).await.unwrap().unwrap();
    let hopeless = lock(
        &backend,
        KEY,
        options.clone().with_max_retries(0),
        async |_| (),
    );
    hopeless.await.unwrap_err();
    let dropped = lock(&backend, KEY, options, async |_| ());
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
async fn reclaimed_locks_are_counted_by_what_was_found() {
    let (sdk, store) = (Sdk::new(), FaultyStore::default());
    let backend = sdk.decorate(store.managed());
    store.plan(Operation::Acquire, [Fault::LoseReply]);
    acquire(&backend, KEY, TTL).await.unwrap_err();
    let refused = Fault::Refuse(ErrorCode::AuthFailed);
    store.plan(Operation::Release, [Fault::Pass, refused, refused]);
    backend.drain(PATIENCE).await.unwrap();
    let guard = acquire(&backend, KEY, TTL).await.unwrap().unwrap();
    guard.release().await.unwrap_err();
    backend.drain(PATIENCE).await.unwrap();

    let expected = [
        "operation.name=acquire reclaim.result=released",
        "operation.name=release reclaim.result=given-up",
    ];
    let expected: Points = expected.map(|found| (found.to_owned(), 1.0)).into();
    assert_eq!(sdk.points("syncguard.lock.reclaims"), expected);
}

#[tokio::test]
async fn what_is_done_through_the_unwrapped_backend_is_told_to_nobody() {
    let (sdk, store) = (Sdk::new(), FaultyStore::default());
    let backend = sdk.decorate(store.managed());
    let also_seen = Arc::new(Waits::default());
    let backend = backend.observed_by(also_seen.clone());
    for unwrapped in [backend.get_ref().clone(), backend.clone().into_inner()] {
        store.plan(Operation::Acquire, [Fault::LoseReply]);
        acquire(&unwrapped, KEY, TTL).await.unwrap_err();
        unwrapped.drain(PATIENCE).await.unwrap();
        let _ = lock(&unwrapped, KEY, LockOptions::new(), async |_| ())
            .await
            .unwrap();
    }
    for name in ["syncguard.lock.reclaims", "syncguard.lock.wait_time"] {
        assert_eq!(sdk.points(name), Points::new(), "{name}");
    }
    // It stays a backend that observers were added to.
    assert_eq!(also_seen.0.load(Ordering::Relaxed), 2);

    let _ = lock(&backend, KEY, LockOptions::new(), async |_| ())
        .await
        .unwrap();
    let told: Points = [("operation.result=ok".to_owned(), 1.0)].into();
    assert_eq!(sdk.points("syncguard.lock.wait_time"), told);
    assert_eq!(also_seen.0.load(Ordering::Relaxed), 3);
}

#[derive(Default)]
struct Waits(AtomicU32);

impl Observer for Waits {
    fn wait_ended(&self, _: WaitSummary, _: WaitEnd) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
