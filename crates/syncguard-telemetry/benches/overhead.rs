//! What telemetry adds to an operation, on the backend that takes the least time itself.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use syncguard_core::{LockId, LockKey, ManagedBackend, Ttl};
use syncguard_memory::MemoryBackend;
use syncguard_telemetry::{TelemetryOptions, with_telemetry};

fn overhead(criterion: &mut Criterion) {
    let meters = SdkMeterProvider::builder()
        .with_reader(PeriodicReader::builder(InMemoryMetricExporter::default()).build())
        .build();
    let memory = MemoryBackend::default;
    let bare = memory();
    let off = with_telemetry(memory(), TelemetryOptions::new());
    let callback = with_telemetry(
        memory(),
        TelemetryOptions::new().with_on_event(|event| drop(black_box(event))),
    );
    // No subscriber: what the application pays that has switched the level off.
    let quiet_tracing = with_telemetry(memory(), TelemetryOptions::new().with_tracing(true));
    let metrics = with_telemetry(
        memory(),
        TelemetryOptions::new().with_metrics(&meters.meter("bench")),
    );

    is_locked(criterion, "bare", &bare);
    is_locked(criterion, "off", &off);
    is_locked(criterion, "callback", &callback);
    is_locked(criterion, "tracing, no subscriber", &quiet_tracing);
    is_locked(criterion, "metrics", &metrics);

    cycle(criterion, "bare", &bare);
    cycle(criterion, "off", &off);
    cycle(criterion, "callback", &callback);
    cycle(criterion, "tracing, no subscriber", &quiet_tracing);
    cycle(criterion, "metrics", &metrics);

    eprintln!("events dropped: {}", callback.dropped_events());
}

/// One operation.
fn is_locked(criterion: &mut Criterion, name: &str, backend: &impl ManagedBackend) {
    let key = LockKey::new("customer:4711:invoices").expect("a valid key");
    run(criterion, "is_locked", name, async || {
        backend.is_locked(&key).await.is_ok()
    });
}

/// Two operations.
fn cycle(criterion: &mut Criterion, name: &str, backend: &impl ManagedBackend) {
    let key = LockKey::new("customer:4711:invoices").expect("a valid key");
    let id = LockId::generate().expect("randomness");
    let ttl = Ttl::new(Duration::from_secs(60)).expect("a valid TTL");
    run(criterion, "acquire and release", name, async || {
        backend.acquire(&key, &id, ttl).await.is_ok() && backend.release(&id).await.is_ok()
    });
}

fn run(criterion: &mut Criterion, group: &str, name: &str, operation: impl AsyncFn() -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    criterion
        .benchmark_group(group)
        .bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                runtime.block_on(async {
                    let started = std::time::Instant::now();
                    for _ in 0..rounds {
                        assert!(black_box(operation().await));
                    }
                    started.elapsed()
                })
            });
        });
}

criterion_group!(benches, overhead);
criterion_main!(benches);
