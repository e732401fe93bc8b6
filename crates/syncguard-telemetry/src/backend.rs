//! [`Telemetry`]: the decorator.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use syncguard_core::{
    AcquireResult, Capabilities, ExtendResult, Finding, LockBackend, LockError, LockId, LockInfo,
    LockInfoDebug, LockKey, Lookup, ManagedBackend, Observer, Policy, Preflight, ReleaseResult,
    Ttl,
};

use crate::TelemetryOptions;
use crate::call::{Call, Outcome};
use crate::hub::Hub;
use crate::queue::Queue;

/// A backend whose every call is told to the sinks of its [`TelemetryOptions`].
///
/// It is a backend itself: give it to [`lock()`](syncguard_core::lock()) and
/// [`acquire`](syncguard_core::acquire), and the releases of dropped guards and the renewals of
/// leases are told too. Answers, errors and the policy are those of the backend inside. Clones
/// share the sinks.
#[derive(Debug, Clone)]
pub struct Telemetry<B> {
    inner: B,
    /// The same, with the metrics as its observer; `None` if there are none.
    observed: Option<B>,
    hub: Option<Arc<Hub>>,
}

/// Tells the sinks of `options` of every call of `backend`. See [`Telemetry`].
pub fn with_telemetry<B: ManagedBackend>(backend: B, options: TelemetryOptions) -> Telemetry<B> {
    Telemetry::new(backend, options)
}

impl<B: ManagedBackend> Telemetry<B> {
    /// Wraps a backend.
    pub fn new(inner: B, options: TelemetryOptions) -> Self {
        let hub = Hub::new(options, inner.capabilities().backend).map(Arc::new);
        #[cfg(feature = "opentelemetry")]
        let observed = hub
            .as_ref()
            .filter(|hub| hub.has_metrics())
            .map(|hub| inner.clone().observed_by(hub.clone()));
        #[cfg(not(feature = "opentelemetry"))]
        let observed = None;
        Self {
            inner,
            observed,
            hub,
        }
    }
}

impl<B> Telemetry<B> {
    /// The wrapped backend. What is done through it is told to nobody.
    pub fn get_ref(&self) -> &B {
        &self.inner
    }

    /// Unwraps the backend. What is done through it is told to nobody.
    pub fn into_inner(self) -> B {
        self.inner
    }

    /// How many events the callback will never see, because it was too slow for the queue.
    #[must_use]
    pub fn dropped_events(&self) -> u64 {
        let queue = self.hub.as_ref().and_then(|hub| hub.queue());
        queue.map_or(0, Queue::dropped)
    }

    /// Waits until the callback has had every event so far, and tells whether it had within
    /// `timeout`. `true` where there is no callback.
    ///
    /// Call it last before the process ends, after
    /// [`drain`](syncguard_core::ManagedBackend::drain): events that still wait then are lost with
    /// the process.
    ///
    /// # Cancel safety
    /// Safe: dropping the future stops the waiting, not the delivery.
    pub async fn flush(&self, timeout: Duration) -> bool {
        match self.hub.as_ref().and_then(|hub| hub.queue()) {
            Some(queue) => queue.flush(timeout).await,
            None => true,
        }
    }

    /// The backend that calls go through.
    fn backend(&self) -> &B {
        self.observed.as_ref().unwrap_or(&self.inner)
    }
}

impl<B: LockBackend> Telemetry<B> {
    /// Makes a call, and reports how it ended if anybody wants to know.
    ///
    /// The call's future is made here, not handed over: it would be copied, and it can be big.
    async fn watch<T, F>(
        &self,
        call: Call<'_>,
        domain: fn(&T) -> Outcome,
        make: impl FnOnce() -> F,
    ) -> Result<T, LockError>
    where
        F: Future<Output = Result<T, LockError>>,
    {
        let Some(hub) = &self.hub else {
            return make().await;
        };
        let pending = hub.begin(call);
        let answer = make().await;
        pending.end(Outcome::of(&answer, domain));
        #[cfg(feature = "opentelemetry")]
        hub.note_clock_skew(|| self.backend().clock_skew_ms());
        answer
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend> LockBackend for Telemetry<B> {
    type Fence = B::Fence;

    fn capabilities(&self) -> Capabilities {
        self.backend().capabilities()
    }

    fn clock_skew_ms(&self) -> Option<i64> {
        self.backend().clock_skew_ms()
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult<B::Fence>, LockError> {
        self.watch(Call::acquire(key, id, ttl), Outcome::of_acquire, || {
            self.backend().acquire(key, id, ttl)
        })
        .await
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        self.watch(Call::release(id), Outcome::of_release, || {
            self.backend().release(id)
        })
        .await
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        self.watch(Call::extend(id, ttl), Outcome::of_extend, || {
            self.backend().extend(id, ttl)
        })
        .await
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        self.watch(Call::is_locked(key), Outcome::of_question, || {
            self.backend().is_locked(key)
        })
        .await
    }

    async fn lookup_raw(
        &self,
        by: Lookup<'_>,
    ) -> Result<Option<LockInfoDebug<B::Fence>>, LockError> {
        self.watch(Call::lookup(by), Outcome::of_question, || {
            self.backend().lookup_raw(by)
        })
        .await
    }

    async fn lookup(&self, by: Lookup<'_>) -> Result<Option<LockInfo<B::Fence>>, LockError> {
        self.watch(Call::lookup(by), Outcome::of_question, || {
            self.backend().lookup(by)
        })
        .await
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: ManagedBackend> ManagedBackend for Telemetry<B> {
    fn policy(&self) -> &Policy {
        self.backend().policy()
    }

    fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.inner = self.inner.observed_by(observer.clone());
        self.observed = self.observed.map(|inner| inner.observed_by(observer));
        self
    }

    fn drain(&self, timeout: Duration) -> impl Future<Output = Result<(), LockError>> + Send {
        self.backend().drain(timeout)
    }
}

/// It is no operation on a lock, and makes no event.
impl<B: Preflight + Sync> Preflight for Telemetry<B> {
    async fn preflight(&self) -> Result<Vec<Finding>, LockError> {
        self.backend().preflight().await
    }
}
