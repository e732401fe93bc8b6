//! Leases: how many are held, for how long, and which were lost.

use std::time::Duration;

use opentelemetry_sdk::metrics::data::{AggregatedMetrics, HistogramDataPoint, MetricData};
use syncguard_core::{ManagedBackend as _, Operation, acquire, extend, is_locked, release};
use syncguard_memory::{ManualClock, MemoryBackend, MemoryStore};

use crate::KEY;
use crate::common::{Fault, FaultyStore, PATIENCE, TTL};
use crate::sdk::{Points, Sdk};

#[tokio::test]
async fn held_goes_up_and_down_and_hold_time_is_the_time_between() {
    let sdk = Sdk::new();
    let backend = sdk.decorate(MemoryBackend::default());
    let first = acquire(&backend, "a", TTL).await.unwrap().unwrap();
    let second = acquire(&backend, "b", TTL).await.unwrap().unwrap();
    assert_eq!(sdk.held(), 2.0);

    let hold = Duration::from_millis(30);
    tokio::time::sleep(hold).await;
    let _ = first.release().await.unwrap();
    assert_eq!(sdk.held(), 1.0);
    drop(second);
    backend.drain(PATIENCE).await.unwrap();
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
    let backend = sdk.decorate(MemoryBackend::new(MemoryStore::with_clock(clock.clone())));

    let found_by_extend = acquire(&backend, "a", TTL).await.unwrap().unwrap();
    let found_by_release = acquire(&backend, "b", TTL).await.unwrap().unwrap();
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
async fn what_others_took_is_neither_held_nor_lost() {
    let (sdk, shared) = (Sdk::new(), MemoryBackend::default());
    let backend = sdk.decorate(shared.clone());
    let theirs = acquire(&shared, KEY, TTL).await.unwrap().unwrap();
    let _ = extend(&backend, theirs.lock_id(), TTL).await.unwrap();
    let _ = release(&backend, theirs.lock_id()).await.unwrap();
    let _ = release(&backend, theirs.lock_id()).await.unwrap();
    assert_eq!((sdk.held(), sdk.lost()), (0.0, 0.0));
    assert_eq!(sdk.hold_times(), Points::new());
}

#[tokio::test]
async fn a_lease_left_to_run_out_stops_counting_as_held() {
    let sdk = Sdk::new();
    let backend = sdk.decorate(MemoryBackend::default());
    let ttl = Duration::from_millis(20);
    let lease = acquire(&backend, KEY, ttl).await.unwrap().unwrap().detach();
    assert_eq!(sdk.held(), 1.0);
    tokio::time::sleep(ttl).await;
    is_locked(&backend, "another").await.unwrap();
    assert_eq!(sdk.held(), 0.0);
    // Not lost before somebody misses it.
    assert_eq!(sdk.lost(), 0.0);
    drop(lease);
}

#[tokio::test]
async fn an_acquire_of_unknown_outcome_is_not_held() {
    let (sdk, store) = (Sdk::new(), FaultyStore::default());
    let backend = sdk.decorate(store.managed());
    store.plan(Operation::Acquire, [Fault::LoseReply]);
    acquire(&backend, KEY, TTL).await.unwrap_err();
    backend.drain(PATIENCE).await.unwrap();
    assert_eq!((sdk.held(), sdk.lost()), (0.0, 0.0));
}

#[tokio::test]
async fn a_release_that_fails_ends_the_hold() {
    let (sdk, store) = (Sdk::new(), FaultyStore::default());
    let backend = sdk.decorate(store.managed());
    let guard = acquire(&backend, KEY, TTL).await.unwrap().unwrap();
    store.plan(Operation::Release, [Fault::LoseReply]);
    guard.release().await.unwrap_err();
    backend.drain(PATIENCE).await.unwrap();
    assert_eq!((sdk.held(), sdk.lost()), (0.0, 0.0));
}

#[tokio::test]
async fn the_last_clone_takes_what_it_held_off_the_gauge() {
    let sdk = Sdk::new();
    let (staying, going) = (
        sdk.decorate(MemoryBackend::default()),
        sdk.decorate(MemoryBackend::default()),
    );
    let kept = acquire(&staying, KEY, TTL).await.unwrap().unwrap();
    drop(acquire(&going, KEY, TTL).await.unwrap().unwrap().detach());
    assert_eq!(sdk.held(), 2.0);
    drop(going);
    assert_eq!(sdk.held(), 1.0);
    let _ = kept.release().await.unwrap();
}
