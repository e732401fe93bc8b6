//! What the OpenTelemetry instruments show, read back through the SDK.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Fault, FaultyStore, PATIENCE, TTL};
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, HistogramDataPoint, Metric, MetricData, ResourceMetrics, ScopeMetrics,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use syncguard_core::{
    ErrorCode, LockOptions, ManagedBackend, Operation, acquire, extend, is_locked, lock, release,
};
use syncguard_memory::{ManualClock, MemoryBackend, MemoryStore};
use syncguard_telemetry::{Telemetry, TelemetryOptions, with_telemetry};

const KEY: &str = "stock:42";

/// An application's SDK, and what it would export.
struct Sdk {
    provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
}

/// The values of an instrument by its attributes, both as text.
type Points = BTreeMap<String, f64>;

impl Sdk {
    fn new() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        Self {
            provider: SdkMeterProvider::builder().with_reader(reader).build(),
            exporter,
        }
    }

    fn decorate<B: ManagedBackend>(&self, backend: B) -> Telemetry<B> {
        let meter = self.provider.meter("syncguard");
        with_telemetry(backend, TelemetryOptions::new().with_metrics(&meter))
    }

    fn read<T>(&self, name: &str, read: impl FnOnce(&Metric) -> T) -> Option<T> {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let exported = self.exporter.get_finished_metrics().unwrap();
        let mut metrics = exported
            .iter()
            .flat_map(ResourceMetrics::scope_metrics)
            .flat_map(ScopeMetrics::metrics);
        metrics.find(|metric| metric.name() == name).map(read)
    }

    /// Sums as they stand, histograms by their number of measurements.
    fn points(&self, name: &str) -> Points {
        self.read(name, |metric| match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                assert!(sum.is_monotonic());
                let points = sum.data_points();
                points
                    .map(|point| (text(point.attributes()), number(point.value())))
                    .collect()
            }
            AggregatedMetrics::I64(MetricData::Sum(sum)) => {
                assert!(!sum.is_monotonic());
                let points = sum.data_points();
                points
                    .map(|point| {
                        let value = i32::try_from(point.value()).unwrap();
                        (text(point.attributes()), f64::from(value))
                    })
                    .collect()
            }
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                let points = histogram.data_points();
                points
                    .map(|point| (text(point.attributes()), number(point.count())))
                    .collect()
            }
            AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                let points = gauge.data_points();
                points
                    .map(|point| (text(point.attributes()), point.value()))
                    .collect()
            }
            other => panic!("{name} is something else: {other:?}"),
        })
        .unwrap_or_default()
    }

    fn held(&self) -> f64 {
        self.points("syncguard.lock.held").values().sum()
    }

    fn lost(&self) -> f64 {
        self.points("syncguard.lock.lost").values().sum()
    }

    fn waiting(&self) -> f64 {
        self.points("syncguard.lock.waiting").values().sum()
    }

    fn hold_times(&self) -> Points {
        self.points("syncguard.lock.hold_time")
    }
}

fn number(value: u64) -> f64 {
    f64::from(u32::try_from(value).unwrap())
}

/// Attributes without what they have in common, sorted.
fn text<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> String {
    let mut parts: Vec<_> = attributes
        .map(|pair| format!("{}={}", pair.key.as_str(), pair.value.as_str()))
        .collect();
    parts.sort();
    let parts: Vec<_> = parts
        .iter()
        .map(|part| part.trim_start_matches("syncguard."))
        .filter(|part| *part != "backend.name=memory")
        .collect();
    parts.join(" ")
}

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
