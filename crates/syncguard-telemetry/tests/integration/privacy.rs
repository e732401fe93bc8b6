//! No raw identifier anywhere, unless the application asked for it by name.

use std::io::Write;
use std::sync::{Arc, Mutex};

use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use syncguard_core::observe::Operation;
use syncguard_core::{CancellationToken, ErrorCode, Locks, hash_key};
use syncguard_memory::MemoryBackend;
use syncguard_telemetry::{EventType, TelemetryOptions};
use tracing_subscriber::fmt::MakeWriter;

use crate::common::{Fault, FaultyBackend, Observed, TTL};

const KEY: &str = "customer:jane.doe@example.org";

/// How many calls [`exercise`] makes, the release of its guard included.
const CALLS: usize = 12;

/// Everything that a subscriber of the most verbose level writes.
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

fn memory() -> Locks {
    Locks::new(MemoryBackend::default())
}

/// Every operation, answered, failed and refused, and a guard dropped. Returns the lock id.
async fn exercise(faulty: &FaultyBackend, locks: &Locks) -> String {
    let guard = locks.lock(KEY).await.unwrap();
    let id = guard.lock_id().as_str().to_owned();
    assert!(locks.try_lock(KEY).await.unwrap().is_none());
    assert!(locks.is_locked(KEY).await.unwrap());
    locks.get_by_key_raw(KEY).await.unwrap();
    locks.get_by_id_raw(guard.lock_id()).await.unwrap();
    let _ = guard.extend(TTL).await.unwrap();
    for operation in [Operation::Extend, Operation::IsLocked, Operation::Release] {
        faulty.plan(operation, [Fault::Refuse(ErrorCode::Internal)]);
    }
    guard.extend(TTL).await.unwrap_err();
    locks.is_locked(KEY).await.unwrap_err();
    // What cannot be parsed is not shown either.
    locks.is_locked(format!("{KEY}\0")).await.unwrap_err();
    locks.release(format!("{id}{KEY}")).await.unwrap_err();
    let token = CancellationToken::new();
    token.cancel();
    let attempt = locks.try_lock(KEY).cancel_on(&token).await;
    attempt.unwrap_err();
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
    let faulty = FaultyBackend::default();
    let options = TelemetryOptions::new()
        .tracing(true)
        .metrics(&meters.meter("test"));
    let observed = Observed::with_options(&faulty.locks(), options);
    let id = exercise(&faulty, &observed.locks).await;

    let events = observed.events().await;
    assert_eq!(events.len(), CALLS);
    meters.force_flush().unwrap();
    let metrics = format!("{:?}", exporter.get_finished_metrics().unwrap());
    assert!(metrics.contains("syncguard.operations"));
    let log = log.text();
    assert_eq!(log.matches("lock operation").count(), events.len());
    assert!(log.contains(&hash_key(KEY).to_string()));

    let json = serde_json::to_string(&events).unwrap();
    assert!(json.contains(&hash_key(KEY).to_string()));
    let debug = format!("{events:?} {:?} {:?}", observed.telemetry, observed.locks);
    for shown in [debug, json, metrics, log] {
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
    let faulty = FaultyBackend::default();
    let observed = Observed::with_options(&faulty.locks(), TelemetryOptions::new().tracing(true));
    exercise(&faulty, &observed.locks).await;
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
    line(&[
        "WARN syncguard: ",
        r#"type="release""#,
        r#"error_code="InvalidArgument""#,
    ]);
    line(&[
        "DEBUG syncguard: ",
        r#"type="acquire""#,
        r#"error_code="Aborted""#,
    ]);
}

#[tokio::test]
async fn raw_identifiers_show_where_the_flag_permits_them() {
    let (log, _listening) = Log::listen();
    let options = TelemetryOptions::new().tracing(true).include_raw(true);
    let observed = Observed::with_options(&memory(), options);
    let guard = observed.locks.lock(KEY).await.unwrap();

    let event = observed.event().await;
    assert_eq!(event.key.as_ref(), Some(guard.key()));
    assert_eq!(event.lock_id.as_ref(), Some(guard.lock_id()));
    for shown in [format!("{event:?}"), log.text()] {
        assert!(shown.contains(KEY), "{shown}");
        assert!(shown.contains(guard.lock_id().as_str()), "{shown}");
    }
    let json = serde_json::to_value(&event).unwrap();
    assert_eq!(json["key"], KEY);
    assert_eq!(json["lockId"], guard.lock_id().as_str());
}

#[tokio::test]
async fn raw_identifiers_show_in_the_events_that_the_predicate_selects() {
    let options = TelemetryOptions::new().include_raw_if(|event| {
        assert!(event.key.is_none() && event.lock_id.is_none());
        event.event_type == EventType::Acquire
    });
    let observed = Observed::with_options(&memory(), options);
    let guard = observed.locks.lock(KEY).await.unwrap();
    observed.locks.is_locked(KEY).await.unwrap();
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
        .tracing(true)
        .include_raw_if(|_| panic!("the predicate's own fault"));
    let observed = Observed::with_options(&memory(), options);
    assert!(!observed.locks.is_locked(KEY).await.unwrap());
    assert!(observed.event().await.key.is_none());
    assert_eq!(log.text().matches("lock operation").count(), 1);
    assert!(!log.text().contains("jane"));
}

#[test]
fn options_show_no_closures_and_no_identifiers() {
    let options = TelemetryOptions::new()
        .on_event(drop)
        .include_raw_if(|_| true);
    assert_eq!(
        format!("{options:?}"),
        "TelemetryOptions { on_event: true, queue_capacity: 4096, include_raw: If(..), \
         tracing: false, metrics: false }"
    );
}
