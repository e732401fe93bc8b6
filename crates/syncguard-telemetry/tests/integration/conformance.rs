//! The suite with telemetry as an observer, every sink on.

use std::sync::Arc;

use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use syncguard_conformance::Harness;
use syncguard_core::{Fence, LockError, LockKey, LocksBuilder};
use syncguard_memory::MemoryBackend;
use syncguard_telemetry::{Telemetry, TelemetryOptions};

#[derive(Default)]
struct TelemetryHarness {
    backend: MemoryBackend,
    meters: SdkMeterProvider,
}

impl Harness for TelemetryHarness {
    type Backend = MemoryBackend;

    async fn connect(&self) -> Result<MemoryBackend, LockError> {
        Ok(self.backend.clone())
    }

    fn configure(&self, builder: LocksBuilder<Fence>) -> LocksBuilder<Fence> {
        let options = TelemetryOptions::new()
            .on_event(drop)
            .tracing(true)
            .metrics(&self.meters.meter("conformance"));
        builder.observe(Arc::new(Telemetry::new(options)))
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        self.backend.set_fence_counter(key, counter);
        Ok(true)
    }
}

syncguard_conformance::suite!(TelemetryHarness::default());
