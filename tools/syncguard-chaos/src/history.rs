//! [`History`]: every call, with its times and its response.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a client asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Invocation {
    /// Acquire the key for this id.
    Acquire {
        /// The lock id.
        id: String,
        /// Milliseconds.
        ttl_ms: i64,
    },
    /// Release the lock that the id holds.
    Release {
        /// The lock id.
        id: String,
    },
    /// Make the lock that the id holds last this long from now.
    Extend {
        /// The lock id.
        id: String,
        /// Milliseconds.
        ttl_ms: i64,
    },
    /// Whether the key is held.
    IsLocked,
    /// The lock on the key.
    LookupByKey,
    /// The lock of the id.
    LookupById {
        /// The lock id.
        id: String,
    },
}

impl Invocation {
    /// The lock id that was passed, if any.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Acquire { id, .. }
            | Self::Release { id }
            | Self::Extend { id, .. }
            | Self::LookupById { id } => Some(id),
            Self::IsLocked | Self::LookupByKey => None,
        }
    }

    /// Whether the operation only reads.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::IsLocked | Self::LookupByKey | Self::LookupById { .. }
        )
    }
}

/// The outcome of a call, as its client saw it. The store's times are Unix milliseconds by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Response {
    /// Unknown: it may have been applied, may be applied later, or never. Its caller may also be releasing,
    /// in the background, what it acquired or wanted to release.
    Unknown,
    /// It was certainly not applied.
    Failed,
    /// The acquire was granted.
    Granted {
        /// The fence.
        fence: u64,
        /// When the lease ends.
        expires_at_ms: i64,
    },
    /// The acquire found the key held by another; `is_locked` found it held.
    Locked,
    /// The release freed the key.
    Released,
    /// The release or extend found that the id holds nothing.
    NotHeld,
    /// The lease was extended.
    Extended {
        /// The new end of the lease.
        expires_at_ms: i64,
    },
    /// The lookup found a lock.
    Found {
        /// On this key.
        key: String,
        /// Held by this id.
        id: String,
        /// Under this fence.
        fence: u64,
        /// Granted then.
        acquired_at_ms: i64,
        /// Until then.
        expires_at_ms: i64,
    },
    /// The lookup found nothing; `is_locked` found the key free.
    Free,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Call {
    /// The client.
    pub client: u32,
    /// When it was made: microseconds on a monotonic clock that all clients share.
    pub invoked_us: i64,
    /// When it returned, on the same clock; `None` if it never did.
    pub returned_us: Option<i64>,
    /// The key of the call.
    pub key: String,
    /// What the client asked for.
    pub invocation: Invocation,
    /// What it got.
    pub response: Response,
}

/// All calls on some keys, from the time when they were unused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The calls, in any order.
    pub calls: Vec<Call>,
    /// The store's clock minus the clients' monotonic one, in microseconds.
    pub clock_offset_us: i64,
    /// How far the two clocks drift apart at most during the history.
    pub clock_drift_us: i64,
    /// Spans of the clients' clock in which requests may have been delivered twice. There a release may
    /// find the lock already released, and a read may show another extend than the one with the reply.
    pub redelivery: Vec<(i64, i64)>,
}

impl History {
    /// Whether a request of this call may have been delivered twice.
    #[must_use]
    pub fn may_be_redelivered(&self, call: &Call) -> bool {
        let returned = call.returned_us.unwrap_or(i64::MAX);
        self.redelivery
            .iter()
            .any(|(from, to)| call.invoked_us <= *to && returned >= *from)
    }
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire { id, ttl_ms } => write!(f, "acquire {id} for {ttl_ms} ms"),
            Self::Release { id } => write!(f, "release {id}"),
            Self::Extend { id, ttl_ms } => write!(f, "extend {id} by {ttl_ms} ms"),
            Self::IsLocked => f.write_str("is_locked"),
            Self::LookupByKey => f.write_str("lookup by key"),
            Self::LookupById { id } => write!(f, "lookup {id}"),
        }
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::Failed => f.write_str("failed, not applied"),
            Self::Granted {
                fence,
                expires_at_ms,
            } => write!(f, "granted, fence {fence}, until {expires_at_ms}"),
            Self::Locked => f.write_str("locked"),
            Self::Released => f.write_str("released"),
            Self::NotHeld => f.write_str("not held"),
            Self::Extended { expires_at_ms } => write!(f, "extended until {expires_at_ms}"),
            Self::Found {
                key,
                id,
                fence,
                acquired_at_ms,
                expires_at_ms,
            } => write!(
                f,
                "{key} held by {id}, fence {fence}, from {acquired_at_ms} until {expires_at_ms}"
            ),
            Self::Free => f.write_str("free"),
        }
    }
}
