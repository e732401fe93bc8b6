//! The stored lock, as rows of replies have it.

use std::time::Duration;

use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row as _, Sqlite, Type};
use syncguard_core::backend::{AcquireResult, FailureReason, Grant};
use syncguard_core::{ExtendResult, Fence, LockError, LockId, LockInfoDebug, LockKey};

/// Reads the reply to an acquire.
pub(crate) fn read_acquired(row: &SqliteRow, id: &LockId) -> Result<AcquireResult, LockError> {
    match word(row)? {
        "granted" => {
            let read = || {
                let (expires_at_ms, fence) = (column(row, "expires_at_ms")?, fence(row)?);
                let grant = Grant::new(*id, expires_at_ms, fence);
                Ok(AcquireResult::Acquired(grant))
            };
            // The lock was granted nonetheless: it must be released.
            read().map_err(LockError::with_outcome_unknown)
        }
        "locked" => {
            let free_in_ms: Option<i64> = column(row, "free_in_ms")?;
            let free_in_ms = free_in_ms.and_then(|ms| u64::try_from(ms).ok());
            Ok(free_in_ms.map_or_else(AcquireResult::locked, |ms| {
                AcquireResult::locked_for(Duration::from_millis(ms))
            }))
        }
        "exhausted" => Err(Fence::exhausted()),
        _ => Err(unreadable()),
    }
}

/// Reads the reply to a release: the storage key of the lock that was live, or why there was none.
pub(crate) fn read_released(row: Option<&SqliteRow>) -> Result<Released<'_>, LockError> {
    let Some(row) = row else {
        return Ok(Err(FailureReason::NotFound));
    };
    match word(row)? {
        "released" => Ok(Ok(column(row, "key")?)),
        "expired" => Ok(Err(FailureReason::Expired)),
        _ => Err(unreadable()),
    }
}

pub(crate) type Released<'r> = Result<&'r str, FailureReason>;

/// Reads the reply to an extend.
pub(crate) fn read_extended(row: Option<&SqliteRow>) -> Result<ExtendResult, LockError> {
    let Some(row) = row else {
        return Ok(ExtendResult::not_held(Some(FailureReason::NotFound)));
    };
    match word(row)? {
        "extended" => Ok(ExtendResult::extended(column(row, "expires_at_ms")?)),
        "expired" => Ok(ExtendResult::not_held(Some(FailureReason::Expired))),
        _ => Err(unreadable()),
    }
}

/// Reads a stored lock.
pub(crate) fn read_info(row: &SqliteRow) -> Result<LockInfoDebug, LockError> {
    Ok(LockInfoDebug::new(
        LockKey::new(column(row, "user_key")?).map_err(|_| unreadable())?,
        LockId::parse(column::<&str>(row, "lock_id")?).map_err(|_| unreadable())?,
        column(row, "expires_at_ms")?,
        column(row, "acquired_at_ms")?,
        fence(row)?,
    ))
}

/// Reads the reply to a listing: live locks with their storage keys, and where the next page begins. A row that
/// SyncGuard did not write is left out.
pub(crate) fn read_page(rows: &[SqliteRow], limit: u32) -> Result<Page<'_>, LockError> {
    let (mut locks, mut last, mut looked_at, mut count) = (Vec::new(), None, None, 0);
    for row in rows {
        let key: &str = column(row, "key")?;
        match word(row)? {
            "lock" => {
                locks.extend(read_info(row).map(|lock| (key, lock)));
                (last, count) = (Some(key), count + 1);
            }
            _ => looked_at = Some(key),
        }
    }
    let next = if count == limit { last } else { looked_at };
    Ok((locks, next))
}

pub(crate) type Page<'r> = (Vec<(&'r str, LockInfoDebug)>, Option<&'r str>);

/// A column of a reply.
pub(crate) fn column<'r, T>(row: &'r SqliteRow, name: &str) -> Result<T, LockError>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    row.try_get(name).map_err(|_| unreadable())
}

fn word(row: &SqliteRow) -> Result<&str, LockError> {
    column(row, "word")
}

fn fence(row: &SqliteRow) -> Result<Fence, LockError> {
    let text: &str = column(row, "fence")?;
    text.parse().map_err(|_| unreadable())
}

/// The error of a row that SyncGuard did not write.
pub(crate) fn unreadable() -> LockError {
    LockError::invalid_argument(
        "the stored lock has a value that SyncGuard does not write; it was left unchanged: repair the row",
    )
}
