//! The scripts, and how their replies are read.

use std::sync::LazyLock;
use std::time::Duration;

use fred::bytes_utils::Str;
use fred::types::Value;
use syncguard_core::backend::{AcquireResult, FailureReason};
use syncguard_core::{ErrorCode, ExtendResult, Fence, LockError, LockId, ReleaseResult};

use crate::lua::{
    EXPIRED, FENCE_EXHAUSTED, NO_INDEX, NO_LOCK, NOT_A_LOCK, OTHER_OWNER, RELEASED, filled,
};
use crate::record::{self, Reading, not_a_lock};

pub(crate) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::writing(include_str!("../lua/acquire.lua")).in_gathered('a', 3, 2));
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::writing(include_str!("../lua/release.lua")).in_gathered('r', 1, 1));
pub(crate) static EXTEND: LazyLock<Script> =
    LazyLock::new(|| Script::writing(include_str!("../lua/extend.lua")).in_gathered('e', 1, 2));
pub(crate) static READ_KEY: LazyLock<Script> =
    LazyLock::new(|| Script::reading(include_str!("../lua/read_key.lua")).in_gathered('k', 1, 0));
pub(crate) static READ_ID: LazyLock<Script> =
    LazyLock::new(|| Script::reading(include_str!("../lua/read_id.lua")).in_gathered('i', 1, 0));
pub(crate) static GATHERED: LazyLock<Script> =
    LazyLock::new(|| Script::gathered([&ACQUIRE, &RELEASE, &EXTEND, &READ_KEY, &READ_ID]));
pub(crate) static CLEANUP: LazyLock<Script> =
    LazyLock::new(|| Script::writing(include_str!("../lua/cleanup.lua")));
pub(crate) static LIST: LazyLock<Script> =
    LazyLock::new(|| Script::reading(include_str!("../lua/list.lua")));
pub(crate) static RIGHTS: LazyLock<Script> =
    LazyLock::new(|| Script::reading(include_str!("../lua/rights.lua")));

/// A script and the digest that the server knows it by.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: Str,
    pub(crate) digest: Str,
    /// Whether the script may have written although the call failed here.
    pub(crate) writes: bool,
    /// Its operation in `gathered.lua`, if it has one.
    pub(crate) part: Option<Part>,
}

/// An operation in `gathered.lua`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) letter: char,
    pub(crate) keys: usize,
    arguments: usize,
}

impl Script {
    fn writing(text: &str) -> Self {
        Self {
            writes: true,
            ..Self::reading(text)
        }
    }

    fn reading(text: &str) -> Self {
        let source = filled(text);
        Self {
            digest: fred::util::sha1_hash(&source).into(),
            source: source.into(),
            writes: false,
            part: None,
        }
    }

    fn in_gathered(self, letter: char, keys: usize, arguments: usize) -> Self {
        Self {
            part: Some(Part {
                letter,
                keys,
                arguments,
            }),
            ..self
        }
    }

    /// `gathered.lua`, with these scripts as its operations. It reads the clock once for all operations.
    fn gathered(scripts: [&Self; 5]) -> Self {
        let mut text = "local time = redis.call('TIME')\nlocal operations = {}\n".to_owned();
        for script in scripts {
            if let Some(part) = script.part {
                let body = script.source.replace("call('TIME')", "time");
                text += &format!(
                    "operations.{} = {{keys = {}, arguments = {}, run = function(KEYS, ARGV)\n{body}end}}\n",
                    part.letter, part.keys, part.arguments
                );
            }
        }
        Self::writing(&(text + include_str!("../lua/gathered.lua")))
    }
}

/// Reads the reply of `acquire.lua` to an acquire for `id`.
pub(crate) fn acquired(reply: Value, id: &LockId) -> Result<AcquireResult, LockError> {
    match reply {
        Value::Integer(left @ 0..) => Ok(locked_for_ms(left)),
        Value::Integer(NOT_A_LOCK) => Err(not_a_lock()),
        Value::Integer(FENCE_EXHAUSTED) => Err(Fence::exhausted()),
        Value::String(value) => record::grant(&value)
            .ok()
            .filter(|grant| grant.lock_id == *id)
            .map(AcquireResult::Acquired)
            .ok_or_else(unexpected_write),
        _ => Err(unexpected_write()),
    }
}

fn locked_for_ms(left: i64) -> AcquireResult {
    // Never zero, even after rounding.
    let left = u64::try_from(left).map_or(1, |left| left.max(1));
    AcquireResult::locked_for(Duration::from_millis(left))
}

/// Reads the reply of `release.lua`.
pub(crate) fn released(reply: &Value, clustered: bool) -> Result<ReleaseResult, LockError> {
    match reply {
        Value::Integer(RELEASED) => Ok(ReleaseResult::Released),
        other => Ok(ReleaseResult::not_held(Some(not_held(other, clustered)?))),
    }
}

/// Reads the reply of `extend.lua`: the new expiry.
pub(crate) fn extended(reply: &Value, clustered: bool) -> Result<ExtendResult, LockError> {
    match reply {
        Value::Integer(expires_at_ms @ 1..) => Ok(ExtendResult::extended(*expires_at_ms)),
        other => Ok(ExtendResult::not_held(Some(not_held(other, clustered)?))),
    }
}

