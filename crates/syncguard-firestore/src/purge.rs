//! Clean-up: of what is long expired, and of nothing else.

use std::time::{Duration, Instant};

use syncguard_core::{LockError, TIME_TOLERANCE_MS};

use crate::FirestoreStore;
use crate::backend::Snapshot;
use crate::document::{LockDocument, Version, delete};
use crate::error;

/// How long a lock must have been expired: a second beyond the tolerance by a client's clock, and
/// the 2 s that are asked of the server's.
const GUARD_MS: i64 = TIME_TOLERANCE_MS + 1_000;

/// Locks that are read, and deleted, at a time. A batch of writes holds up to 500.
const PAGE: i32 = 300;

/// Time between two deletions that `is_locked` starts.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(1);

impl FirestoreStore {
    /// Deletes locks that have been expired for more than 2 s, such as those of keys that are never
    /// used again; says how many. Never a fence counter.
    ///
    /// A lock that is taken or extended meanwhile is left alone. Each request is bounded by the
    /// [request timeout](crate::FirestoreOptions::with_request_timeout).
    ///
    /// # Errors
    /// A failure of the store. What was deleted before stays deleted.
    ///
    /// # Cancel safety
    /// Safe: it can be begun again at any time.
    pub async fn purge_expired(&self) -> Result<usize, LockError> {
        let mut purged = 0;
        loop {
            let snapshot = self.read(self.wire.find_by_expiry(PAGE)).await?;
            let writes = deletions(&snapshot)?;
            let (read, expired) = (snapshot.documents.len(), writes.len());
            if expired == 0 {
                return Ok(purged);
            }
            let deleted = self.wire.write_each(writes).await;
            let deleted = deleted.map_err(|status| error::of_commit(&status))?;
            purged += deleted;
            // A live lock was read, or the last one; or others keep changing what is left.
            if expired < read || i32::try_from(read) != Ok(PAGE) || deleted == 0 {
                return Ok(purged);
            }
        }
    }

    /// Starts the deletion of a lock that `is_locked` found long expired, if that is enabled and
    /// none was started lately.
    pub(crate) fn clean_up(&self, snapshot: &Snapshot) {
        if !self.cleanup_in_is_locked {
            return;
        }
        // A malformed lock is somebody else's document.
        let writes = deletions(snapshot).unwrap_or_default();
        if writes.is_empty() || !self.cleanup_is_due() {
            return;
        }
        let wire = self.wire.clone();
        tokio::spawn(async move {
            // Best effort: what fails here is found again.
            let _ = wire.write_each(writes).await;
        });
    }

    fn cleanup_is_due(&self) -> bool {
        let mut last = self.last_cleanup();
        let due = last.is_none_or(|last| last.elapsed() >= CLEANUP_INTERVAL);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// Deletes what is expired beyond the guard, in the version that was read.
fn deletions(
    snapshot: &Snapshot,
) -> Result<Vec<gcloud_sdk::google::firestore::v1::Write>, LockError> {
    let mut writes = Vec::new();
    for document in &snapshot.documents {
        let lock = LockDocument::parse(document)?;
        if snapshot.moment.now_ms.saturating_sub(lock.expires_at_ms) > GUARD_MS {
            writes.push(delete(document.name.clone(), Version::of(document)?));
        }
    }
    Ok(writes)
}
