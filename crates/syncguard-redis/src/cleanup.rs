//! [`Cleanup`]: removing long expired locks that a look-up came across.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use syncguard_core::{LockError, LockInfoDebug};
use tokio::time::Instant;

use crate::client::Clients;
use crate::document::Reading;
use crate::keys::Names;
use crate::script::CLEANUP;

/// How long ago a lock must have expired, by the server's time.
const GUARD_MS: i64 = 2_000;
/// At most one removal in this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shared by the clones of a store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cleanup {
    last: Arc<Mutex<Option<Instant>>>,
}

impl Cleanup {
    /// Removes a lock in the background if it is expired for long enough and none was removed just
    /// now. What was read is a lock, so it is no fence counter.
    pub(crate) fn consider(
        &self,
        clients: &Clients,
        names: &Names,
        key: String,
        seen: Reading,
        lock: &LockInfoDebug,
    ) {
        if seen.now_ms.saturating_sub(lock.expires_at_ms) <= GUARD_MS || !self.is_due() {
            return;
        }
        let (clients, index, id) = (clients.clone(), names.index(&lock.lock_id), lock.lock_id);
        drop(tokio::spawn(async move {
            let removal = async {
                let keys = vec![key, index?];
                clients
                    .run(id.as_str(), &CLEANUP, keys, [seen.value.into()])
                    .await?;
                Ok::<_, LockError>(())
            };
            if let Err(error) = removal.await {
                tracing::debug!(code = %error.code(), "an expired lock was not removed");
            }
        }));
    }

    fn is_due(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= INTERVAL);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}
