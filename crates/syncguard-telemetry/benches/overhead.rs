//! What telemetry adds to an operation, on the backend that takes the least time itself.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use syncguard_core::{LockKey, Locks};
use syncguard_memory::MemoryBackend;
use syncguard_telemetry::{Telemetry, TelemetryOptions, with_telemetry};

fn overhead(criterion: &mut Criterion) {
    let meters = SdkMeterProvider::builder()
        .with_reader(PeriodicReader::builder(InMemoryMetricExporter::default()).build())
        .build();
    let memory = || Locks::new(MemoryBackend::default());
    let bare = memory();
    let off = with_telemetry(memory(), TelemetryOptions::new());
    let telemetry =
        Telemetry::new(TelemetryOptions::new().on_event(|event| drop(black_box(event))));
    let callback = memory().observed_by(Arc::new(telemetry.clone()));
    // No subscriber: what an application pays that has switched the level off.
    let quiet_tracing = with_telemetry(memory(), TelemetryOptions::new().tracing(true));
    let metrics = with_telemetry(
        memory(),
        TelemetryOptions::new().metrics(&meters.meter("bench")),
    );

    let variants = [
        ("bare", bare),
        ("off", off),
        ("callback", callback),
        ("tracing, no subscriber", quiet_tracing),
        ("metrics", metrics),
    ];
    for (name, locks) in &variants {
        is_locked(criterion, name, locks);
    }
    for (name, locks) in &variants {
        cycle(criterion, name, locks);
    }

    eprintln!("events dropped: {}", telemetry.dropped_events());
}

/// One operation.
fn is_locked(criterion: &mut Criterion, name: &str, locks: &Locks) {
    let key = LockKey::new("customer:4711:invoices").expect("a valid key");
    run(criterion, "is_locked", name, async || {
        locks.is_locked(&key).await.is_ok()
    });
}

/// Two operations.
fn cycle(criterion: &mut Criterion, name: &str, locks: &Locks) {
    let key = LockKey::new("customer:4711:invoices").expect("a valid key");
    let ttl = Duration::from_secs(60);
    run(
        criterion,
        "acquire and release",
        name,
        async || match locks.try_lock(&key).ttl(ttl).await {
            Ok(Some(guard)) => guard.release().await.is_ok(),
            _ => false,
        },
    );
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
