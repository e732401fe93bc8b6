//! What the tests share: events collected, calls counted, faults planned.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "each test file uses its part"
)]

#[path = "../../../syncguard-core/tests/common/mod.rs"]
mod faulty;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::{
    AcquireResult, Capabilities, ExtendResult, LockBackend, LockError, LockId, LockInfo,
    LockInfoDebug, LockKey, Lookup, ManagedBackend, Observer, Policy, ReleaseResult, Ttl,
};
use syncguard_telemetry::{LockEvent, Telemetry, TelemetryOptions, with_telemetry};

pub use faulty::{Fault, FaultyStore};

pub const PATIENCE: Duration = Duration::from_secs(20);
pub const TTL: Duration = Duration::from_secs(60);

/// A decorated backend and the events that its callback got.
pub struct Observed<B> {
    pub backend: Telemetry<B>,
    events: Arc<Mutex<Vec<LockEvent>>>,
}

impl<B: ManagedBackend> Observed<B> {
    pub fn new(backend: B) -> Self {
        Self::with_options(backend, TelemetryOptions::new())
    }

    pub fn with_options(backend: B, options: TelemetryOptions) -> Self {
        let events = Arc::<Mutex<Vec<LockEvent>>>::default();
        let collected = Arc::clone(&events);
        let options = options.with_on_event(move |event| collected.lock().unwrap().push(event));
        Self {
            backend: with_telemetry(backend, options),
            events,
        }
    }

    /// Everything told since the last time, background releases included.
    pub async fn events(&self) -> Vec<LockEvent> {
        self.backend.drain(PATIENCE).await.unwrap();
        assert!(self.backend.flush(PATIENCE).await, "events are stuck");
        std::mem::take(&mut self.events.lock().unwrap())
    }

    /// The one event since the last time.
    pub async fn event(&self) -> LockEvent {
        let mut events = self.events().await;
        assert_eq!(events.len(), 1, "one call, one event: {events:?}");
        events.remove(0)
    }
}

/// Counts the calls that it passes on: those whose future was polled.
#[derive(Debug, Clone)]
pub struct Counting<B> {
    inner: B,
    calls: Arc<AtomicUsize>,
}

impl<B> Counting<B> {
    pub fn new(inner: B) -> Self {
        Self {
            inner,
            calls: Arc::default(),
        }
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn count(&self) -> &B {
        self.calls.fetch_add(1, Ordering::SeqCst);
        &self.inner
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: ManagedBackend> LockBackend for Counting<B> {
    type Fence = B::Fence;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn clock_skew_ms(&self) -> Option<i64> {
        self.inner.clock_skew_ms()
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult<B::Fence>, LockError> {
        self.count().acquire(key, id, ttl).await
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        self.count().release(id).await
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        self.count().extend(id, ttl).await
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        self.count().is_locked(key).await
    }

    async fn lookup_raw(
        &self,
        by: Lookup<'_>,
    ) -> Result<Option<LockInfoDebug<B::Fence>>, LockError> {
        self.count().lookup_raw(by).await
    }

    async fn lookup(&self, by: Lookup<'_>) -> Result<Option<LockInfo<B::Fence>>, LockError> {
        self.count().lookup(by).await
    }
}

impl<B: ManagedBackend> ManagedBackend for Counting<B> {
    fn policy(&self) -> &Policy {
        self.inner.policy()
    }

    fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.inner = self.inner.observed_by(observer);
        self
    }
}
