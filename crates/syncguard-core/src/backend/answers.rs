//! The answers of a [`LockBackend`](super::LockBackend) to an acquire and to a listing.

use std::fmt;
use std::time::Duration;

use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use crate::backend::FenceToken;
use crate::{Fence, LockId, LockInfoDebug};

/// A lock that was granted. Every field comes from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant<F = Fence> {
    /// The id by which the lock is extended and released.
    pub lock_id: LockId,
    /// When the lease ends: Unix milliseconds by the store's clock. Never compare it with the local clock:
    /// ask the guard for the remaining time.
    pub expires_at_ms: i64,
    /// The fencing token.
    pub fence: F,
}

impl<F> Grant<F> {
    /// The grant of a store.
    #[must_use]
    pub const fn new(lock_id: LockId, expires_at_ms: i64, fence: F) -> Self {
        Self {
            lock_id,
            expires_at_ms,
            fence,
        }
    }
}

/// The result of an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum AcquireResult<F = Fence> {
    /// The id that asked holds the lock.
    Acquired(Grant<F>),
    /// Someone else holds the key. Nothing was changed.
    #[non_exhaustive]
    Locked {
        /// The time from now until *this store* will grant the key, if nobody releases or extends the lock
        /// before. It includes the tolerance where the store has one. Never zero; `None` if the store does not
        /// know.
        free_in: Option<Duration>,
    },
}

impl<F> AcquireResult<F> {
    /// Someone else holds the key, without an estimate of how long.
    pub const fn locked() -> Self {
        Self::Locked { free_in: None }
    }

    /// Someone else holds the key, for at most this long unless they extend the lease.
    pub const fn locked_for(free_in: Duration) -> Self {
        Self::Locked {
            free_in: Some(free_in),
        }
    }

    /// The grant, if there is one.
    pub fn granted(self) -> Option<Grant<F>> {
        match self {
            Self::Acquired(grant) => Some(grant),
            Self::Locked { .. } => None,
        }
    }

    /// Whether someone else holds the key.
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Locked { .. })
    }
}

/// As in the specification: `{"ok": true, "lockId", "expiresAtMs", "fence"}`, without fence
/// where there is none, or `{"ok": false, "reason": "locked"}`. The lock id is raw.
impl<F: FenceToken> Serialize for AcquireResult<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Acquired(grant) => {
                let fields = if F::SUPPORTED { 4 } else { 3 };
                let mut out = serializer.serialize_struct("AcquireResult", fields)?;
                out.serialize_field("ok", &true)?;
                out.serialize_field("lockId", grant.lock_id.as_str())?;
                out.serialize_field("expiresAtMs", &grant.expires_at_ms)?;
                if F::SUPPORTED {
                    out.serialize_field("fence", &grant.fence)?;
                }
                out.end()
            }
            Self::Locked { .. } => {
                let mut out = serializer.serialize_struct("AcquireResult", 2)?;
                out.serialize_field("ok", &false)?;
                out.serialize_field("reason", "locked")?;
                out.end()
            }
        }
    }
}

/// A page of live locks: the answer to a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListPage<F: FenceToken = Fence> {
    /// The locks, each once.
    pub locks: Vec<LockInfoDebug<F>>,
    /// Where the next page begins; `None` at the end of the listing.
    pub next: Option<ListPosition>,
    /// Whether a later page may list a lock again.
    pub may_repeat: bool,
}

impl<F: FenceToken> ListPage<F> {
    /// A page of a listing that lists each lock once.
    #[must_use]
    pub const fn new(locks: Vec<LockInfoDebug<F>>, next: Option<ListPosition>) -> Self {
        Self {
            locks,
            next,
            may_repeat: false,
        }
    }

    /// A page of a listing whose later pages may list a lock again.
    #[must_use]
    pub const fn repeating(locks: Vec<LockInfoDebug<F>>, next: Option<ListPosition>) -> Self {
        Self {
            locks,
            next,
            may_repeat: true,
        }
    }
}

/// Where a page of a listing ended, in the backend's own form: a key, or a cursor of the store.
///
/// It never leaves the process. `Debug` does not show it, because it can contain a key.
#[derive(Clone, PartialEq, Eq)]
pub struct ListPosition(String);

impl ListPosition {
    /// A position.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// What the backend wrote.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ListPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ListPosition")
    }
}
