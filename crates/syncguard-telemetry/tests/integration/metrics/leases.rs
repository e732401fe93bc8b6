//! Leases: how many are held, for how long, and which were lost.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_sdk::metrics::data::{AggregatedMetrics, HistogramDataPoint, MetricData};
use syncguard_core::observe::Operation;
use syncguard_core::{CancellationToken, Locks};
use syncguard_memory::{ManualClock, MemoryBackend};
use syncguard_telemetry::Telemetry;

use super::KEY;
use super::sdk::{Points, Sdk};
use crate::common::{Fault, FaultyBackend, PATIENCE, TTL};

#[tokio::test]
async fn held_goes_up_and_down_and_hold_time_is_the_time_between() {
    let sdk = Sdk::new();
    let locks = sdk.observed_memory();
    let first = locks.lock("a").await.unwrap();
    let second = locks.lock("b").await.unwrap();
    assert_eq!(sdk.held(), 2.0);

    let hold = Duration::from_millis(30);
    tokio::time::sleep(hold).await;
    let _ = first.release().await.unwrap();
    assert_eq!(sdk.held(), 1.0);
    drop(second);
    locks.drain(PATIENCE).await.unwrap();
    assert_eq!(sdk.held(), 0.0);
    assert_eq!(
        sdk.hold_times(),
        Points::from([("operation.result=ok".into(), 2.0)])
    );
    let shortest = sdk.read("syncguard.lock.hold_time", |metric| match metric.data() {
        AggregatedMetrics::F64(MetricData::Histogram(histogram)) => histogram
            .data_points()
            .next()
            .and_then(HistogramDataPoint::min),
        other => panic!("{other:?}"),
    });
    assert!(shortest.flatten().unwrap() >= hold.as_secs_f64());
    assert_eq!(sdk.lost(), 0.0);
}

#[tokio::test]
async fn a_lease_that_its_holder_finds_gone_is_lost_once() {
    let (sdk, clock) = (Sdk::new(), ManualClock::new());
    let locks = sdk.observe(Locks::new(MemoryBackend::with_clock(clock.clone())));

    let found_by_extend = locks.lock("a").ttl(TTL).await.unwrap();
    let found_by_release = locks.lock("b").ttl(TTL).await.unwrap();
    clock.advance(TTL * 2);
    let _ = found_by_extend.extend(TTL).await.unwrap();
    assert_eq!(sdk.lost(), 1.0);
    let _ = found_by_extend.release().await.unwrap();
    assert_eq!(sdk.lost(), 1.0, "no longer its lease");
    let _ = found_by_release.release().await.unwrap();

    assert_eq!(sdk.lost(), 2.0);
    assert_eq!(sdk.held(), 0.0);
    assert_eq!(
        sdk.hold_times(),
        Points::from([("operation.result=fail".into(), 1.0)])
    );
}

#[tokio::test]
async fn locks_of_others_are_neither_held_nor_lost() {
    let (sdk, shared) = (Sdk::new(), MemoryBackend::default());
    let locks = sdk.observe(Locks::new(shared.clone()));
    let theirs = Locks::new(shared).lock(KEY).await.unwrap();
    let _ = locks.extend(theirs.lock_id(), TTL).await.unwrap();
    let _ = locks.release(theirs.lock_id()).await.unwrap();
    let _ = locks.release(theirs.lock_id()).await.unwrap();
    assert_eq!((sdk.held(), sdk.lost()), (0.0, 0.0));
    assert_eq!(sdk.hold_times(), Points::new());
}

#[tokio::test]
async fn an_expired_lease_stops_counting_as_held() {
    let sdk = Sdk::new();
    let locks = sdk.observed_memory();
    let ttl = Duration::from_millis(100);
    let lease = locks.lock(KEY).ttl(ttl).await.unwrap().detach();
    assert_eq!(sdk.held(), 1.0);
    tokio::time::sleep(ttl).await;
    locks.is_locked("another").await.unwrap();
    assert_eq!(sdk.held(), 0.0);
    // Not lost before an operation on it finds no lock.
    assert_eq!(sdk.lost(), 0.0);
    drop(lease);
}

