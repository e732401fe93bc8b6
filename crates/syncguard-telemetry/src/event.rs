//! [`LockEvent`]: the report of one operation.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use syncguard_core::backend::FailureReason;
use syncguard_core::observe::{Operation, OperationOutcome};
use syncguard_core::{ErrorCode, HashId, LockId, LockKey};

/// An operation that ended.
///
/// It shows identifiers by their [display hash](syncguard_core::hash_key). The event, its `Debug` and its
/// JSON contain raw identifiers only if [`include_raw`](crate::TelemetryOptions::include_raw) permits them.
///
/// It serializes in camelCase, as in every implementation of SyncGuard: `type`, `result`,
/// `reason`, `keyHash`, `lockIdHash`, `key` and `lockId`. This crate adds `errorCode`,
/// `outcomeUnknown`, `abandoned`, `durationMs` (a fraction, to the microsecond), `endedAtMs` (Unix
/// milliseconds) and `backend`. Fields that are `None` are left out.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LockEvent {
    /// The operation.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// Whether it succeeded.
    pub result: EventResult,
    /// Why it did not succeed, if nothing failed and the store knew the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<EventReason>,
    /// Display hash of the key, if the call or its guard knew it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_hash: Option<HashId>,
    /// Display hash of the lock id, if the call was given one or made one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_id_hash: Option<HashId>,
    /// The key. Sensitive; `None` unless permitted.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "raw_key")]
    pub key: Option<LockKey>,
    /// The lock id. Sensitive: a process that knows it can release the lock. `None` unless permitted.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "raw_lock_id"
    )]
    pub lock_id: Option<LockId>,
    /// The code of the error, if the operation ended in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<ErrorCode>,
    /// Whether the store may have applied the operation although it failed here.
    pub outcome_unknown: bool,
    /// Whether the operation's future was dropped before the store replied, for example by a timeout around
    /// it or by a panic.
    pub abandoned: bool,
    /// Time from the first poll of the call to its end.
    #[serde(rename = "durationMs", serialize_with = "fractional_ms")]
    pub duration: Duration,
    /// When the operation ended, by the local wall clock. The callback gets the event later.
    #[serde(rename = "endedAtMs", serialize_with = "unix_ms")]
    pub ended_at: SystemTime,
    /// The backend's name, such as `redis`.
    pub backend: &'static str,
}

/// The operation that an event reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventType {
    /// Acquiring a lock: one attempt.
    Acquire,
    /// Releasing a lock.
    Release,
    /// Replacing a lock's remaining time.
    Extend,
    /// Asking whether a key is held.
    IsLocked,
    /// Reading a lock's information, raw or not.
    Lookup,
    /// Listing live locks: one page.
    List,
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
            Self::List => "list",
        }
    }

    /// `None` for an operation that makes no event.
    pub(crate) const fn of(operation: Operation) -> Option<Self> {
        match operation {
            Operation::Acquire => Some(Self::Acquire),
            Operation::Release => Some(Self::Release),
            Operation::Extend => Some(Self::Extend),
            Operation::IsLocked => Some(Self::IsLocked),
            Operation::Lookup => Some(Self::Lookup),
            Operation::List => Some(Self::List),
            _ => None,
        }
    }
}

/// Whether an operation succeeded.
///
/// An `is_locked`, lookup or list is `Ok` if the store replied, with any result. An acquire of a held key
/// is `Fail` with the reason [`Locked`](EventReason::Locked): contention, not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventResult {
    /// It succeeded.
    Ok,
    /// It did not succeed: see the event's reason, error code and `abandoned`.
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

    pub(crate) const fn of(outcome: OperationOutcome) -> Self {
        match outcome {
            OperationOutcome::Ok => Self::Ok,
            _ => Self::Fail,
        }
    }
}

