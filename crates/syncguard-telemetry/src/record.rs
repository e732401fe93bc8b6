//! [`Record`]: an operation that ended, before it becomes an event.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime};

use syncguard_core::observe::{OperationEnd, OperationOutcome};
use syncguard_core::{LockId, LockKey};

use crate::options::IncludeRaw;
use crate::{EventReason, EventResult, EventType, LockEvent};

/// An operation that ended: owned, and nothing hashed yet.
///
/// It holds raw identifiers, so it has no `Debug`.
pub(crate) struct Record {
    event_type: EventType,
    key: Option<LockKey>,
    lock_id: Option<LockId>,
    outcome: OperationOutcome,
    duration: Duration,
    ended_at: SystemTime,
    backend: &'static str,
}

impl Record {
    pub(crate) fn new(event_type: EventType, end: &OperationEnd<'_>) -> Self {
        Self {
            event_type,
            key: end.key.cloned(),
            lock_id: end.lock_id.copied(),
            outcome: end.outcome,
            duration: end.duration,
            ended_at: SystemTime::now(),
            backend: end.backend,
        }
    }

    /// Hashes the identifiers, and leaves out the raw ones unless they are permitted.
    pub(crate) fn into_event(self, include_raw: &IncludeRaw) -> LockEvent {
        let (error_code, outcome_unknown, abandoned) = match self.outcome {
            OperationOutcome::Failed {
                code,
                outcome_unknown,
            } => (Some(code), outcome_unknown, false),
            OperationOutcome::Abandoned { outcome_unknown } => (None, outcome_unknown, true),
            _ => (None, false, false),
        };
        let mut event = LockEvent {
            event_type: self.event_type,
            result: EventResult::of(self.outcome),
            reason: EventReason::of(self.outcome),
            key_hash: self.key.as_ref().map(LockKey::hash_id),
            lock_id_hash: self.lock_id.as_ref().map(LockId::hash_id),
            key: None,
            lock_id: None,
            error_code,
            outcome_unknown,
            abandoned,
            duration: self.duration,
            ended_at: self.ended_at,
            backend: self.backend,
        };
        let permitted = match include_raw {
            IncludeRaw::Never => false,
            IncludeRaw::Always => true,
            // A predicate that panics permits nothing.
            IncludeRaw::If(predicate) => {
                catch_unwind(AssertUnwindSafe(|| predicate(&event))).unwrap_or(false)
            }
        };
        if permitted {
            event.key = self.key;
            event.lock_id = self.lock_id;
        }
        event
    }
}
