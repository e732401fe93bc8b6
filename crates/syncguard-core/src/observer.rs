//! [`Observer`]: is told of what no single call shows.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::{ErrorCode, Operation, WaitSummary};

/// Is told of what no single call of a backend shows: how long callers of [`lock()`](crate::lock())
/// wait, and what the background finds after calls that may have left a lock behind.
///
/// It is attached by [`ManagedBackend::observed_by`](crate::ManagedBackend::observed_by), which
/// `syncguard-telemetry` does for its metrics. Methods are called inside the operation: they must be
/// quick and must not block. A panic in one is contained.
///
/// ```
/// # use std::sync::Arc;
/// # use std::sync::atomic::{AtomicU32, Ordering};
/// # use syncguard_core::{LockOptions, ManagedBackend, Observer, WaitEnd, WaitSummary, lock};
/// # use syncguard_memory::MemoryBackend;
/// #[derive(Default)]
/// struct Attempts(AtomicU32);
///
/// impl Observer for Attempts {
///     fn wait_ended(&self, wait: WaitSummary, _: WaitEnd) {
///         self.0.fetch_add(wait.attempts, Ordering::Relaxed);
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
/// let attempts = Arc::new(Attempts::default());
/// let backend = MemoryBackend::default().observed_by(attempts.clone());
/// lock(&backend, "report:daily", LockOptions::new(), async |_| {}).await?;
/// assert_eq!(attempts.0.load(Ordering::Relaxed), 1);
/// # Ok(()) }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// A caller of [`lock()`](crate::lock()) makes its first attempt.
    fn wait_began(&self) {}

    /// The wait of such a caller is over. Called once for each that began, also when its future is
    /// dropped.
    fn wait_ended(&self, wait: WaitSummary, end: WaitEnd) {
        let _ = (wait, end);
    }

    /// The background has settled what a call of this operation may have left in the store: an
    /// acquire that was dropped or whose outcome is unknown, or a release that was dropped or failed
    /// with whatever error.
    fn reclaimed(&self, after: Operation, result: ReclaimResult) {
        let _ = (after, result);
    }
}

/// How the wait of [`lock()`](crate::lock()) for its key ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitEnd {
    /// The lock was taken.
    Granted,
    /// It failed: `AcquisitionTimeout` where the key stayed held, `Aborted` where the caller's token
    /// was cancelled, else a failure of the store.
    Failed(ErrorCode),
    /// Its future was dropped.
    Abandoned,
}

/// What reclaiming came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReclaimResult {
    /// The lock was still there, and was given back.
    Released,
    /// There was none.
    NotHeld,
    /// The store refused, or did not answer: after an acquire for as long as the lock could last,
    /// after a release for an hour. A lock that is still there ends with its TTL.
    GivenUp,
}

impl ReclaimResult {
    /// `released`, `not-held` or `given-up`, for labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::NotHeld => "not-held",
            Self::GivenUp => "given-up",
        }
    }
}

/// Those who are told. Cheap to clone: every acquire does.
#[derive(Clone, Default)]
pub(crate) struct Observers(Option<Arc<[Arc<dyn Observer>]>>);

impl Observers {
    #[must_use]
    pub(crate) fn with(self, another: Arc<dyn Observer>) -> Self {
        let all = self
            .0
            .iter()
            .flat_map(|observers| observers.iter().cloned());
        Self(Some(all.chain([another]).collect()))
    }

    pub(crate) fn tell(&self, what: impl Fn(&dyn Observer)) {
        for observer in self.0.iter().flat_map(|observers| observers.iter()) {
            if catch_unwind(AssertUnwindSafe(|| what(observer.as_ref()))).is_err() {
                tracing::warn!("an observer of a lock backend panicked");
            }
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.as_ref().map_or(0, |observers| observers.len());
        write!(f, "Observers({count})")
    }
}