fn not_held(reply: &Value, clustered: bool) -> Result<FailureReason, LockError> {
    match reply {
        // A cluster moves the keys of a slot one by one: the lock may still be where the index was.
        Value::Integer(NO_LOCK) if clustered => Err(LockError::new(
            ErrorCode::ServiceUnavailable,
            "the lock id's index exists but its lock does not; the slot may be moving to another node",
        )
        .with_outcome_unknown()),
        Value::Integer(OTHER_OWNER | NO_INDEX | NO_LOCK) => Ok(FailureReason::NotFound),
        Value::Integer(EXPIRED) => Ok(FailureReason::Expired),
        Value::Integer(NOT_A_LOCK) => Err(not_a_lock()),
        _ => Err(unexpected_write()),
    }
}

/// Reads the reply of `read_key.lua` and `read_id.lua`.
pub(crate) fn read(reply: &Value) -> Result<Option<Reading>, LockError> {
    if reply.is_null() {
        return Ok(None);
    }
    let Value::String(text) = reply else {
        // A value that is not UTF-8 is not JSON either.
        let bytes = matches!(reply, Value::Bytes(_));
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
        now_ms: server_time_ms(seconds.parse().ok()?, microseconds.parse().ok()?),
    })
}

/// Milliseconds from the two numbers of the server's `TIME`: seconds, and microseconds within them.
pub(crate) const fn server_time_ms(seconds: i64, microseconds: i64) -> i64 {
    seconds * 1_000 + microseconds / 1_000
}

pub(crate) fn unexpected() -> LockError {
    LockError::new(ErrorCode::Internal, "unexpected reply from a script")
}

fn unexpected_write() -> LockError {
    unexpected().with_outcome_unknown()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

    fn acquired_for_id(reply: Value) -> Result<AcquireResult, LockError> {
        acquired(reply, &LockId::parse(ID).unwrap())
    }

    #[test]
    fn microseconds_beyond_a_millisecond_do_not_count() {
        const VECTORS: &str =
            include_str!("../../../syncguard-core/tests/data/syncguard-vectors.json");
        let vectors: serde_json::Value = serde_json::from_str(VECTORS).unwrap();
        for entry in vectors["redisTime"].as_array().unwrap() {
            let [seconds, microseconds] =
                [0, 1].map(|part| entry["input"][part].as_str().unwrap().parse().unwrap());
            let ms = entry["ms"].as_i64().unwrap();
            assert_eq!(server_time_ms(seconds, microseconds), ms);
        }
    }

    #[test]
    fn no_script_keeps_a_name_that_has_no_value() {
        let scripts = [&ACQUIRE, &GATHERED, &CLEANUP, &LIST, &RIGHTS];
        for script in scripts {
            let code = script
                .source
                .lines()
                .filter(|line| !line.trim_start().starts_with("--") && !line.starts_with("#!"));
            for line in code {
                let outside_quotes = line.split('\'').step_by(2);
                let words = outside_quotes
                    .flat_map(|code| code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
                for word in words.filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()))
                {
                    assert!(["KEYS", "ARGV"].contains(&word), "{word} in {line}");
                }
            }
        }
    }

    #[test]
    fn a_reply_that_no_script_gives_is_an_error_of_unknown_outcome() {
        let strange = [
            Value::Null,
            Value::Integer(-7),
            Value::Array(vec![]),
            Value::Array(vec![1.into(), "12".into(), 3.into()]),
            "OK".into(),
            "1700000000000 000000000000012".into(),
            r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1,"acquiredAtMs":1,"key":"k"}"#
                .into(),
            r#"{"lockId":"another_id____________","expiresAtMs":1,"acquiredAtMs":1,"key":"k","fence":"000000000000001"}"#
                .into(),
        ];
        for reply in strange {
            assert!(
                released(&reply, false).unwrap_err().outcome_unknown(),
                "{reply:?}"
            );
            assert!(
                extended(&reply, true).unwrap_err().outcome_unknown(),
                "{reply:?}"
            );
            assert!(acquired_for_id(reply).unwrap_err().outcome_unknown());
        }
    }

    #[test]
    fn a_reply_that_no_script_gives_to_a_read_is_an_error_of_known_outcome() {
        for reply in [Value::Integer(1), Value::Array(vec![]), "OK".into()] {
            let error = read(&reply).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Internal, "{reply:?}");
            assert!(!error.outcome_unknown(), "{reply:?}");
        }
    }

    #[test]
    fn an_index_without_its_lock_is_not_held_unless_a_slot_may_be_moving() {
        let reply = Value::Integer(NO_LOCK);
        let reason = Some(FailureReason::NotFound);
        assert_eq!(
            released(&reply, false).unwrap(),
            ReleaseResult::not_held(reason)
        );
        assert_eq!(
            extended(&reply, false).unwrap(),
            ExtendResult::not_held(reason)
        );
        let moving = [
            released(&reply, true).unwrap_err(),
            extended(&reply, true).unwrap_err(),
        ];
        for error in moving {
            assert!(error.is_retryable() && error.outcome_unknown(), "{error}");
        }
    }

    #[test]
    fn a_used_up_counter_is_internal_and_certainly_not_granted() {
        let error = acquired_for_id(Value::Integer(FENCE_EXHAUSTED)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(!error.outcome_unknown());
    }
}
