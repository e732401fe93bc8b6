//! [`Observed`]: the suite through the telemetry decorator.

use std::future::Future;

use syncguard_conformance::Harness;
use syncguard_core::{LockError, LockKey};
use syncguard_telemetry::{Telemetry, TelemetryOptions, with_telemetry};

/// A harness whose clients are decorated, with their events going to a callback and to `tracing`.
#[derive(Debug)]
pub struct Observed<H>(pub H);

impl<H: Harness> Harness for Observed<H> {
    type Backend = Telemetry<H::Backend>;

    async fn connect(&self) -> Result<Self::Backend, LockError> {
        let options = TelemetryOptions::new()
            .with_on_event(drop)
            .with_tracing(true);
        Ok(with_telemetry(self.0.connect().await?, options))
    }

    fn set_fence_counter(
        &self,
        key: &LockKey,
        counter: u64,
    ) -> impl Future<Output = Result<bool, LockError>> + Send {
        self.0.set_fence_counter(key, counter)
    }
}
