//! Events through `tracing`.

use tracing::Level;

use crate::LockEvent;
use crate::call::Outcome;

/// Whether a subscriber wants to hear of it. Asked before anything is hashed.
pub(crate) fn is_enabled(outcome: Outcome) -> bool {
    // A failing store is for the operator; contention and the like are daily business.
    match outcome.error_code() {
        Some(_) => tracing::event_enabled!(target: "syncguard", Level::WARN),
        None => tracing::event_enabled!(target: "syncguard", Level::DEBUG),
    }
}

pub(crate) fn emit(event: &LockEvent) {
    // The level is part of a call site, so there are two.
    macro_rules! emit_at {
        ($level:expr) => {
            tracing::event!(
                target: "syncguard",
                $level,
                "type" = event.event_type.as_str(),
                result = event.result.as_str(),
                reason = event.reason.map(|reason| reason.as_str()),
                key_hash = event.key_hash.map(display),
                lock_id_hash = event.lock_id_hash.map(display),
                key = event.key.as_ref().map(|key| key.as_str()),
                lock_id = event.lock_id.as_ref().map(|lock_id| lock_id.as_str()),
                error_code = event.error_code.map(|code| code.as_str()),
                outcome_unknown = event.outcome_unknown,
                abandoned = event.abandoned,
                duration_s = event.duration.as_secs_f64(),
                backend = event.backend,
                "lock operation"
            )
        };
    }
    match event.error_code {
        Some(_) => emit_at!(Level::WARN),
        None => emit_at!(Level::DEBUG),
    }
}
