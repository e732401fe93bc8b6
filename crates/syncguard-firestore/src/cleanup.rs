//! Deleting locks that expired long ago, and nothing else.

use gcloud_sdk::google::firestore::v1::Write;
use syncguard_core::LockError;
use syncguard_core::backend::{CLEANUP_GUARD_MS, DEFAULT_OPERATION_TIMEOUT};
use tokio::time::Instant;

use crate::FirestoreBackend;
use crate::backend::Snapshot;
use crate::error;
use crate::record::{LockDocument, Version, delete};

/// The most locks that one read returns and one batch deletes. Firestore accepts 500 writes.
const PAGE: u32 = 300;

impl FirestoreBackend {
    /// Deletes at most `limit` locks that have been expired for more than 2 s, and returns how many.
    /// A lock that is acquired or extended meanwhile is left alone.
    pub(crate) async fn purge(&self, limit: u32, deadline: Instant) -> Result<u64, LockError> {
        let mut purged = 0;
        while purged < limit {
            let page = PAGE.min(limit - purged);
            let snapshot = self.read(self.wire.find_by_expiry(page, deadline)).await?;
            let writes = deletions(&snapshot)?;
            if writes.is_empty() {
                break;
            }
            let (read, expired) = (snapshot.documents.len(), writes.len());
            let deleted = self.wire.write_each(writes, deadline).await;
            let deleted = deleted.map_err(|status| error::of_commit(&status))?;
            purged = purged.saturating_add(deleted);
            // The rest is live, or there is none, or other clients keep changing it.
            if expired < read || u32::try_from(read) != Ok(page) || deleted == 0 {
                break;
            }
        }
        Ok(purged.into())
    }

    /// Starts the deletion of a lock that has expired long ago, if that is enabled and no deletion was
    /// started within the last second.
    pub(crate) fn clean_up(&self, snapshot: &Snapshot) {
        let Some(throttle) = &self.cleanups else {
            return;
        };
        // A malformed document belongs to someone else.
        let writes = deletions(snapshot).unwrap_or_default();
        if writes.is_empty() || !throttle.is_due() {
            return;
        }
        let wire = self.wire.clone();
        tokio::spawn(async move {
            let deadline = Instant::now() + DEFAULT_OPERATION_TIMEOUT;
            // Best effort: a later `is_locked` tries again.
            let _ = wire.write_each(writes, deadline).await;
        });
    }
}

/// Deletes a lock that has expired long enough ago, in the version that was read.
fn deletions(snapshot: &Snapshot) -> Result<Vec<Write>, LockError> {
    let mut writes = Vec::new();
    for document in &snapshot.documents {
        let lock = LockDocument::parse(document)?;
        if snapshot.moment.now_ms.saturating_sub(lock.expires_at_ms) > CLEANUP_GUARD_MS {
            writes.push(delete(document.name.clone(), Version::of(document)?));
        }
    }
    Ok(writes)
}
