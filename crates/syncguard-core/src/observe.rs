//! Hooks that observe a [`Locks`](crate::Locks): every operation, every wait, background releases, and
//! releases that failed.
//!
//! `syncguard-telemetry` turns these hooks into events, `tracing` and metrics. Implement
//! [`Observer`] for anything else.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use serde::{Serialize, Serializer};
use tokio::sync::Notify;

use crate::results::FailureReason;
use crate::{ErrorCode, HashId, LockError, LockId, LockKey, Ttl};

pub use crate::error::{Operation, WaitSummary};

/// Hooks for operations, waits, background releases and clock skew.
///
/// Register one by [`LocksBuilder::observe`](crate::LocksBuilder::observe) or
/// [`Locks::observed_by`](crate::Locks::observed_by). SyncGuard calls the methods inside the operation:
/// they must be quick and must not block. It catches a panic of a method.
///
/// Without an observer, SyncGuard computes nothing for one: it reads no further clock and hashes no key.
///
/// ```
/// # use std::sync::Arc;
/// # use std::sync::atomic::{AtomicU32, Ordering};
/// # use syncguard_core::Locks;
/// # use syncguard_memory::MemoryBackend;
/// use syncguard_core::observe::{Observer, WaitEnd};
///
/// #[derive(Default)]
/// struct Attempts(AtomicU32);
///
/// impl Observer for Attempts {
///     fn wait_ended(&self, wait: &WaitEnd<'_>) {
///         self.0.fetch_add(wait.summary.attempts, Ordering::Relaxed);
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
/// let attempts = Arc::new(Attempts::default());
/// let locks = Locks::builder(MemoryBackend::default()).observe(attempts.clone()).build();
/// let _guard = locks.lock("report:daily").await?;
/// assert_eq!(attempts.0.load(Ordering::Relaxed), 1);
/// # Ok(()) }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// An operation ended: it returned a result, it failed, or its future was dropped.
    ///
    /// SyncGuard calls it once for each operation, also for one with invalid arguments and for the release of a
    /// dropped guard. Each attempt of `lock` is an operation, and so is each renewal: an extend. Background
    /// retries of releases are not operations: see [`reclaim_ended`](Self::reclaim_ended).
    fn operation_ended(&self, operation: &OperationEnd<'_>) {
        let _ = operation;
    }

    /// A caller of `lock` began to wait for its key. If the key is free, the wait ends at once.
    fn wait_started(&self, wait: &WaitStart<'_>) {
        let _ = wait;
    }

    /// The wait of a caller of `lock` ended. Called once for each wait that began, also when its future is
    /// dropped.
    fn wait_ended(&self, wait: &WaitEnd<'_>) {
        let _ = wait;
    }

    /// A background release ended. It followed an acquire that was dropped or whose outcome is unknown, or
    /// a release that was dropped or failed.
    fn reclaim_ended(&self, reclaim: &ReclaimEnd<'_>) {
        let _ = reclaim;
    }

    /// A backend compared this machine's clock with the store's.
    fn clock_compared(&self, skew: &ClockSkew) {
        let _ = skew;
    }
}

/// An operation that ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OperationEnd<'a> {
    /// The backend's name.
    pub backend: &'static str,
    /// Which operation: acquire, release, extend, is_locked, lookup, list, or a maintenance operation.
    pub operation: Operation,
    /// The key, if the call or its guard knew it. Its text is sensitive.
    pub key: Option<&'a LockKey>,
    /// The lock id, if the call was given one or made one. Sensitive.
    pub lock_id: Option<&'a LockId>,
    /// The TTL of an acquire or extend.
    pub ttl: Option<Ttl>,
    /// How it ended.
    pub outcome: OperationOutcome,
    /// Time from the first poll of the call to its end.
    pub duration: Duration,
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationOutcome {
    /// The store replied, and applied the acquire, release or extend.
    Ok,
    /// An acquire found the key held.
    Locked,
    /// A release or extend found no such lock.
    NotHeld(Option<FailureReason>),
    /// It failed.
    Failed {
        /// The code of the error.
        code: ErrorCode,
        /// Whether the store may have applied it nonetheless.
        outcome_unknown: bool,
    },
    /// Its future was dropped before it ended, for example by a timeout around it or by a panic.
    Abandoned {
        /// Whether the store may have applied it nonetheless.
        outcome_unknown: bool,
    },
}

/// A wait that began.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WaitStart<'a> {
    /// The backend's name.
    pub backend: &'static str,
    /// The key. Its text is sensitive.
    pub key: &'a LockKey,
    /// How many callers of this process were ahead in the line.
    pub ahead: usize,
}

/// A wait that ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WaitEnd<'a> {
    /// The backend's name.
    pub backend: &'static str,
    /// The key. Its text is sensitive.
    pub key: &'a LockKey,
    /// How many attempts it made, and how long it waited.
    pub summary: WaitSummary,
    /// How it ended.
    pub outcome: WaitOutcome,
}

/// How a wait for a key ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitOutcome {
    /// The lock was acquired.
    Granted,
    /// It failed: `AcquisitionTimeout` at the timeout or after the last retry, `Aborted` if the caller's token was
    /// cancelled, else a failure of the store.
    Failed(ErrorCode),
    /// Its future was dropped.
    Abandoned,
}