#[tokio::test]
async fn an_acquire_of_unknown_outcome_is_not_held() {
    let (sdk, faulty) = (Sdk::new(), FaultyBackend::default());
    let locks = sdk.observe(faulty.locks());
    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    locks.try_lock(KEY).await.unwrap_err();
    locks.drain(PATIENCE).await.unwrap();
    assert_eq!((sdk.held(), sdk.lost()), (0.0, 0.0));
}

#[tokio::test]
async fn a_release_that_fails_ends_the_hold() {
    let (sdk, faulty) = (Sdk::new(), FaultyBackend::default());
    let locks = sdk.observe(faulty.locks());
    let guard = locks.lock(KEY).await.unwrap();
    faulty.plan(Operation::Release, [Fault::LoseReply]);
    guard.release().await.unwrap_err();
    locks.drain(PATIENCE).await.unwrap();
    assert_eq!((sdk.held(), sdk.lost()), (0.0, 0.0));
}

#[tokio::test]
async fn a_release_that_was_cancelled_before_it_was_sent_does_not_end_the_hold() {
    let sdk = Sdk::new();
    let locks = sdk.observed_memory();
    let token = CancellationToken::new();
    token.cancel();
    let guard = locks.lock(KEY).await.unwrap();
    let release = locks.release(guard.lock_id()).cancel_on(&token);
    release.await.unwrap_err();
    assert_eq!(sdk.held(), 1.0);

    // The guard is dropped by it, and the background releases its lock.
    guard.release().cancel_on(&token).await.unwrap_err();
    locks.drain(PATIENCE).await.unwrap();
    assert_eq!((sdk.held(), sdk.lost()), (0.0, 0.0));
    assert_eq!(
        sdk.hold_times(),
        Points::from([("operation.result=ok".into(), 1.0)])
    );
}

#[tokio::test]
async fn the_last_clone_takes_its_leases_off_the_gauge() {
    let sdk = Sdk::new();
    let (staying, going) = (sdk.observed_memory(), sdk.observed_memory());
    let kept = staying.lock(KEY).await.unwrap();
    drop(going.lock(KEY).await.unwrap().detach());
    assert_eq!(sdk.held(), 2.0);
    drop(going);
    assert_eq!(sdk.held(), 1.0);
    let _ = kept.release().await.unwrap();
}

#[tokio::test]
async fn leases_are_counted_by_backend() {
    let sdk = Sdk::new();
    let telemetry = Arc::new(Telemetry::new(sdk.options()));
    let memory = Locks::new(MemoryBackend::default()).observed_by(telemetry.clone());
    let other = Locks::new(FaultyBackend::named("other")).observed_by(telemetry.clone());
    let held = |in_memory: f64, on_other: f64| -> Points {
        [
            (String::new(), in_memory),
            ("backend.name=other".to_owned(), on_other),
        ]
        .into()
    };
    let ttl = Duration::from_millis(100);
    drop(memory.lock("a").await.unwrap().detach());
    drop(other.lock("a").await.unwrap().detach());
    drop(other.lock("b").ttl(ttl).await.unwrap().detach());
    assert_eq!(sdk.points("syncguard.lock.held"), held(1.0, 2.0));

    // An expiry shows with the next operation on its backend, and is that backend's.
    tokio::time::sleep(ttl).await;
    memory.is_locked(KEY).await.unwrap();
    assert_eq!(sdk.points("syncguard.lock.held"), held(1.0, 2.0));
    other.is_locked(KEY).await.unwrap();
    assert_eq!(sdk.points("syncguard.lock.held"), held(1.0, 1.0));

    drop((memory, other, telemetry));
    assert_eq!(sdk.points("syncguard.lock.held"), held(0.0, 0.0));
}