/// Why an operation had no effect although nothing failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventReason {
    /// An acquire found the key held.
    Locked,
    /// A release or extend came after the lease had expired.
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

    pub(crate) const fn of(outcome: OperationOutcome) -> Option<Self> {
        match outcome {
            OperationOutcome::Locked => Some(Self::Locked),
            OperationOutcome::NotHeld(Some(FailureReason::Expired)) => Some(Self::Expired),
            OperationOutcome::NotHeld(Some(FailureReason::NotFound)) => Some(Self::NotFound),
            _ => None,
        }
    }
}

macro_rules! shown_as_str {
    ($($name:ty),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    )+};
}

shown_as_str!(EventType, EventResult, EventReason);

impl fmt::Debug for LockEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("LockEvent");
        out.field("event_type", &self.event_type)
            .field("result", &self.result)
            .field("reason", &self.reason)
            .field("key_hash", &self.key_hash)
            .field("lock_id_hash", &self.lock_id_hash);
        // The event has raw identifiers only if the application asked for them.
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

fn raw_key<S: Serializer>(key: &Option<LockKey>, serializer: S) -> Result<S::Ok, S::Error> {
    key.as_ref().map(LockKey::as_str).serialize(serializer)
}

fn raw_lock_id<S: Serializer>(id: &Option<LockId>, serializer: S) -> Result<S::Ok, S::Error> {
    id.as_ref().map(LockId::as_str).serialize(serializer)
}

fn fractional_ms<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((span.as_secs_f64() * 1e6).round() / 1e3)
}

fn unix_ms<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let ms = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    serializer.serialize_i64(match time.duration_since(UNIX_EPOCH) {
        Ok(after) => ms(after),
        Err(before) => -ms(before.duration()),
    })
}

#[cfg(test)]
mod tests {
    use syncguard_core::hash_key;

    use super::*;

    const KEY: &str = "payment:42";
    const ID: &str = "AAAAAAAAAAAAAAAAAAAAA_";

    fn event() -> LockEvent {
        LockEvent {
            event_type: EventType::IsLocked,
            result: EventResult::Ok,
            reason: None,
            key_hash: None,
            lock_id_hash: None,
            key: None,
            lock_id: None,
            error_code: None,
            outcome_unknown: false,
            abandoned: false,
            duration: Duration::from_nanos(12_345_678),
            ended_at: UNIX_EPOCH + Duration::from_micros(1_795_862_479_500_999),
            backend: "memory",
        }
    }

    fn json(event: &LockEvent) -> String {
        serde_json::to_string(event).unwrap()
    }

    #[test]
    fn fields_that_are_absent_are_left_out() {
        let expected = concat!(
            r#"{"type":"isLocked","result":"ok","outcomeUnknown":false,"abandoned":false,"#,
            r#""durationMs":12.346,"endedAtMs":1795862479500,"backend":"memory"}"#
        );
        assert_eq!(json(&event()), expected);
    }

    #[test]
    fn an_event_with_everything_has_the_shape_of_the_specification_and_our_own_fields() {
        let full = LockEvent {
            event_type: EventType::Release,
            result: EventResult::Fail,
            reason: Some(EventReason::NotFound),
            key_hash: Some(hash_key(KEY)),
            lock_id_hash: Some(hash_key(ID)),
            key: Some(LockKey::new(KEY).unwrap()),
            lock_id: Some(LockId::parse(ID).unwrap()),
            error_code: Some(ErrorCode::NetworkTimeout),
            outcome_unknown: true,
            abandoned: true,
            duration: Duration::from_secs(5),
            ended_at: UNIX_EPOCH - Duration::from_millis(7),
            ..event()
        };
        let expected = format!(
            concat!(
                r#"{{"type":"release","result":"fail","reason":"not-found","keyHash":"{}","#,
                r#""lockIdHash":"{}","key":"payment:42","lockId":"AAAAAAAAAAAAAAAAAAAAA_","#,
                r#""errorCode":"NetworkTimeout","outcomeUnknown":true,"abandoned":true,"#,
                r#""durationMs":5000.0,"endedAtMs":-7,"backend":"memory"}}"#
            ),
            hash_key(KEY),
            hash_key(ID),
        );
        assert_eq!(json(&full), expected);
    }
}
