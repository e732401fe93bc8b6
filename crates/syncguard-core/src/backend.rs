//! [`LockBackend`]: the contract between this crate and a store.

use std::fmt;
use std::future::Future;

use crate::{
    AcquireResult, ExtendResult, FenceToken, LockError, LockId, LockInfo, LockInfoDebug, LockKey,
    ReleaseResult, Ttl,
};

/// Whose clock decides when a lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeAuthority {
    /// The store's: clients' clocks do not matter.
    Server,
    /// Each client's own: clients must be kept in step.
    Client,
}

/// What a backend is and can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's name, such as `redis`, for labels and reports.
    pub backend: &'static str,
    /// Whether grants carry fences.
    pub supports_fencing: bool,
    /// Whose clock decides.
    pub time_authority: TimeAuthority,
}

impl Capabilities {
    /// Describes a backend with fence type `F`.
    #[must_use]
    pub const fn new<F: FenceToken>(backend: &'static str, time_authority: TimeAuthority) -> Self {
        Self {
            backend,
            supports_fencing: F::SUPPORTED,
            time_authority,
        }
    }
}

/// How a lock is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// The live lock on this key, whoever holds it.
    Key(&'a LockKey),
    /// The live lock that this id holds.
    Id(&'a LockId),
}

/// A store of locks: five typed calls, each one atomic step.
///
/// Arguments are parsed before they get here, and everything that all stores do alike is done
/// around this trait by [`Managed`](crate::Managed): deadlines, giving back what an abandoned
/// acquire took, fence warnings, context on errors. An implementation translates calls and maps
/// errors, no more. Callers hold a [`ManagedBackend`](crate::ManagedBackend).
///
/// # Contract
///
#[doc = include_str!("contract.md")]
///
/// # Implementing a backend
///
/// Implement the five calls, wrap the type in [`Managed::new`](crate::Managed::new), and run the
/// suite of the `syncguard-conformance` crate. The `syncguard-memory` crate is the contract in its
/// shortest form. Beyond the clauses:
///
/// - Decide liveness with [`is_live`](crate::is_live) and
///   [`TIME_TOLERANCE_MS`](crate::TIME_TOLERANCE_MS), or pass that constant to the store.
/// - Name things with [`make_storage_key`](crate::make_storage_key) and
///   [`make_fence_key`](crate::make_fence_key).
/// - Mark an error [`outcome_unknown`](LockError::outcome_unknown) unless the store certainly did
///   not apply the call.
/// - Do not retry, do not time out: the caller does. Whatever a driver queues must not take effect
///   after the future is dropped, or must be undone by a release with the same id that follows it.
/// - Implement [`Preflight`](crate::Preflight) if the store can be set up wrongly.
///
/// # Clone
///
/// Clones share one client and are cheap.
///
/// # Cancel safety
///
/// Every future may be dropped at any point. What the store makes of a call that was under way is
/// then unknown, and it is [`Managed`](crate::Managed) that settles it.
pub trait LockBackend: Clone + fmt::Debug + Send + Sync + 'static {
    /// [`Fence`](crate::Fence) or [`NoFence`](crate::NoFence).
    type Fence: FenceToken;

    /// What this backend is and can do.
    fn capabilities(&self) -> Capabilities;

    /// How far this machine's clock was ahead of the store's when they were last compared, in
    /// milliseconds; negative if it was behind. `None` where they are not compared, which is the
    /// default: under the store's own time nothing depends on it.
    fn clock_skew_ms(&self) -> Option<i64> {
        None
    }

    /// Takes the lock on `key` for `id`, if it is free.
    ///
    /// # Errors
    /// A failure of the store. Contention is [`AcquireResult::Locked`].
    fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> impl Future<Output = Result<AcquireResult<Self::Fence>, LockError>> + Send;

    /// Gives back the lock that `id` holds.
    ///
    /// # Errors
    /// A failure of the store. A lock that is gone is [`ReleaseResult::NotHeld`].
    fn release(&self, id: &LockId)
    -> impl Future<Output = Result<ReleaseResult, LockError>> + Send;

    /// Replaces the remaining time of the lock that `id` holds.
    ///
    /// # Errors
    /// A failure of the store. A lock that is gone is [`ExtendResult::NotHeld`].
    fn extend(
        &self,
        id: &LockId,
        ttl: Ttl,
    ) -> impl Future<Output = Result<ExtendResult, LockError>> + Send;

    /// Whether `key` is held by anyone.
    ///
    /// # Errors
    /// A failure of the store.
    fn is_locked(&self, key: &LockKey) -> impl Future<Output = Result<bool, LockError>> + Send;

    /// The live lock on a key or of an id, with raw identifiers.
    ///
    /// # Errors
    /// A failure of the store.
    fn lookup_raw(
        &self,
        by: Lookup<'_>,
    ) -> impl Future<Output = Result<Option<LockInfoDebug<Self::Fence>>, LockError>> + Send;

    /// The live lock on a key or of an id, with hashes in place of identifiers.
    ///
    /// For diagnostics, never to decide whether to write: see [`owns`](crate::owns()).
    ///
    /// # Errors
    /// A failure of the store.
    fn lookup(
        &self,
        by: Lookup<'_>,
    ) -> impl Future<Output = Result<Option<LockInfo<Self::Fence>>, LockError>> + Send {
        async move { Ok(self.lookup_raw(by).await?.map(|info| info.sanitized())) }
    }
}
