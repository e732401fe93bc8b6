//! What operations answer when nothing failed.

use std::fmt;

use serde::Serialize;

use crate::{Fence, FenceToken, HashId, LockId, LockKey, hash_key};

/// A lock that was granted. All of it comes from the store's authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant<F = Fence> {
    /// The id by which the lock is extended and released.
    pub lock_id: LockId,
    /// When the lease ends: Unix milliseconds by the store's clock. Do not compare it with the
    /// local clock; ask the guard for what remains.
    pub expires_at_ms: i64,
    /// The fencing token.
    pub fence: F,
}

/// The answer to an acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum AcquireResult<F = Fence> {
    /// The lock is held by the id that asked.
    Acquired(Grant<F>),
    /// Someone else holds the key. Nothing was changed.
    Locked,
}

impl<F> AcquireResult<F> {
    /// The grant, if there is one.
    pub fn granted(self) -> Option<Grant<F>> {
        match self {
            Self::Acquired(grant) => Some(grant),
            Self::Locked => None,
        }
    }

    /// Whether someone else holds the key.
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Locked)
    }
}

/// Why a release or extend found nothing, where the store could tell at no cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureReason {
    /// The lease had run out.
    Expired,
    /// There is no such lock, or no longer.
    NotFound,
}

impl FailureReason {
    /// The reason as telemetry spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::NotFound => "not-found",
        }
    }
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ReleaseResult {
    /// This call freed the key.
    Released,
    /// The id holds nothing: released before, expired, or never granted.
    NotHeld {
        /// For telemetry; do not branch on it.
        reason: Option<FailureReason>,
    },
}

impl ReleaseResult {
    /// Whether this call freed the key.
    #[must_use]
    pub fn is_released(&self) -> bool {
        matches!(self, Self::Released)
    }
}

/// The answer to an extend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ExtendResult {
    /// The lease now ends at this time, by the store's clock.
    Extended {
        /// Unix milliseconds.
        expires_at_ms: i64,
    },
    /// The id holds nothing. An expired lease is not brought back.
    NotHeld {
        /// For telemetry; do not branch on it.
        reason: Option<FailureReason>,
    },
}

impl ExtendResult {
    /// The new expiry, if the lease was extended.
    #[must_use]
    pub fn expires_at_ms(&self) -> Option<i64> {
        match self {
            Self::Extended { expires_at_ms } => Some(*expires_at_ms),
            Self::NotHeld { .. } => None,
        }
    }
}

/// A live lock, with hashes in place of its identifiers: fit for logs and dashboards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LockInfo<F = Fence> {
    /// Display hash of the key.
    pub key_hash: HashId,
    /// Display hash of the lock id.
    pub lock_id_hash: HashId,
    /// When the lease ends: Unix milliseconds by the store's clock.
    pub expires_at_ms: i64,
    /// When the lock was granted: Unix milliseconds by the store's clock.
    pub acquired_at_ms: i64,
    /// The fencing token.
    pub fence: F,
}

/// A live lock with its raw identifiers. Its `Debug` shows hashes all the same.
#[derive(Clone, PartialEq, Eq)]
pub struct LockInfoDebug<F = Fence> {
    /// The key. Sensitive.
    pub key: LockKey,
    /// The lock id. Sensitive: it is the right to release the lock.
    pub lock_id: LockId,
    /// When the lease ends: Unix milliseconds by the store's clock.
    pub expires_at_ms: i64,
    /// When the lock was granted: Unix milliseconds by the store's clock.
    pub acquired_at_ms: i64,
    /// The fencing token.
    pub fence: F,
}

impl<F: FenceToken> LockInfoDebug<F> {
    /// The same with hashes for identifiers.
    #[must_use]
    pub fn sanitized(&self) -> LockInfo<F> {
        LockInfo {
            key_hash: hash_key(self.key.as_str()),
            lock_id_hash: hash_key(self.lock_id.as_str()),
            expires_at_ms: self.expires_at_ms,
            acquired_at_ms: self.acquired_at_ms,
            fence: self.fence,
        }
    }
}

impl<F: fmt::Debug> fmt::Debug for LockInfoDebug<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockInfoDebug")
            .field("key", &self.key)
            .field("lock_id", &self.lock_id)
            .field("expires_at_ms", &self.expires_at_ms)
            .field("acquired_at_ms", &self.acquired_at_ms)
            .field("fence", &self.fence)
            .finish()
    }
}
