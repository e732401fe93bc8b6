//! [`Call`] and [`Outcome`]: what the decorator knows of a call, at no cost. An event is made of
//! them only where somebody wants one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime};

use syncguard_core::{
    AcquireResult, ErrorCode, ExtendResult, FailureReason, LockError, LockId, LockKey, Lookup,
    ReleaseResult, Ttl, hash_key,
};

use crate::options::IncludeRaw;
use crate::{EventReason, EventResult, EventType, LockEvent};

/// A call and its arguments.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) event_type: EventType,
    pub(crate) key: Option<&'a LockKey>,
    pub(crate) id: Option<&'a LockId>,
    #[cfg_attr(
        not(feature = "opentelemetry"),
        expect(dead_code, reason = "only metrics follow leases")
    )]
    pub(crate) ttl: Option<Ttl>,
}

impl<'a> Call<'a> {
    const fn new(event_type: EventType) -> Self {
        Self {
            event_type,
            key: None,
            id: None,
            ttl: None,
        }
    }

    pub(crate) const fn acquire(key: &'a LockKey, id: &'a LockId, ttl: Ttl) -> Self {
        Self {
            key: Some(key),
            id: Some(id),
            ttl: Some(ttl),
            ..Self::new(EventType::Acquire)
        }
    }

    pub(crate) const fn release(id: &'a LockId) -> Self {
        Self {
            id: Some(id),
            ..Self::new(EventType::Release)
        }
    }

    pub(crate) const fn extend(id: &'a LockId, ttl: Ttl) -> Self {
        Self {
            id: Some(id),
            ttl: Some(ttl),
            ..Self::new(EventType::Extend)
        }
    }

    pub(crate) const fn is_locked(key: &'a LockKey) -> Self {
        Self {
            key: Some(key),
            ..Self::new(EventType::IsLocked)
        }
    }

    pub(crate) const fn lookup(by: Lookup<'a>) -> Self {
        let call = Self::new(EventType::Lookup);
        match by {
            Lookup::Key(key) => Self {
                key: Some(key),
                ..call
            },
            Lookup::Id(id) => Self {
                id: Some(id),
                ..call
            },
        }
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Locked,
    NotHeld(Option<FailureReason>),
    Failed {
        code: ErrorCode,
        outcome_unknown: bool,
    },
    Abandoned {
        outcome_unknown: bool,
    },
}

impl Outcome {
    pub(crate) fn of<T>(answer: &Result<T, LockError>, domain: impl FnOnce(&T) -> Self) -> Self {
        match answer {
            Ok(answer) => domain(answer),
            Err(error) => Self::Failed {
                code: error.code(),
                outcome_unknown: error.outcome_unknown(),
            },
        }
    }

    pub(crate) fn of_acquire<F>(answer: &AcquireResult<F>) -> Self {
        match answer {
            AcquireResult::Acquired(_) => Self::Ok,
            AcquireResult::Locked => Self::Locked,
        }
    }

    pub(crate) fn of_release(answer: &ReleaseResult) -> Self {
        match answer {
            ReleaseResult::Released => Self::Ok,
            ReleaseResult::NotHeld { reason } => Self::NotHeld(*reason),
        }
    }

    pub(crate) fn of_extend(answer: &ExtendResult) -> Self {
        match answer {
            ExtendResult::Extended { .. } => Self::Ok,
            ExtendResult::NotHeld { reason } => Self::NotHeld(*reason),
        }
    }

    pub(crate) fn of_question<T>(_: &T) -> Self {
        Self::Ok
    }

    pub(crate) fn result(self) -> EventResult {
        match self {
            Self::Ok => EventResult::Ok,
            _ => EventResult::Fail,
        }
    }

    pub(crate) fn reason(self) -> Option<EventReason> {
        match self {
            Self::Locked => Some(EventReason::Locked),
            Self::NotHeld(Some(FailureReason::Expired)) => Some(EventReason::Expired),
            Self::NotHeld(Some(FailureReason::NotFound)) => Some(EventReason::NotFound),
            _ => None,
        }
    }

    pub(crate) fn error_code(self) -> Option<ErrorCode> {
        match self {
            Self::Failed { code, .. } => Some(code),
            _ => None,
        }
    }

    pub(crate) fn outcome_unknown(self) -> bool {
        match self {
            Self::Failed {
                outcome_unknown, ..
            }
            | Self::Abandoned { outcome_unknown } => outcome_unknown,
            _ => false,
        }
    }
}

/// A call that is over, on its way to a consumer: owned, and nothing hashed yet.
///
/// It holds raw identifiers, so it has no `Debug`.
pub(crate) struct Record {
    event_type: EventType,
    key: Option<LockKey>,
    id: Option<LockId>,
    outcome: Outcome,
    duration: Duration,
    ended_at: SystemTime,
    backend: &'static str,
}

impl Record {
    pub(crate) fn new(
        backend: &'static str,
        call: Call<'_>,
        outcome: Outcome,
        duration: Duration,
    ) -> Self {
        Self {
            event_type: call.event_type,
            key: call.key.cloned(),
            id: call.id.copied(),
            outcome,
            duration,
            ended_at: SystemTime::now(),
            backend,
        }
    }

    /// Hashes the identifiers, and leaves out the raw ones unless they are permitted.
    pub(crate) fn into_event(self, include_raw: &IncludeRaw) -> LockEvent {
        let mut event = LockEvent {
            event_type: self.event_type,
            result: self.outcome.result(),
            reason: self.outcome.reason(),
            key_hash: self.key.as_ref().map(|key| hash_key(key.as_str())),
            lock_id_hash: self.id.as_ref().map(|id| hash_key(id.as_str())),
            key: None,
            lock_id: None,
            error_code: self.outcome.error_code(),
            outcome_unknown: self.outcome.outcome_unknown(),
            abandoned: matches!(self.outcome, Outcome::Abandoned { .. }),
            duration: self.duration,
            ended_at: self.ended_at,
            backend: self.backend,
        };
        let permitted = match include_raw {
            IncludeRaw::Never => false,
            IncludeRaw::Always => true,
            // A predicate that panics has permitted nothing.
            IncludeRaw::If(predicate) => {
                catch_unwind(AssertUnwindSafe(|| predicate(&event))).unwrap_or(false)
            }
        };
        if permitted {
            event.key = self.key;
            event.lock_id = self.id;
        }
        event
    }
}
