//! For authors of backends: the [`LockBackend`] trait, its requests and answers, and the rules that
//! every store follows.
//!
//! Applications hold a [`Locks`](crate::Locks) and rarely need this module.

mod answers;
mod capabilities;
mod contract;
pub(crate) mod erased;
mod forward;
mod refusals;
mod reporter;
mod requests;
mod throttle;
mod watch;
mod watchers;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::{ExtendResult, Finding, LockError, LockInfoDebug, ReleaseResult};

pub use crate::backend::answers::{AcquireResult, Grant, ListPage, ListPosition};
pub use crate::backend::capabilities::{Capabilities, TimeAuthority};
pub use crate::backend::contract::{Clause, clauses};
pub use crate::backend::refusals::Refusals;
pub use crate::backend::reporter::Reporter;
pub use crate::backend::requests::{
    AcquireRequest, CloseRequest, ExtendRequest, IsLockedRequest, ListRequest, Lookup,
    LookupRequest, PreflightRequest, PurgeRequest, ReleaseRequest, WatchRequest,
};
pub use crate::backend::throttle::{CLEANUP_GUARD_MS, Throttle};
pub use crate::backend::watch::{Watch, WatchKey};
pub use crate::backend::watchers::{Watcher, Watchers};
pub use crate::clock::monotonic_now;
pub use crate::error::Redacted;
pub use crate::fence::{FENCE_DIGITS, FENCE_MAX, FENCE_WARN, FenceToken, NoFence, format_fence};
pub use crate::key::MAX_KEY_LENGTH_BYTES;
pub use crate::lock_id::LOCK_ID_LENGTH;
pub use crate::results::FailureReason;
pub use crate::storage_key::{
    make_fence_key, make_hashed_storage_key, make_storage_key, prefix_end,
};
pub use crate::time::{TIME_TOLERANCE_MS, is_live};

/// Default of [`operation_timeout`](crate::LocksBuilder::operation_timeout).
pub const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// The greatest [page size](crate::list::ListLocks::page_size) of a listing.
pub const MAX_PAGE_SIZE: u32 = 1_000;

