//! Requests to a [`LockBackend`](super::LockBackend). They can grow; each has a deadline.

use tokio::time::Instant;

use crate::backend::ListPosition;
use crate::key::KeyPrefix;
use crate::{LockId, LockKey, Ttl};

/// How a lock is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// The live lock on this key, of any holder.
    Key(&'a LockKey),
    /// The live lock that this id holds.
    Id(&'a LockId),
}

macro_rules! requests {
    ($(
        $(#[$about:meta])*
        $name:ident $(<$life:lifetime>)? { $($(#[$doc:meta])* $field:ident: $type:ty,)* }
    )+) => {$(
        $(#[$about])*
        #[derive(Debug, Clone)]
        #[non_exhaustive]
        pub struct $name $(<$life>)? {
            $($(#[$doc])* pub $field: $type,)*
            /// When the caller stops waiting for the result, by Tokio's clock. Send nothing later: return
            /// `NetworkTimeout`, outcome known.
            pub deadline: Instant,
        }

        impl $(<$life>)? $name $(<$life>)? {
            /// A request. Suites and wrappers make them; applications use [`Locks`](crate::Locks).
            #[must_use]
            pub const fn new($($field: $type,)* deadline: Instant) -> Self {
                Self { $($field,)* deadline }
            }
        }
    )+};
}

requests! {
    /// The request of [`LockBackend::acquire`](super::LockBackend::acquire).
    AcquireRequest<'a> {
        /// What to lock.
        key: &'a LockKey,
        /// The id that will hold the lock. Each acquire has a fresh one, unless a driver delivers a request
        /// twice.
        id: &'a LockId,
        /// For how long.
        ttl: Ttl,
    }

    /// The request of [`LockBackend::release`](super::LockBackend::release).
    ReleaseRequest<'a> {
        /// Whose lock to release.
        id: &'a LockId,
    }

    /// The request of [`LockBackend::extend`](super::LockBackend::extend).
    ExtendRequest<'a> {
        /// Whose lock to extend.
        id: &'a LockId,
        /// The new remaining time, counted from now.
        ttl: Ttl,
    }

    /// The request of [`LockBackend::lookup_raw`](super::LockBackend::lookup_raw).
    LookupRequest<'a> {
        /// The key or the lock id.
        by: Lookup<'a>,
    }

    /// The request of [`LockBackend::is_locked`](super::LockBackend::is_locked).
    IsLockedRequest<'a> {
        /// The key.
        key: &'a LockKey,
    }

    /// The request of [`LockBackend::watch`](super::LockBackend::watch).
    WatchRequest<'a> {
        /// The key.
        key: &'a LockKey,
    }

    /// The request of [`LockBackend::list`](super::LockBackend::list).
    ListRequest<'a> {
        /// List only locks whose key begins with this.
        prefix: &'a KeyPrefix,
        /// Where the previous page ended; `None` for the first page.
        after: Option<&'a ListPosition>,
        /// The most locks of the page: 1 to [`MAX_PAGE_SIZE`](super::MAX_PAGE_SIZE).
        limit: u32,
    }

    /// The request of [`LockBackend::preflight`](super::LockBackend::preflight).
    PreflightRequest {}

    /// The request of [`LockBackend::purge_expired`](super::LockBackend::purge_expired).
    PurgeRequest {
        /// The most locks that one call deletes.
        limit: u32,
    }

    /// The request of [`LockBackend::close`](super::LockBackend::close).
    CloseRequest {}
}
