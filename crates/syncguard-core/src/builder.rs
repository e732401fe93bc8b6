//! [`LocksBuilder`]: how a [`Locks`] is configured.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::erased::ErasedBackend;
use crate::backend::{DEFAULT_OPERATION_TIMEOUT, FenceToken, LockBackend};
use crate::clock::LeaseClock;
use crate::observe::{Observer, Observers, ReleaseErrorHandler, ReleaseFailure};
use crate::store::{Settings, Store};
use crate::{Fence, Locks};

/// Configures a [`Locks`]. [`Locks::builder`] makes one.
///
/// ```
/// # use std::time::Duration;
/// # use syncguard_core::Locks;
/// # use syncguard_memory::MemoryBackend;
/// let locks = Locks::builder(MemoryBackend::default())
///     .operation_timeout(Duration::from_secs(2))
///     .on_release_error(|failure| eprintln!("{failure}"))
///     .build();
/// ```
#[must_use]
pub struct LocksBuilder<F: FenceToken = Fence> {
    backend: Box<dyn ErasedBackend<F>>,
    settings: Settings,
    observers: Observers,
}

impl<F: FenceToken> Locks<F> {
    /// Locks on this backend, with the default configuration.
    pub fn new(backend: impl LockBackend<Fence = F>) -> Self {
        Self::builder(backend).build()
    }

    /// Configures locks on this backend.
    pub fn builder(backend: impl LockBackend<Fence = F>) -> LocksBuilder<F> {
        LocksBuilder::new(backend)
    }
}

impl<F: FenceToken> LocksBuilder<F> {
    pub(crate) fn new(backend: impl LockBackend<Fence = F>) -> Self {
        Self {
            backend: Box::new(backend),
            settings: Settings {
                operation_timeout: DEFAULT_OPERATION_TIMEOUT,
                dispose_timeout: None,
                on_release_error: None,
                clock: LeaseClock::default(),
                wake_ups: true,
            },
            observers: Observers::default(),
        }
    }

    /// Bounds every operation. Default: 5 s.
    ///
    /// An operation that takes longer fails with `NetworkTimeout`.
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.settings.operation_timeout = timeout;
        self
    }

    /// Limits the release that a dropped guard starts. Default: the operation timeout.
    ///
    /// SyncGuard reports a release that takes longer as `NetworkTimeout` to
    /// [`on_release_error`](Self::on_release_error), and continues the release in the background.
    pub fn dispose_timeout(mut self, timeout: Duration) -> Self {
        self.settings.dispose_timeout = Some(timeout);
        self
    }

    /// Handles failed releases that no caller waits for: of a dropped guard, at the end of a section, and
    /// when the background stops retrying. Default: `tracing::warn!`, without identifiers.
    ///
    /// A lock that is gone already is no failure. SyncGuard catches a panic of the handler. A request can
    /// have its own handler: see [`LockRequest::on_release_error`].
    ///
    /// [`LockRequest::on_release_error`]: crate::LockRequest::on_release_error
    pub fn on_release_error(
        mut self,
        handler: impl Fn(&ReleaseFailure) + Send + Sync + 'static,
    ) -> Self {
        self.settings.on_release_error = Some(ReleaseErrorHandler::new(handler));
        self
    }

    /// Whether the store, if it can, wakes waiting callers when a key becomes free. Default: `true`.
    /// Without wake-ups they poll.
    pub fn wake_ups(mut self, wake_ups: bool) -> Self {
        self.settings.wake_ups = wake_ups;
        self
    }

    /// Adds an [`Observer`]. Default: none.
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers = self.observers.with(observer);
        self
    }

    /// Replaces the clock that measures leases on this side. It counts from any fixed point, never runs
    /// backwards, and must continue while the machine is suspended. For tests.
    pub fn monotonic_clock(mut self, now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.settings.clock = LeaseClock::from_fn(now);
        self
    }

    /// Makes the handle. It sends nothing.
    #[must_use]
    pub fn build(self) -> Locks<F> {
        Locks::on(Store::new(self.backend, self.settings, self.observers))
    }
}

impl<F: FenceToken> fmt::Debug for LocksBuilder<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocksBuilder")
            .field("backend", &self.backend)
            .field("settings", &self.settings)
            .field("observers", &self.observers)
            .finish()
    }
}
