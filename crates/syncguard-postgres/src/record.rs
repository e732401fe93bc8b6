//! The stored lock, as statements reply with it.

use std::time::Duration;

use syncguard_core::backend::{AcquireResult, Grant};
use syncguard_core::{Fence, LockError, LockId, LockInfoDebug, LockKey};

use crate::wire::Reply;

/// The lock that an acquire was granted.
pub(crate) fn read_grant(reply: &Reply, id: &LockId) -> Result<Grant, LockError> {
    let fence: &str = reply.get("fence")?;
    let fence: Fence = fence.parse().map_err(|_| reply.unreadable())?;
    Ok(Grant::new(*id, reply.get("expires_at_ms")?, fence))
}

/// In how many milliseconds the key is free at the latest. The statement does not know that if the other's lock
/// was granted while it queued.
pub(crate) fn read_locked(reply: &Reply) -> Result<AcquireResult, LockError> {
    let Some(millis) = reply.get::<Option<i64>>("free_in_ms")? else {
        return Ok(AcquireResult::locked());
    };
    let millis = u64::try_from(millis).map_err(|_| reply.unreadable())?;
    Ok(AcquireResult::locked_for(Duration::from_millis(millis)))
}

/// The lock that a lookup found.
pub(crate) fn read_info(reply: &Reply) -> Result<Option<LockInfoDebug>, LockError> {
    let Some(expires_at_ms) = reply.get("expires_at_ms")? else {
        return Ok(None);
    };
    let info = parse(
        expires_at_ms,
        reply.get("acquired_at_ms")?,
        reply.get("fence")?,
        reply.get("lock_id")?,
        reply.get("user_key")?,
    );
    info.map(Some).ok_or_else(|| reply.unreadable())
}

/// Storage key, expiry, time of acquisition, fence, lock id, user's key.
type Listed = (String, i64, i64, String, String, String);

/// The locks of a page with their storage keys. Leaves out rows that SyncGuard did not write.
pub(crate) fn read_page(reply: &Reply) -> Result<Vec<(String, LockInfoDebug)>, LockError> {
    let locks: Vec<Listed> = reply.get("locks")?;
    let parsed = |(storage_key, expires_at_ms, acquired_at_ms, fence, lock_id, key): Listed| {
        let lock = parse(expires_at_ms, acquired_at_ms, &fence, &lock_id, &key)?;
        Some((storage_key, lock))
    };
    Ok(locks.into_iter().filter_map(parsed).collect())
}

fn parse(
    expires_at_ms: i64,
    acquired_at_ms: i64,
    fence: &str,
    lock_id: &str,
    key: &str,
) -> Option<LockInfoDebug> {
    Some(LockInfoDebug::new(
        LockKey::new(key).ok()?,
        LockId::parse(lock_id).ok()?,
        expires_at_ms,
        acquired_at_ms,
        fence.parse().ok()?,
    ))
}