/// A background release that ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReclaimEnd<'a> {
    /// The backend's name.
    pub backend: &'static str,
    /// The operation whose outcome was unknown: acquire or release.
    pub after: Operation,
    /// The lock id that was released. Sensitive.
    pub lock_id: &'a LockId,
    /// The result.
    pub result: ReclaimResult,
}

/// The result of a background release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReclaimResult {
    /// The lock was still there, and was released.
    Released,
    /// There was no lock to release.
    NotHeld,
    /// SyncGuard stopped retrying, because the store refused or did not reply: after an acquire for as long
    /// as the lock could last, after a release for an hour. If the lock still exists, it expires with its
    /// TTL.
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

/// A comparison of two clocks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockSkew {
    /// The backend's name.
    pub backend: &'static str,
    /// How far this machine's clock is ahead of the store's, in milliseconds; negative if behind.
    pub skew_ms: i64,
}

/// A failed release that no caller waits for.
///
/// The argument of release-error handlers: see
/// [`LocksBuilder::on_release_error`](crate::LocksBuilder::on_release_error). `Display` and `Debug` show no
/// raw identifier.
#[derive(Clone)]
pub struct ReleaseFailure {
    error: LockError,
    stage: ReleaseStage,
}

/// Where a release failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReleaseStage {
    /// The release of a dropped guard. The background retries it.
    Drop,
    /// The release at the end of a section that [`run`](crate::LockRequest::run) ran. The background
    /// retries it.
    SectionEnd,
    /// The background stopped retrying. The lock expires with its TTL.
    Background,
}

impl ReleaseStage {
    /// `drop`, `section-end` or `background`, for labels and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::SectionEnd => "section-end",
            Self::Background => "background",
        }
    }
}

impl fmt::Display for ReleaseStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ReleaseFailure {
    pub(crate) fn new(error: LockError, stage: ReleaseStage) -> Self {
        Self { error, stage }
    }

    /// The error. Its accessors return the raw key, if it is known, and the raw lock id.
    #[must_use]
    pub fn error(&self) -> &LockError {
        &self.error
    }

    /// Where the release failed.
    #[must_use]
    pub fn stage(&self) -> ReleaseStage {
        self.stage
    }

    /// Display hash of the key, if it is known. A release by lock id alone does not know it.
    #[must_use]
    pub fn key_hash(&self) -> Option<HashId> {
        self.error.key().map(LockKey::hash_id)
    }

    /// Display hash of the lock id.
    #[must_use]
    pub fn lock_id_hash(&self) -> Option<HashId> {
        self.error.lock_id().map(LockId::hash_id)
    }
}

impl fmt::Display for ReleaseFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.error, self.stage)
    }
}

impl fmt::Debug for ReleaseFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReleaseFailure")
            .field("stage", &self.stage)
            .field("error", &self.error)
            .finish()
    }
}

/// Handles failed releases that no caller waits for.
#[derive(Clone)]
pub(crate) struct ReleaseErrorHandler(Arc<dyn Fn(&ReleaseFailure) + Send + Sync>);

impl ReleaseErrorHandler {
    pub(crate) fn new(handler: impl Fn(&ReleaseFailure) + Send + Sync + 'static) -> Self {
        Self(Arc::new(handler))
    }

    pub(crate) fn call(&self, failure: &ReleaseFailure) {
        if catch_unwind(AssertUnwindSafe(|| (self.0)(failure))).is_err() {
            tracing::warn!(
                "the on_release_error handler panicked; the failed release is not reported elsewhere"
            );
        }
    }
}

impl fmt::Debug for ReleaseErrorHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReleaseErrorHandler")
    }
}

/// The observers of one handle. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Observers(Option<Arc<[Arc<dyn Observer>]>>);

impl Observers {
    #[must_use]
    pub(crate) fn with(&self, another: Arc<dyn Observer>) -> Self {
        Self(Some(self.iter().cloned().chain([another]).collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Observer>> {
        self.0.iter().flat_map(|observers| observers.iter())
    }

    pub(crate) fn notify(&self, event: impl Fn(&dyn Observer)) {
        self.iter()
            .for_each(|observer| contained(observer.as_ref(), &event));
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observers({})", self.iter().count())
    }
}

/// The observers of all handles on one store, while their handles exist.
#[derive(Default)]
pub(crate) struct Listeners {
    observers: Mutex<Vec<Weak<dyn Observer>>>,
    /// A test moved the clock.
    pub(crate) clock_moved: Notify,
}

impl Listeners {
    pub(crate) fn add(&self, observer: &Arc<dyn Observer>) {
        let observers = self.observers.lock();
        let mut observers = observers.unwrap_or_else(PoisonError::into_inner);
        observers.retain(|observer| observer.strong_count() > 0);
        observers.push(Arc::downgrade(observer));
    }

    pub(crate) fn notify(&self, event: impl Fn(&dyn Observer)) {
        // Not under the mutex: an observer may make another handle.
        let observers = self
            .observers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for observer in observers.iter().filter_map(Weak::upgrade) {
            contained(observer.as_ref(), &event);
        }
    }
}

fn contained(observer: &dyn Observer, event: impl Fn(&dyn Observer)) {
    if catch_unwind(AssertUnwindSafe(|| event(observer))).is_err() {
        tracing::warn!("a lock observer panicked; it missed this event");
    }
}

macro_rules! serialize_as_str {
    ($($name:ty),+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    )+};
}

serialize_as_str!(
    ReclaimResult,
    ReleaseStage,
    Operation,
    ErrorCode,
    FailureReason
);
