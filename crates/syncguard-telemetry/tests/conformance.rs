//! The suite through the decorator, with every sink on.

use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use syncguard_conformance::Harness;
use syncguard_core::{LockError, LockKey};
use syncguard_memory::{MemoryBackend, MemoryStore};
use syncguard_telemetry::{Telemetry, TelemetryOptions, with_telemetry};

#[derive(Default)]
struct TelemetryHarness {
    store: MemoryStore,
    meters: SdkMeterProvider,
}

impl Harness for TelemetryHarness {
    type Backend = Telemetry<MemoryBackend>;

    async fn connect(&self) -> Result<Self::Backend, LockError> {
        let options = TelemetryOptions::new()
            .with_on_event(drop)
            .with_tracing(true)
            .with_metrics(&self.meters.meter("conformance"));
        Ok(with_telemetry(
            MemoryBackend::new(self.store.clone()),
            options,
        ))
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        self.store.set_fence_counter(key, counter);
        Ok(true)
    }
}

syncguard_conformance::suite!(TelemetryHarness::default());
