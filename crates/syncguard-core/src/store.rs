//! [`Store`]: the store of a [`Locks`](crate::Locks), its settings and its observers.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::erased::ErasedBackend;
use crate::backend::{Capabilities, FenceToken, Reporter};
use crate::clock::LeaseClock;
use crate::observe::{
    Listeners, Observer, Observers, ReleaseErrorHandler, ReleaseFailure, ReleaseStage,
};

/// A store, and the observers of one handle: what a call needs. A clone shares both.
#[derive(Clone)]
pub(crate) struct Store<F: FenceToken> {
    opened: Arc<Opened<F>>,
    pub(crate) observers: Observers,
}

/// What all handles on one store share.
pub(crate) struct Opened<F: FenceToken> {
    pub(crate) backend: Box<dyn ErasedBackend<F>>,
    pub(crate) capabilities: Capabilities,
    /// Different from that of every other store of this process.
    pub(crate) number: u64,
    pub(crate) settings: Settings,
    pub(crate) background: TaskTracker,
    /// Cancelled by `close`.
    pub(crate) closed: CancellationToken,
    pub(crate) listeners: Arc<Listeners>,
}

/// What was configured.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) operation_timeout: Duration,
    pub(crate) dispose_timeout: Option<Duration>,
    pub(crate) on_release_error: Option<ReleaseErrorHandler>,
    pub(crate) clock: LeaseClock,
    pub(crate) wake_ups: bool,
}

impl<F: FenceToken> Store<F> {
    pub(crate) fn new(
        backend: Box<dyn ErasedBackend<F>>,
        settings: Settings,
        observers: Observers,
    ) -> Self {
        static STORES: AtomicU64 = AtomicU64::new(0);
        let capabilities = backend.capabilities();
        let listeners = Arc::<Listeners>::default();
        for observer in observers.iter() {
            listeners.add(observer);
        }
        backend.attach(Reporter::new(capabilities.backend, &listeners));
        let background = TaskTracker::new();
        // Only a closed tracker can be waited for; it still accepts tasks.
        background.close();
        let opened = Opened {
            backend,
            capabilities,
            number: STORES.fetch_add(1, Ordering::Relaxed),
            settings,
            background,
            closed: CancellationToken::new(),
            listeners,
        };
        Self {
            opened: Arc::new(opened),
            observers,
        }
    }

    /// The same store with one more observer.
    pub(crate) fn observed_by(&self, observer: Arc<dyn Observer>) -> Self {
        self.listeners.add(&observer);
        Self {
            opened: Arc::clone(&self.opened),
            observers: self.observers.with(observer),
        }
    }

    /// The time of the lease clock.
    pub(crate) fn now(&self) -> Duration {
        self.settings.clock.now()
    }

    /// Runs work in the background that [`drain`](crate::Locks::drain) waits for.
    pub(crate) fn spawn(&self, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.background.spawn_on(work, runtime));
    }

    /// Reports a failed release to the request's handler, or else to the configured one.
    pub(crate) fn report(&self, failure: &ReleaseFailure, handler: Option<&ReleaseErrorHandler>) {
        match handler.or(self.settings.on_release_error.as_ref()) {
            Some(handler) => handler.call(failure),
            None => tracing::warn!(
                code = %failure.error().code(),
                outcome_unknown = failure.error().outcome_unknown(),
                stage = %failure.stage(),
                "failed to release lock; {}",
                match failure.stage() {
                    ReleaseStage::Background => "no further retry; it expires with its TTL",
                    _ => "the background retries; if that fails, it expires with its TTL",
                }
            ),
        }
    }
}

impl<F: FenceToken> Deref for Store<F> {
    type Target = Opened<F>;
    fn deref(&self) -> &Opened<F> {
        &self.opened
    }
}
