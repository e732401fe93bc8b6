//! [`Policy`]: what a backend's callers can rely on, beyond its store.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::managed::current_runtime;
use crate::observer::Observers;
use crate::{ErrorCode, LockBackend, LockError, Observer};

/// Deadline of one operation when none is given.
pub const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

type ReleaseErrorHandler = Arc<dyn Fn(&LockError) + Send + Sync>;

/// Deadlines, the handler of failed background releases, and the background work itself.
///
/// Clones share the background work.
#[derive(Clone)]
pub struct Policy {
    operation_timeout: Duration,
    dispose_timeout: Option<Duration>,
    on_release_error: Option<ReleaseErrorHandler>,
    observers: Observers,
    background: TaskTracker,
    clock: Clock,
}

impl Default for Policy {
    fn default() -> Self {
        let background = TaskTracker::new();
        // Closed, it still takes tasks; it is what makes waiting for them possible.
        background.close();
        Self {
            operation_timeout: DEFAULT_OPERATION_TIMEOUT,
            dispose_timeout: None,
            on_release_error: None,
            observers: Observers::default(),
            background,
            clock: Clock::default(),
        }
    }
}

impl Policy {
    /// The defaults: 5 s for an operation, no separate bound for a dropped guard's release, and
    /// failures of background releases logged by `tracing::warn!` without identifiers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bounds every operation. Default: 5 s.
    ///
    /// An operation that takes longer fails with `NetworkTimeout`.
    #[must_use]
    pub fn with_operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = timeout;
        self
    }

    /// Bounds the release that a dropped guard starts. Default: the operation timeout alone.
    ///
    /// A release that takes longer is reported as `NetworkTimeout` to the handler of
    /// [`with_on_release_error`](Self::with_on_release_error), and goes on in the background.
    #[must_use]
    pub fn with_dispose_timeout(mut self, timeout: Duration) -> Self {
        self.dispose_timeout = Some(timeout);
        self
    }

    /// Called when the release of a dropped guard or at the end of [`lock()`](crate::lock()) fails,
    /// and when its repetition in the background is given up. Default: a warning.
    ///
    /// A lock that was gone already is no failure. A panic in the handler is contained.
    #[must_use]
    pub fn with_on_release_error(
        mut self,
        handler: impl Fn(&LockError) + Send + Sync + 'static,
    ) -> Self {
        self.on_release_error = Some(Arc::new(handler));
        self
    }

    /// Adds an observer: see [`ManagedBackend::observed_by`]. Default: none.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers = self.observers.with(observer);
        self
    }

    /// Replaces the clock that guards are watched by. It counts from any fixed point, never runs
    /// backwards, and must go on while the machine is suspended. Meant for tests.
    #[must_use]
    pub fn with_monotonic_clock(
        mut self,
        now: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Self {
        self.clock = Clock::from_fn(now);
        self
    }

    /// The deadline of one operation.
    #[must_use]
    pub fn operation_timeout(&self) -> Duration {
        self.operation_timeout
    }

    /// How many background releases are under way.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.background.len()
    }

    pub(crate) fn observers(&self) -> &Observers {
        &self.observers
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn dispose_timeout(&self) -> Option<Duration> {
        self.dispose_timeout
    }

    pub(crate) fn spawn(&self, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.background.spawn_on(work, runtime));
    }

    pub(crate) fn report_release_error(&self, error: &LockError) {
        match &self.on_release_error {
            None => tracing::warn!(
                code = %error.code(),
                outcome_unknown = error.outcome_unknown(),
                "a lock could not be given back; unless a repetition can, it ends with its TTL"
            ),
            Some(handler) => {
                if catch_unwind(AssertUnwindSafe(|| handler(error))).is_err() {
                    tracing::warn!("the on_release_error handler panicked");
                }
            }
        }
    }

    async fn drain(&self, timeout: Duration) -> Result<(), LockError> {
        current_runtime()?;
        let drained = tokio::time::timeout(timeout, self.background.wait()).await;
        drained.map_err(|_| {
            LockError::new(
                ErrorCode::NetworkTimeout,
                format!(
                    "background releases still pending: {}; the TTL ends those that never succeed",
                    self.background.len()
                ),
            )
        })
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("operation_timeout", &self.operation_timeout)
            .field("dispose_timeout", &self.dispose_timeout)
            .field("observers", &self.observers)
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

/// A backend that keeps the promises of a [`Policy`]: what callers hold and helpers take.
///
/// [`Managed`](crate::Managed) makes one of any [`LockBackend`]; decorators pass the policy of
/// what they wrap through. Do not implement it for a bare store: its operations would have no
/// deadline, and abandoned acquires would keep their locks.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a managed backend",
    note = "wrap a bare store: `Managed::new(store)` gives its operations deadlines"
)]
pub trait ManagedBackend: LockBackend {
    /// The policy in force.
    fn policy(&self) -> &Policy;

    /// The same backend, telling one more [`Observer`] of waits for its keys and of what is reclaimed
    /// after its calls. Clones that were made before it tell nothing.
    #[must_use]
    fn observed_by(self, observer: Arc<dyn Observer>) -> Self;

    /// Waits until all background releases are done: those of dropped guards and of abandoned
    /// acquires. Call it before the process or its runtime ends.
    ///
    /// # Errors
    /// `NetworkTimeout` if some were still pending after `timeout`; they go on. `Internal` outside a
    /// Tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, not the releases.
    fn drain(&self, timeout: Duration) -> impl Future<Output = Result<(), LockError>> + Send {
        self.policy().drain(timeout)
    }
}
