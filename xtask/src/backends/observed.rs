//! The suite through telemetry.

use std::future::Future;
use std::sync::Arc;

use opentelemetry_sdk::metrics::SdkMeterProvider;
use syncguard_conformance::{Harness, Report, RunOptions, Stored};
use syncguard_core::backend::LockBackend;
use syncguard_core::{LockError, LockKey, LocksBuilder};
use syncguard_telemetry::opentelemetry::metrics::MeterProvider as _;
use syncguard_telemetry::{Telemetry, TelemetryOptions};

/// Runs the suite on a store whose `Locks` are observed.
pub(super) async fn run(harness: impl Harness, options: RunOptions) -> Report {
    let meters = SdkMeterProvider::default();
    syncguard_conformance::run(Arc::new(Observed { harness, meters }), options).await
}

/// Events go to a callback and to `tracing`, metrics to a meter.
struct Observed<H> {
    harness: H,
    meters: SdkMeterProvider,
}

#[deny(clippy::missing_trait_methods)]
impl<H: Harness> Harness for Observed<H> {
    type Backend = H::Backend;

    fn connect(&self) -> impl Future<Output = Result<H::Backend, LockError>> + Send {
        self.harness.connect()
    }

    fn set_fence_counter(
        &self,
        key: &LockKey,
        counter: u64,
    ) -> impl Future<Output = Result<bool, LockError>> + Send {
        self.harness.set_fence_counter(key, counter)
    }

    fn stored(
        &self,
        beginning: &str,
    ) -> impl Future<Output = Result<Option<Stored>, LockError>> + Send {
        self.harness.stored(beginning)
    }

    fn capacity(&self) -> usize {
        self.harness.capacity()
    }

    fn one_call_at_a_time(&self) -> bool {
        self.harness.one_call_at_a_time()
    }

    fn configure(
        &self,
        builder: LocksBuilder<<H::Backend as LockBackend>::Fence>,
    ) -> LocksBuilder<<H::Backend as LockBackend>::Fence> {
        let options = TelemetryOptions::new()
            .on_event(drop)
            .tracing(true)
            .metrics(&self.meters.meter("conformance"));
        let telemetry = Arc::new(Telemetry::new(options));
        self.harness.configure(builder).observe(telemetry)
    }
}
