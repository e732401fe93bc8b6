//! The stored lock: JSON under the lock's storage key.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use syncguard_core::backend::{Grant, TIME_TOLERANCE_MS, is_live};
use syncguard_core::{Fence, LockError, LockId, LockInfoDebug, LockKey};

use crate::error::NOT_A_LOCK;
use crate::lua::{BEFORE_EXPIRY, BEFORE_ID, MAX_MS};

/// A stored value and the server's time when it was read.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) value: String,
    pub(crate) now_ms: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    #[serde(borrow)]
    lock_id: Cow<'a, str>,
    #[serde(deserialize_with = "milliseconds")]
    expires_at_ms: i64,
    #[serde(deserialize_with = "milliseconds")]
    acquired_at_ms: i64,
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    fence: Cow<'a, str>,
}

/// A time as any tool may write it: `1795862479500`, `1795862479500.0` or `1.7958624795e12`. Fractions of a
/// millisecond are dropped.
fn milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let number = serde_json::Number::deserialize(deserializer)?;
    let whole = number.as_i64().or_else(|| {
        let text = format!("{:.0}", number.as_f64()?.floor());
        text.parse().ok()
    });
    whole
        .filter(|ms| (-MAX_MS..=MAX_MS).contains(ms))
        .ok_or_else(|| D::Error::custom("not a time in milliseconds"))
}

/// JSON prefix of a lock with this id: everything before the expiry.
pub(crate) fn head(id: &LockId) -> String {
    format!("{BEFORE_ID}{}{BEFORE_EXPIRY}", id.as_str())
}

/// JSON suffix of a lock on this key, up to the fence: from the end of `acquiredAtMs`.
pub(crate) fn tail(key: &LockKey) -> String {
    let key = serde_json::Value::from(key.as_str());
    format!(r#","key":{key},"fence":""#)
}

/// The grant of a lock that was stored just now.
pub(crate) fn grant(value: &str) -> Result<Grant, LockError> {
    let record = Record::parse(value)?;
    Ok(Grant::new(
        record.lock_id()?,
        record.expires_at_ms,
        record.fence()?,
    ))
}

/// Parses a stored lock, live or not.
///
/// Anything else is `InvalidArgument`. The error contains neither the value nor the parser's error, which
/// would quote it.
pub(crate) fn parse(value: &str) -> Result<LockInfoDebug, LockError> {
    let record = Record::parse(value)?;
    Ok(LockInfoDebug::new(
        LockKey::new(&record.key).map_err(|_| not_a_lock())?,
        record.lock_id()?,
        record.expires_at_ms,
        record.acquired_at_ms,
        record.fence()?,
    ))
}

impl<'a> Record<'a> {
    fn parse(value: &'a str) -> Result<Self, LockError> {
        serde_json::from_str(value).map_err(|_| not_a_lock())
    }

    fn lock_id(&self) -> Result<LockId, LockError> {
        LockId::parse(&self.lock_id).map_err(|_| not_a_lock())
    }

    fn fence(&self) -> Result<Fence, LockError> {
        self.fence.parse().map_err(|_| not_a_lock())
    }
}

impl Reading {
    pub(crate) fn lock(&self) -> Result<LockInfoDebug, LockError> {
        parse(&self.value)
    }

    pub(crate) fn is_live(&self, lock: &LockInfoDebug) -> bool {
        is_live(lock.expires_at_ms, self.now_ms, TIME_TOLERANCE_MS)
    }
}

/// The error for a stored value that is not a lock.
pub(crate) fn not_a_lock() -> LockError {
    LockError::invalid_argument(NOT_A_LOCK)
}

#[cfg(test)]
mod tests {
    use syncguard_core::ErrorCode;

    use super::*;

    #[test]
    fn fields_may_come_in_any_order_escaped_and_with_others() {
        let lock = parse(
            r#"{"fence":"000000000000007","key":"a\/\u00e9\n","extra":[1],"acquiredAtMs":1,
                "expiresAtMs":2,"lockId":"AAAAAAAAAAAAAAAAAAAAAA"}"#,
        )
        .unwrap();
        assert_eq!(lock.key.as_str(), "a/\u{e9}\n");
        assert_eq!(
            (lock.acquired_at_ms, lock.expires_at_ms, lock.fence.get()),
            (1, 2, 7)
        );
    }

    #[test]
    fn any_other_value_is_refused_without_being_quoted() {
        for value in [
            "secret",
            "",
            "42",
            "[]",
            "{}",
            r#"{"lockId":"secret"}"#,
            r#"{"lockId":"secret","expiresAtMs":1,"acquiredAtMs":1,"key":"k","fence":"000000000000001"}"#,
            r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":"secret","acquiredAtMs":1,"key":"k","fence":"000000000000001"}"#,
            r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1,"acquiredAtMs":1,"key":"","fence":"000000000000001"}"#,
            r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1,"acquiredAtMs":1,"key":"secret","fence":"1"}"#,
            r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1,"acquiredAtMs":1,"key":"secret","fence":"000000000000001""#,
        ] {
            let error = parse(value).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{value}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{value}");
        }
    }
}
