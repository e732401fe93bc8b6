//! No raw identifier anywhere, unless someone asked for it by name.

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};

use common::{Fault, FaultyStore, Observed, TTL};
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use syncguard_core::{
    ErrorCode, ManagedBackend, Operation, acquire, get_by_id_raw, get_by_key_raw, hash_key,
    is_locked,
};
use syncguard_memory::MemoryBackend;
use syncguard_telemetry::{EventType, TelemetryOptions};
use tracing_subscriber::fmt::MakeWriter;

const KEY: &str = "customer:jane.doe@example.org";

/// Everything that a subscriber of the most talkative kind writes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(log.clone())
            .with_ansi(false)
            .finish();
        let listening = tracing::subscriber::set_default(subscriber);
        (log, listening)
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Every operation, answered and failed, and a guard dropped. Returns the lock id.
async fn exercise(store: &FaultyStore, backend: &impl ManagedBackend) -> String {
    let guard = acquire(backend, KEY, TTL).await.unwrap().unwrap();
    let id = guard.lock_id().as_str().to_owned();
    assert!(acquire(backend, KEY, TTL).await.unwrap().is_none());
    assert!(is_locked(backend, KEY).await.unwrap());
    get_by_key_raw(backend, KEY).await.unwrap();
    get_by_id_raw(backend, guard.lock_id()).await.unwrap();
    let _ = guard.extend(TTL).await.unwrap();
    for operation in [Operation::Extend, Operation::IsLocked, Operation::Release] {
        store.plan(operation, [Fault::Refuse(ErrorCode::Internal)]);
    }
    guard.extend(TTL).await.unwrap_err();
    is_locked(backend, KEY).await.unwrap_err();
    drop(guard);
    id
}

#[tokio::test]
async fn nothing_raw_shows_by_default() {
    let (log, _listening) = Log::listen();
    let exporter = InMemoryMetricExporter::default();
    let meters = SdkMeterProvider::builder()
        .with_reader(PeriodicReader::builder(exporter.clone()).build())
        .build();
    let store = FaultyStore::default();
    let options = TelemetryOptions::new()
        .with_tracing(true)
        .with_metrics(&meters.meter("test"));
    let observed = Observed::with_options(store.managed(), options);
    let id = exercise(&store, &observed.backend).await;

    let events = observed.events().await;
    assert_eq!(events.len(), 9);
    meters.force_flush().unwrap();
    let metrics = format!("{:?}", exporter.get_finished_metrics().unwrap());
    assert!(metrics.contains("syncguard.operations"));
    let log = log.text();
    assert_eq!(log.matches("lock operation").count(), events.len());
    assert!(log.contains(&hash_key(KEY).to_string()));

    for shown in [format!("{events:?} {:?}", observed.backend), metrics, log] {
        assert!(!shown.contains("jane"), "{shown}");
        assert!(!shown.contains(&id), "{shown}");
    }
    for event in events {
        assert!(event.key.is_none() && event.lock_id.is_none());
    }
}

#[tokio::test]
async fn log_lines_carry_level_and_fields() {
    let (log, _listening) = Log::listen();
    let store = FaultyStore::default();
    let observed =
        Observed::with_options(store.managed(), TelemetryOptions::new().with_tracing(true));
    exercise(&store, &observed.backend).await;
    observed.events().await;

    let log = log.text();
    let line = |parts: &[&str]| {
        let found = log
            .lines()
            .any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found, "no line with {parts:?} in\n{log}");
    };
    line(&[
        "DEBUG syncguard: ",
        r#"type="acquire" result="ok""#,
        r#"backend="memory""#,
    ]);
    line(&[r#"type="acquire" result="fail" reason="locked""#]);
    line(&[
        "WARN syncguard: ",
        r#"type="isLocked""#,
        r#"error_code="Internal""#,
    ]);
}

#[tokio::test]
async fn raw_identifiers_show_where_the_flag_permits_them() {
    let (log, _listening) = Log::listen();
    let options = TelemetryOptions::new()
        .with_tracing(true)
        .with_include_raw(true);
    let observed = Observed::with_options(MemoryBackend::default(), options);
    let guard = acquire(&observed.backend, KEY, TTL).await.unwrap().unwrap();

    let event = observed.event().await;
    assert_eq!(event.key.as_ref(), Some(guard.key()));
    assert_eq!(event.lock_id.as_ref(), Some(guard.lock_id()));
    for shown in [format!("{event:?}"), log.text()] {
        assert!(shown.contains(KEY), "{shown}");
        assert!(shown.contains(guard.lock_id().as_str()), "{shown}");
    }
}

#[tokio::test]
async fn raw_identifiers_show_in_the_events_that_the_predicate_picks() {
    let options = TelemetryOptions::new().with_include_raw_if(|event| {
        assert!(event.key.is_none() && event.lock_id.is_none());
        event.event_type == EventType::Acquire
    });
    let observed = Observed::with_options(MemoryBackend::default(), options);
    let guard = acquire(&observed.backend, KEY, TTL).await.unwrap().unwrap();
    is_locked(&observed.backend, KEY).await.unwrap();
    let id = *guard.lock_id();
    let _ = guard.release().await.unwrap();

    let events = observed.events().await;
    let raw: Vec<_> = events
        .iter()
        .map(|event| (event.key.is_some(), event.lock_id))
        .collect();
    assert_eq!(raw, [(true, Some(id)), (false, None), (false, None)]);
}

#[tokio::test]
async fn a_predicate_that_panics_permits_nothing() {
    let (log, _listening) = Log::listen();
    let options = TelemetryOptions::new()
        .with_tracing(true)
        .with_include_raw_if(|_| panic!("the predicate's own trouble"));
    let observed = Observed::with_options(MemoryBackend::default(), options);
    assert!(!is_locked(&observed.backend, KEY).await.unwrap());
    assert!(observed.event().await.key.is_none());
    assert_eq!(log.text().matches("lock operation").count(), 1);
    assert!(!log.text().contains("jane"));
}

#[test]
fn options_show_no_closures_and_no_identifiers() {
    let options = TelemetryOptions::new()
        .with_on_event(drop)
        .with_include_raw_if(|_| true);
    assert_eq!(
        format!("{options:?}"),
        "TelemetryOptions { on_event: true, queue_capacity: 4096, include_raw: If(..), \
         tracing: false, metrics: false }"
    );
}