/// A store of locks: typed calls, each one atomic step in the store.
///
/// [`Locks`](crate::Locks) parses all arguments first. It also adds what every store needs: deadlines,
/// reclaiming, cancellation, fence warnings, telemetry, context on errors. An implementation translates
/// calls and maps errors, no more.
///
/// # Contract
///
#[doc = include_str!("backend/contract.md")]
///
/// # Implementing a backend
///
/// Implement the five required methods, pass the type to [`Locks::new`](crate::Locks::new), and run
/// the suite of the `syncguard-conformance` crate. The `syncguard-memory` crate is the contract in
/// its shortest form. Beyond the clauses:
///
/// - Decide liveness with [`is_live`] and [`TIME_TOLERANCE_MS`], or pass that constant to the store.
/// - Make names in the store with [`make_storage_key`] and [`make_fence_key`].
/// - Mark an error [`outcome_unknown`](LockError::outcome_unknown) unless the store certainly did
///   not apply the call. A call that was never sent has a known outcome.
/// - Do not retry, and do not wait longer than the request's `deadline`: the caller has left by then. A
///   call that a driver has queued must not take effect after its future is dropped, unless a later release
///   with the same id undoes it.
/// - Implement [`preflight`](Self::preflight) if the store can be configured wrongly.
///
/// # Sharing
///
/// One value serves all clones of a `Locks`, from many tasks at once. An `Arc` of a backend is a
/// backend too. A wrapper of another backend writes the calls that it does not change with
/// [`forward_calls!`](crate::forward_calls).
///
/// # Cancel safety
///
/// Callers may drop a future at any point. The outcome of a call in flight is then unknown; `Locks`
/// releases in the background whatever it may have acquired.
pub trait LockBackend: fmt::Debug + Send + Sync + 'static {
    /// [`Fence`](crate::Fence) or [`NoFence`].
    type Fence: FenceToken;

    /// What this backend is and can do. It never changes.
    fn capabilities(&self) -> Capabilities;

    /// Acquires the lock on `key` for `id`, if it is free. A single attempt.
    ///
    /// # Errors
    /// A failure of the store. Contention is [`AcquireResult::Locked`].
    fn acquire(
        &self,
        request: AcquireRequest<'_>,
    ) -> impl Future<Output = Result<AcquireResult<Self::Fence>, LockError>> + Send;

    /// Releases the lock that `id` holds.
    ///
    /// # Errors
    /// A failure of the store. A lock that is gone is [`ReleaseResult::NotHeld`].
    fn release(
        &self,
        request: ReleaseRequest<'_>,
    ) -> impl Future<Output = Result<ReleaseResult, LockError>> + Send;

    /// Replaces the remaining time of the lock that `id` holds.
    ///
    /// # Errors
    /// A failure of the store. A lock that is gone is [`ExtendResult::NotHeld`].
    fn extend(
        &self,
        request: ExtendRequest<'_>,
    ) -> impl Future<Output = Result<ExtendResult, LockError>> + Send;

    /// The live lock on a key or of an id, with raw identifiers.
    ///
    /// # Errors
    /// A failure of the store.
    fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> impl Future<Output = Result<Option<LockInfoDebug<Self::Fence>>, LockError>> + Send;

    /// Whether anyone holds `key`. Default: by [`lookup_raw`](Self::lookup_raw).
    ///
    /// # Errors
    /// A failure of the store.
    fn is_locked(
        &self,
        request: IsLockedRequest<'_>,
    ) -> impl Future<Output = Result<bool, LockError>> + Send {
        let lookup = LookupRequest::new(Lookup::Key(request.key), request.deadline);
        async move { Ok(self.lookup_raw(lookup).await?.is_some()) }
    }

    /// Watches a key for a caller that waits for it. Default: `None`, so that the caller polls.
    ///
    /// [`Watch::changed`] resolves when any client may have released the key. It need not resolve when a
    /// lease expires: the result of the acquire says when that will be. A missed wake-up costs time, never
    /// correctness: the caller polls as well.
    ///
    /// `None`: the store has no wake-ups, now or ever.
    ///
    /// # Errors
    /// A failure of the store. The caller polls, and tries again later.
    fn watch(
        &self,
        request: WatchRequest<'_>,
    ) -> impl Future<Output = Result<Option<Watch>, LockError>> + Send {
        let _ = request;
        async { Ok(None) }
    }

    /// Lists live locks, a page at a time. Default: `None`, which says that this backend cannot list.
    ///
    /// A call reads a bounded number of entries. A page with few locks, or with none, may still have a next
    /// one. Leave out values that are no locks, and locks of another prefix of the store. `Locks` passes a
    /// [position](ListPage::next) of the same prefix.
    ///
    /// # Errors
    /// A failure of the store.
    fn list(
        &self,
        request: ListRequest<'_>,
    ) -> impl Future<Output = Result<Option<ListPage<Self::Fence>>, LockError>> + Send {
        let _ = request;
        async { Ok(None) }
    }

    /// Receives a [`Reporter`] for events outside any call, such as clock skew. Default: it reports
    /// nothing.
    ///
    /// [`Locks`](crate::Locks) calls this once for each handle that is built over the backend.
    fn attach(&self, reporter: Reporter) {
        drop(reporter);
    }

    /// Checks how the store is configured. Default: no findings.
    ///
    /// It may do more than read, but it changes no lock, no fence counter and no setting of the store.
    /// Report a missing permission as a finding, not as an error.
    ///
    /// # Errors
    /// A failure that would fail every operation, such as a server that cannot be reached or a wrong
    /// password, with the same code.
    fn preflight(
        &self,
        request: PreflightRequest,
    ) -> impl Future<Output = Result<Vec<Finding>, LockError>> + Send {
        let _ = request;
        async { Ok(Vec::new()) }
    }

    /// Deletes up to `limit` expired locks, never a fence counter, and returns how many it deleted. Fewer
    /// than `limit` means that no lock is left that expired more than two seconds ago. Default: 0, for
    /// stores that delete expired locks themselves.
    ///
    /// # Errors
    /// A failure of the store.
    fn purge_expired(
        &self,
        request: PurgeRequest,
    ) -> impl Future<Output = Result<u64, LockError>> + Send {
        let _ = request;
        async { Ok(0) }
    }

    /// Closes the connections that the backend itself opened, once the calls in flight have ended. Later
    /// calls fail with `ServiceUnavailable`. Default: nothing to close.
    ///
    /// # Errors
    /// A failure to close in an orderly way; the connections are closed nonetheless.
    fn close(&self, request: CloseRequest) -> impl Future<Output = Result<(), LockError>> + Send {
        let _ = request;
        async { Ok(()) }
    }
}

/// A backend that is shared with others.
#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend> LockBackend for Arc<B> {
    type Fence = B::Fence;

    crate::forward_calls! { |shared| &**shared =>
        capabilities acquire release extend lookup_raw is_locked watch list attach preflight purge_expired close
    }
}
