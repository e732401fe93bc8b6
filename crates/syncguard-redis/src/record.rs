//! What is stored under a lock's key, as JSON.

use std::borrow::Cow;

use serde::Deserialize;
use syncguard_core::{
    Fence, LockError, LockId, LockInfoDebug, LockKey, TIME_TOLERANCE_MS, is_live,
};

/// A stored value and the server's time when it was read.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) value: String,
    pub(crate) now_ms: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(borrow)]
    lock_id: Cow<'a, str>,
    expires_at_ms: i64,
    acquired_at_ms: i64,
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    fence: Cow<'a, str>,
}

/// How the value of a lock with this id begins: all before the expiry.
pub(crate) fn head(id: &LockId) -> String {
    format!(r#"{{"lockId":"{}","expiresAtMs":"#, id.as_str())
}

/// How the value of a lock on this key goes on after the times: all before the fence.
pub(crate) fn tail(key: &LockKey) -> String {
    let key = serde_json::Value::from(key.as_str());
    format!(r#","key":{key},"fence":""#)
}

/// The lock that a value says, live or not.
///
/// A value that is no lock is `InvalidArgument`. Its text stays out of the error, and so does the
/// parser's, which would quote it.
pub(crate) fn parse(value: &str) -> Result<LockInfoDebug, LockError> {
    let document: Document<'_> = serde_json::from_str(value).map_err(|_| not_a_lock())?;
    Ok(LockInfoDebug {
        key: LockKey::new(&document.key).map_err(|_| not_a_lock())?,
        lock_id: LockId::parse(&document.lock_id).map_err(|_| not_a_lock())?,
        expires_at_ms: document.expires_at_ms,
        acquired_at_ms: document.acquired_at_ms,
        fence: document.fence.parse::<Fence>().map_err(|_| not_a_lock())?,
    })
}

impl Reading {
    pub(crate) fn lock(&self) -> Result<LockInfoDebug, LockError> {
        parse(&self.value)
    }

    pub(crate) fn is_live(&self, lock: &LockInfoDebug) -> bool {
        is_live(lock.expires_at_ms, self.now_ms, TIME_TOLERANCE_MS)
    }
}

/// The error for a stored value that is no lock.
pub(crate) fn not_a_lock() -> LockError {
    LockError::invalid_argument(
        "the value at the lock's place in Redis is no lock; it was left as it is",
    )
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
    fn anything_else_is_refused_without_being_quoted() {
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
