//! What the tests share: collected events, a subscriber that panics.

#![allow(dead_code, unreachable_pub, reason = "the core's tests use the rest")]

#[path = "../../../syncguard-core/tests/integration/common.rs"]
mod faulty;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::Locks;
use syncguard_memory::MemoryBackend;
use syncguard_telemetry::{LockEvent, Telemetry, TelemetryOptions};

pub use faulty::{Fault, FaultyBackend};

pub const PATIENCE: Duration = Duration::from_secs(20);
pub const TTL: Duration = Duration::from_secs(60);

/// A `Locks` that telemetry observes, and the events that its callback got.
pub struct Observed {
    pub locks: Locks,
    pub telemetry: Telemetry,
    events: Arc<Mutex<Vec<LockEvent>>>,
}

impl Observed {
    pub fn new(locks: &Locks) -> Self {
        Self::with_options(locks, TelemetryOptions::new())
    }

    pub fn on_memory() -> Self {
        Self::new(&Locks::new(MemoryBackend::default()))
    }

    pub fn with_options(locks: &Locks, options: TelemetryOptions) -> Self {
        let events = Arc::<Mutex<Vec<LockEvent>>>::default();
        let collected = Arc::clone(&events);
        let options = options.on_event(move |event| collected.lock().unwrap().push(event));
        let telemetry = Telemetry::new(options);
        Self {
            locks: locks.observed_by(Arc::new(telemetry.clone())),
            telemetry,
            events,
        }
    }

    /// All events since the last time, those of dropped guards included.
    pub async fn events(&self) -> Vec<LockEvent> {
        self.locks.drain(PATIENCE).await.unwrap();
        assert!(self.telemetry.flush(PATIENCE).await, "events are stuck");
        std::mem::take(&mut self.events.lock().unwrap())
    }

    /// The one event since the last time.
    pub async fn event(&self) -> LockEvent {
        let mut events = self.events().await;
        assert_eq!(events.len(), 1, "one call, one event: {events:?}");
        events.remove(0)
    }
}

/// A subscriber that panics at every event of telemetry.
pub struct Panicking;

impl tracing::Subscriber for Panicking {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "syncguard"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("the subscriber's own fault");
    }

    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
