//! The answer of a [`LockBackend`](super::LockBackend) to an acquire.

use std::time::Duration;

use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use crate::backend::FenceToken;
use crate::{Fence, LockId};

/// A lock that was granted. All of it comes from the store's authority.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant<F = Fence> {
    /// The id by which the lock is extended and released.
    pub lock_id: LockId,
    /// When the lease ends: Unix milliseconds by the store's clock. Never compare it with the local
    /// clock; ask the guard for what remains.
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

/// The answer to an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum AcquireResult<F = Fence> {
    /// The id that asked holds the lock.
    Acquired(Grant<F>),
    /// Someone else holds the key. Nothing was changed.
    #[non_exhaustive]
    Locked {
        /// After how long *this store* would grant the key if nothing happens until then, tolerance
        /// included where it applies. Never zero; `None` if the store does not know.
        free_in: Option<Duration>,
    },
}

impl<F> AcquireResult<F> {
    /// Someone else holds the key, without an estimate of how long.
    pub const fn locked() -> Self {
        Self::Locked { free_in: None }
    }

    /// Someone else holds the key, for this long at most if nothing happens until then.
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

/// As the specification has it: `{"ok": true, "lockId", "expiresAtMs", "fence"}`, without fence
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
