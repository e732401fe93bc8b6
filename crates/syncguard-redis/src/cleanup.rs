//! [`Cleanup`]: removes locks that expired long ago, when a look-up finds them.

use std::sync::Arc;

use syncguard_core::backend::{CLEANUP_GUARD_MS, Throttle};
use syncguard_core::{LockError, LockInfoDebug};

use crate::names::Names;
use crate::record::Reading;
use crate::wire::script::CLEANUP;
use crate::wire::{Clients, ScriptCall};

/// Shared by the clones of a backend.
#[derive(Debug, Clone)]
pub(crate) struct Cleanup {
    throttle: Arc<Throttle>,
}

impl Cleanup {
    pub(crate) fn new() -> Self {
        Self {
            throttle: Arc::new(Throttle::of_cleanups()),
        }
    }

    /// Removes a lock in the background if it expired long enough ago and the last removal is not too
    /// recent. Its value was parsed as a lock, so it is not a fence counter.
    pub(crate) fn consider(
        &self,
        clients: &Clients,
        names: &Names,
        key: String,
        seen: Reading,
        lock: &LockInfoDebug,
    ) {
        if seen.now_ms.saturating_sub(lock.expires_at_ms) <= CLEANUP_GUARD_MS
            || !self.throttle.is_due()
        {
            return;
        }
        let (clients, index, id) = (clients.clone(), names.index(&lock.lock_id), lock.lock_id);
        drop(tokio::spawn(async move {
            let removal = async {
                let deadline = clients.own_deadline();
                let call = ScriptCall::new(&CLEANUP, [key, index?], [seen.value.into()], deadline);
                clients.run(id.as_str(), call).await?;
                Ok::<_, LockError>(())
            };
            if let Err(error) = removal.await {
                tracing::debug!(
                    code = %error.code(),
                    "failed to remove an expired lock; a later is_locked tries again"
                );
            }
        }));
    }
}
