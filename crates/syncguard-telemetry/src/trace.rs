//! Events through `tracing`.

use syncguard_core::ErrorCode;
use syncguard_core::observe::OperationOutcome;
use tracing::Level;

use crate::LockEvent;

/// Whether a subscriber wants the event. Called before anything is hashed.
pub(crate) fn is_enabled(outcome: OperationOutcome) -> bool {
    let error = match outcome {
        OperationOutcome::Failed { code, .. } => Some(code),
        _ => None,
    };
    match is_warning(error) {
        true => tracing::event_enabled!(target: "syncguard", Level::WARN),
        false => tracing::event_enabled!(target: "syncguard", Level::DEBUG),
    }
}

/// A failing store and a bad argument are for the operator. Contention and cancellation are routine.
fn is_warning(error: Option<ErrorCode>) -> bool {
    error.is_some_and(|code| code != ErrorCode::Aborted)
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
    match is_warning(event.error_code) {
        true => emit_at!(Level::WARN),
        false => emit_at!(Level::DEBUG),
    }
}
