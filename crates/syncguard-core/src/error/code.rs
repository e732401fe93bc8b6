//! [`ErrorCode`] and [`Operation`]: what failed, and how.

use std::fmt;

/// The kind of a [`LockError`](crate::LockError). It decides what to do.
///
/// The first eight are those of the SyncGuard specification, shared with its other
/// implementations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The store is unreachable, restarting, read-only or failing over. Try again later.
    ServiceUnavailable,
    /// Credentials are wrong or a permission is missing. A retry does not help until that is mended: fix the
    /// configuration.
    AuthFailed,
    /// A key, id, duration or option is invalid; on some stores also a stored value. Fix the call, or the program
    /// that wrote the value.
    InvalidArgument,
    /// The store is out of memory, connections or quota. Back off.
    RateLimited,
    /// No reply before the deadline.
    NetworkTimeout,
    /// A [`lock`](crate::Locks::lock) request reached its timeout or its limit of retries. The key was still held,
    /// or the last attempt failed.
    AcquisitionTimeout,
    /// The caller's token was cancelled.
    Aborted,
    /// A condition that should not occur, such as an exhausted fence counter; on some stores also a row that
    /// another program wrote.
    Internal,
    /// The lease ended while a section with auto-extension ran: it could not be renewed, or reached
    /// `max_hold`.
    LockLost,
}

impl ErrorCode {
    /// The code's name, for labels and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::AuthFailed => "AuthFailed",
            Self::InvalidArgument => "InvalidArgument",
            Self::RateLimited => "RateLimited",
            Self::NetworkTimeout => "NetworkTimeout",
            Self::AcquisitionTimeout => "AcquisitionTimeout",
            Self::Aborted => "Aborted",
            Self::Internal => "Internal",
            Self::LockLost => "LockLost",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The operation that an error came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Acquiring a lock: one attempt.
    Acquire,
    /// Releasing a lock.
    Release,
    /// Replacing a lock's remaining time.
    Extend,
    /// Asking whether a key is held.
    IsLocked,
    /// Reading a lock's information.
    Lookup,
    /// Listing live locks: one page.
    List,
    /// A [`lock`](crate::Locks::lock) request as a whole.
    Lock,
    /// Connecting to a store, or creating its tables.
    Setup,
    /// Checking how a store is configured.
    Preflight,
    /// Deleting expired locks.
    PurgeExpired,
    /// Closing a backend's connections.
    Close,
}

impl Operation {
    /// The operation's name in snake case, for labels and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Release => "release",
            Self::Extend => "extend",
            Self::IsLocked => "is_locked",
            Self::Lookup => "lookup",
            Self::List => "list",
            Self::Lock => "lock",
            Self::Setup => "setup",
            Self::Preflight => "preflight",
            Self::PurgeExpired => "purge_expired",
            Self::Close => "close",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
