//! Deletes an expired lock that `is_locked` finds, if that is enabled.

use syncguard_core::backend::DEFAULT_OPERATION_TIMEOUT;
use tokio::time::Instant;

use crate::PostgresBackend;

impl PostgresBackend {
    /// Deletes the expired row of a key in the background, unless it did so for some row within the last
    /// second.
    pub(crate) fn clean_up(&self, storage_key: String) {
        if !self.cleanups().is_due() {
            return;
        }
        let backend = self.clone();
        tokio::spawn(async move {
            let statement = &backend.statements().clean_key;
            let deadline = Instant::now() + DEFAULT_OPERATION_TIMEOUT;
            if let Err(error) = backend.query(statement, &storage_key, &[], deadline).await {
                tracing::debug!(
                    code = %error.code(),
                    "failed to delete an expired lock; a later is_locked tries again"
                );
            }
        });
    }
}
