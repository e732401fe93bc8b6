//! The scripts, and what they answer.

use std::sync::LazyLock;

use fred::bytes_utils::Str;
use fred::types::Value;
use syncguard_core::{
    ErrorCode, FENCE_MAX, FailureReason, Fence, LockError, TIME_TOLERANCE_MS, redis_server_time_ms,
};

use crate::document::{self, Reading, not_a_lock};

pub(crate) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::judging(include_str!("lua/acquire.lua")));
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::judging(include_str!("lua/release.lua")));
pub(crate) static EXTEND: LazyLock<Script> =
    LazyLock::new(|| Script::judging(include_str!("lua/extend.lua")));
pub(crate) static READ_KEY: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/read_key.lua").to_owned()));
pub(crate) static READ_ID: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/read_id.lua").to_owned()));
pub(crate) static CLEANUP: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/cleanup.lua").to_owned()));
pub(crate) static RIGHTS: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/rights.lua").to_owned()));

/// A script and the digest that the server knows it by.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: Str,
    pub(crate) digest: Str,
}

impl Script {
    fn new(source: String) -> Self {
        let digest = fred::util::sha1_hash(&source).into();
        Self {
            source: source.into(),
            digest,
        }
    }

    /// A script that judges stored locks: it says where it reads one. The limits are part of its
    /// text, as an argument would be converted at every call; and so is the reading, as a function
    /// would be made at every call.
    fn judging(body: &str) -> Self {
        let limits = format!("local TOLERANCE_MS, FENCE_MAX = {TIME_TOLERANCE_MS}, {FENCE_MAX}\n");
        let body = body.replace("--- lock.lua\n", include_str!("lua/lock.lua"));
        Self::new(limits + &body)
    }
}

/// What `acquire.lua` answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted { fence: Fence, expires_at_ms: i64 },
    Locked,
}

pub(crate) fn acquired(answer: Value) -> Result<Acquired, LockError> {
    match answer {
        Value::Integer(0) => Ok(Acquired::Locked),
        Value::Integer(-3) => Err(not_a_lock()),
        Value::Integer(-4) => Err(Fence::exhausted()),
        Value::String(value) => {
            let lock = document::parse(&value).map_err(|_| unexpected())?;
            Ok(Acquired::Granted {
                fence: lock.fence,
                expires_at_ms: lock.expires_at_ms,
            })
        }
        _ => Err(unexpected()),
    }
}

/// What `release.lua` answers.
pub(crate) fn released(
    answer: &Value,
    clustered: bool,
) -> Result<Result<(), FailureReason>, LockError> {
    match answer {
        Value::Integer(1) => Ok(Ok(())),
        other => not_held(other, clustered).map(Err),
    }
}

/// What `extend.lua` answers: the new expiry.
pub(crate) fn extended(
    answer: &Value,
    clustered: bool,
) -> Result<Result<i64, FailureReason>, LockError> {
    match answer {
        Value::Integer(expires_at_ms @ 1..) => Ok(Ok(*expires_at_ms)),
        other => not_held(other, clustered).map(Err),
    }
}

fn not_held(answer: &Value, clustered: bool) -> Result<FailureReason, LockError> {
    match answer {
        // Keys move one by one when a cluster's slot does: the lock may be where the index was.
        Value::Integer(-5) if clustered => Err(LockError::new(
            ErrorCode::ServiceUnavailable,
            "the lock's index and the lock are apart; its slot may be moving",
        )
        .with_outcome_unknown()),
        Value::Integer(-5) => Ok(FailureReason::NotFound),
        Value::Integer(0 | -1) => Ok(FailureReason::NotFound),
        Value::Integer(-2) => Ok(FailureReason::Expired),
        Value::Integer(-3) => Err(not_a_lock()),
        _ => Err(unexpected()),
    }
}

/// What `read_key.lua` and `read_id.lua` answer.
pub(crate) fn read(answer: &Value) -> Result<Option<Reading>, LockError> {
    if answer.is_null() {
        return Ok(None);
    }
    let Value::String(text) = answer else {
        // What is not UTF-8 is not JSON either.
        let bytes = matches!(answer, Value::Bytes(_));
        return Err(if bytes { not_a_lock() } else { unexpected() });
    };
    reading(text).map(Some).ok_or_else(unexpected)
}

/// `SECONDS MICROSECONDS VALUE`.
fn reading(text: &str) -> Option<Reading> {
    let (seconds, rest) = text.split_once(' ')?;
    let (microseconds, value) = rest.split_once(' ')?;
    Some(Reading {
        value: value.to_owned(),
        now_ms: redis_server_time_ms(seconds.parse().ok()?, microseconds.parse().ok()?),
    })
}

fn unexpected() -> LockError {
    LockError::new(
        ErrorCode::Internal,
        "a script gave an answer that it does not have",
    )
    .with_outcome_unknown()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_no_script_gives_is_an_error_of_unknown_outcome() {
        let strange = [
            Value::Null,
            Value::Integer(-7),
            Value::Array(vec![]),
            Value::Array(vec![1.into(), "12".into(), 3.into()]),
            "OK".into(),
            "1700000000000 000000000000012".into(),
            r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1,"acquiredAtMs":1,"key":"k"}"#
                .into(),
        ];
        for answer in strange {
            assert!(
                released(&answer, false).unwrap_err().outcome_unknown(),
                "{answer:?}"
            );
            assert!(
                extended(&answer, true).unwrap_err().outcome_unknown(),
                "{answer:?}"
            );
            assert!(acquired(answer).unwrap_err().outcome_unknown());
        }
    }

    #[test]
    fn an_index_that_leads_to_nothing_is_not_held_unless_a_slot_may_be_moving() {
        let answer = Value::Integer(-5);
        assert_eq!(
            released(&answer, false).unwrap(),
            Err(FailureReason::NotFound)
        );
        assert_eq!(
            extended(&answer, false).unwrap(),
            Err(FailureReason::NotFound)
        );
        let moving = [
            released(&answer, true).unwrap_err(),
            extended(&answer, true).unwrap_err(),
        ];
        for error in moving {
            assert!(error.is_retryable() && error.outcome_unknown(), "{error}");
        }
    }

    #[test]
    fn a_used_up_counter_is_internal_and_certainly_not_granted() {
        let error = acquired(Value::Integer(-4)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(!error.outcome_unknown());
    }
}
