//! [`LockEvent`]: what is told of one call.

use std::fmt;
use std::time::{Duration, SystemTime};

use syncguard_core::{ErrorCode, HashId, LockId, LockKey};

/// One call of a backend, over.
///
/// Identifiers are shown by their [display hash](syncguard_core::hash_key). The raw ones are there,
/// and appear in `Debug`, only where
/// [`with_include_raw`](crate::TelemetryOptions::with_include_raw) permitted them.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockEvent {
    /// Which operation was called.
    pub event_type: EventType,
    /// Whether it did what it was called for.
    pub result: EventResult,
    /// Why it did not, where it failed for no fault of the store and the store could tell.
    pub reason: Option<EventReason>,
    /// Display hash of the key, if the call named one.
    pub key_hash: Option<HashId>,
    /// Display hash of the lock id, if the call named one.
    pub lock_id_hash: Option<HashId>,
    /// The key. Sensitive; `None` unless permitted.
    pub key: Option<LockKey>,
    /// The lock id. Sensitive: it is the right to release the lock. `None` unless permitted.
    pub lock_id: Option<LockId>,
    /// The code of the error, if the call ended in one.
    pub error_code: Option<ErrorCode>,
    /// Whether the store may have applied the call although it failed here.
    pub outcome_unknown: bool,
    /// Whether there was no answer because the call's future was dropped: by a timeout or a
    /// cancellation around it, or by a panic.
    pub abandoned: bool,
    /// Time from the first poll of the call to its end.
    pub duration: Duration,
    /// When the call ended, by the local wall clock. Events are delivered later than that.
    pub ended_at: SystemTime,
    /// The backend's name, such as `redis`.
    pub backend: &'static str,
}

/// The operation that an event is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventType {
    /// Taking a lock.
    Acquire,
    /// Giving a lock back.
    Release,
    /// Replacing a lock's remaining time.
    Extend,
    /// Asking whether a key is held.
    IsLocked,
    /// Reading a lock's information, raw or not.
    Lookup,
}

impl EventType {
    /// The operation as every implementation of SyncGuard spells it in events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Release => "release",
            Self::Extend => "extend",
            Self::IsLocked => "isLocked",
            Self::Lookup => "lookup",
        }
    }

    /// Whether a call may change the store.
    pub(crate) const fn mutates(self) -> bool {
        matches!(self, Self::Acquire | Self::Release | Self::Extend)
    }
}

/// Whether a call did what it was called for.
///
/// An `is_locked` or lookup that was answered is `Ok`, whatever the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventResult {
    /// It did.
    Ok,
    /// It did not: see the event's reason, error code and `abandoned`.
    Fail,
}

impl EventResult {
    /// `ok` or `fail`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Fail => "fail",
        }
    }
}

/// Why a call failed that the store answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventReason {
    /// An acquire found the key held.
    Locked,
    /// A release or extend came after the lease had run out.
    Expired,
    /// A release or extend found no such lock.
    NotFound,
}

impl EventReason {
    /// The reason as every implementation of SyncGuard spells it in events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Locked => "locked",
            Self::Expired => "expired",
            Self::NotFound => "not-found",
        }
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for EventResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for EventReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for LockEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("LockEvent");
        out.field("event_type", &self.event_type)
            .field("result", &self.result)
            .field("reason", &self.reason)
            .field("key_hash", &self.key_hash)
            .field("lock_id_hash", &self.lock_id_hash);
        // Raw identifiers are in the event only where someone asked for them by name.
        if let Some(key) = &self.key {
            out.field("key", &key.as_str());
        }
        if let Some(lock_id) = &self.lock_id {
            out.field("lock_id", &lock_id.as_str());
        }
        out.field("error_code", &self.error_code)
            .field("outcome_unknown", &self.outcome_unknown)
            .field("abandoned", &self.abandoned)
            .field("duration", &self.duration)
            .field("ended_at", &self.ended_at)
            .field("backend", &self.backend)
            .finish()
    }
}
