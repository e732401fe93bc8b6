//! The stored lock, as statements reply with it: fields separated by spaces.

use std::time::Duration;

use syncguard_core::backend::{AcquireResult, Grant};
use syncguard_core::{ErrorCode, Fence, LockError, LockId, LockInfoDebug, LockKey};

/// Parses `EXPIRES_AT_MS FENCE`.
pub(crate) fn parse_grant(text: &str, id: &LockId) -> Result<Grant, LockError> {
    let parsed = || {
        let (expires_at_ms, fence) = text.split_once(' ').ok_or_else(unreadable)?;
        Ok(Grant::new(
            *id,
            parse_ms(expires_at_ms)?,
            parse_fence(fence)?,
        ))
    };
    // The server granted the lock nonetheless: it must be released.
    parsed().map_err(LockError::with_outcome_unknown)
}

/// Parses `FREE_IN_MS`, or nothing where the statement did not see the other's lock: it was granted
/// while the statement queued.
pub(crate) fn parse_locked(text: &str) -> Result<AcquireResult, LockError> {
    if text.is_empty() {
        return Ok(AcquireResult::locked());
    }
    let millis = text.parse().map_err(|_| unreadable())?;
    Ok(AcquireResult::locked_for(Duration::from_millis(millis)))
}

/// Parses `EXPIRES_AT_MS ACQUIRED_AT_MS FENCE LOCK_ID USER_KEY`.
pub(crate) fn parse_info(text: &str) -> Result<LockInfoDebug, LockError> {
    let fields: Vec<_> = text.splitn(5, ' ').collect();
    let [expires_at_ms, acquired_at_ms, fence, lock_id, key] = fields[..] else {
        return Err(unreadable());
    };
    Ok(LockInfoDebug::new(
        LockKey::new(key).map_err(|_| unreadable())?,
        LockId::parse(lock_id).map_err(|_| unreadable())?,
        parse_ms(expires_at_ms)?,
        parse_ms(acquired_at_ms)?,
        parse_fence(fence)?,
    ))
}

/// A page: locks with their storage keys, and behind which storage key the next page begins.
pub(crate) struct Page {
    pub(crate) locks: Vec<(String, LockInfoDebug)>,
    pub(crate) next: Option<String>,
}

/// Storage key, expiry, time of acquisition, fence, lock id, key.
type Row = (String, i64, i64, String, String, String);

/// Parses `[NEXT, [[STORAGE_KEY, EXPIRES_AT_MS, ACQUIRED_AT_MS, FENCE, LOCK_ID, USER_KEY], ...]]`, JSON. A row that
/// SyncGuard did not write is left out.
pub(crate) fn parse_page(text: &str) -> Result<Page, LockError> {
    let parsed = serde_json::from_str(text);
    let (next, rows): (Option<String>, Vec<Row>) = parsed.map_err(|_| unreadable())?;
    let lock = |row: Row| {
        let (storage_key, expires_at_ms, acquired_at_ms, fence, lock_id, key) = row;
        let (key, lock_id) = (LockKey::new(&key).ok()?, LockId::parse(&lock_id).ok()?);
        let fence = parse_fence(&fence).ok()?;
        let lock = LockInfoDebug::new(key, lock_id, expires_at_ms, acquired_at_ms, fence);
        Some((storage_key, lock))
    };
    let locks = rows.into_iter().filter_map(lock).collect();
    Ok(Page { locks, next })
}

pub(crate) fn parse_ms(text: &str) -> Result<i64, LockError> {
    text.parse().map_err(|_| unreadable())
}

fn parse_fence(text: &str) -> Result<Fence, LockError> {
    text.parse().map_err(|_| unreadable())
}

/// The error of a row that SyncGuard did not write.
pub(crate) fn unreadable() -> LockError {
    LockError::new(
        ErrorCode::Internal,
        "the stored lock has a value that SyncGuard does not write",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_hold_spaces_and_newlines() {
        let id = "A".repeat(22);
        let info = parse_info(&format!(
            "2000 1000 000000000000007 {id} a key\nof two lines"
        ))
        .unwrap();
        assert_eq!(info.key.as_str(), "a key\nof two lines");
        assert_eq!(info.fence.get(), 7);
        assert_eq!((info.expires_at_ms, info.acquired_at_ms), (2000, 1000));
    }

    #[test]
    fn a_grant_that_cannot_be_read_has_an_unknown_outcome() {
        let id = LockId::parse("A".repeat(22).as_str()).unwrap();
        for text in ["", "2000", "x 000000000000007", "2000 7"] {
            assert!(parse_grant(text, &id).unwrap_err().outcome_unknown());
        }
        let grant = parse_grant("2000 000000000000007", &id).unwrap();
        assert_eq!((grant.expires_at_ms, grant.fence.get()), (2000, 7));
    }
}
