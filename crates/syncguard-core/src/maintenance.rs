//! Operations for operators: drain, check the configuration, purge, close.

use std::time::Duration;

use crate::backend::{Capabilities, CloseRequest, FenceToken, PreflightRequest, PurgeRequest};
use crate::call::{Limits, Subject, aborted};
use crate::error::Operation;
use crate::{ErrorCode, Finding, LockError, Locks, Request};

/// How many expired locks one call to the store deletes.
const PURGE_LIMIT: u32 = 500;

impl<F: FenceToken> Locks<F> {
    /// Waits until all background releases have ended: of dropped guards, of abandoned operations, and of
    /// operations with an unknown outcome. Call it before the process or its runtime ends.
    ///
    /// It covers this handle, its clones, and the handles that [`observed_by`](Self::observed_by) made of
    /// them. It does not cover a `Locks` that was built separately.
    ///
    /// # Errors
    /// `NetworkTimeout` if some releases were still pending after `timeout`; they continue. `Aborted`.
    /// `Internal` outside a Tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping the request stops the wait, not the releases.
    pub fn drain(&self, timeout: Duration) -> Request<()> {
        let store = self.store().clone();
        Request::new(move |limits: Limits| async move {
            limits.check()?;
            let drained = tokio::time::timeout(timeout, store.background.wait());
            tokio::select! {
                biased;
                () = limits.cancelled(), if limits.token.is_some() => Err(aborted()),
                drained = drained => drained.map_err(|_| {
                    let pending = store.background.len();
                    let message = format!(
                        "{pending} background releases still pending after {timeout:.1?}; locks that \
                         are never released expire with their TTL"
                    );
                    LockError::new(ErrorCode::NetworkTimeout, message)
                }),
            }
        })
    }

    /// How many background releases are pending.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.store().background.len()
    }

    /// What the backend is and can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.store().capabilities.clone()
    }

    /// Whether every grant has a fencing token.
    #[must_use]
    pub const fn supports_fencing(&self) -> bool {
        F::SUPPORTED
    }

    /// Checks how the store is configured. The most severe findings come first. If none is above
    /// [`Severity::Info`](crate::Severity::Info), the configuration keeps every promise.
    ///
    /// Call it once at start-up: it takes a few round trips. It changes no lock, no fence and no
    /// setting of the store.
    ///
    /// ```
    /// # use syncguard_core::{LockError, Locks, Severity};
    /// # use syncguard_memory::MemoryBackend;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// # let locks = Locks::new(MemoryBackend::default());
    /// for finding in locks.preflight().await? {
    ///     println!("{finding}");
    ///     assert!(finding.severity() < Severity::Error);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Aborted`, or a failure of the store that would fail every operation, such as a server that
    /// cannot be reached or a wrong password.
    ///
    /// # Cancel safety
    /// Safe: it changes nothing.
    pub fn preflight(&self) -> Request<Vec<Finding>> {
        let store = self.store().clone();
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::Preflight);
            let send = |deadline| store.backend.preflight(PreflightRequest::new(deadline));
            let mut findings: Vec<Finding> = store.call(subject, &limits, send).await?;
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity()));
            Ok(findings)
        })
    }

    /// Deletes locks that expired, and returns how many. It never deletes a fence counter.
    ///
    /// Expired locks do no harm, but take up space in stores that do not remove them themselves: see
    /// the backend's documentation. It works in steps; the operation timeout limits each step.
    ///
    /// # Errors
    /// `Aborted`, or a failure of the store. Locks that were deleted before the error stay deleted.
    ///
    /// # Cancel safety
    /// Safe: it stops between two steps or within one.
    pub fn purge_expired(&self) -> Request<u64> {
        let store = self.store().clone();
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::PurgeExpired);
            let mut purged = 0_u64;
            loop {
                let send = |deadline| {
                    let request = PurgeRequest::new(PURGE_LIMIT, deadline);
                    store.backend.purge_expired(request)
                };
                let step = store.call(subject, &limits, send).await?;
                purged = purged.saturating_add(step);
                if step < PURGE_LIMIT.into() {
                    return Ok(purged);
                }
            }
        })
    }

    /// Ends this handle, its clones and what was made from them: operations then fail with
    /// `ServiceUnavailable`, and background releases stop. It closes the connections that the backend
    /// itself opened. [Drain](Self::drain) first.
    ///
    /// A client or pool that the application passed to the backend stays open. Calling it again is
    /// harmless.
    ///
    /// # Errors
    /// `Aborted` if the token was cancelled; if that was before the start, nothing is closed. Otherwise a
    /// failure to close in an orderly way within the operation timeout.
    ///
    /// # Cancel safety
    /// Safe: once it has begun, operations fail, and the connections close at the latest with the last clone.
    pub fn close(&self) -> Request<()> {
        let store = self.store().clone();
        Request::new(move |limits| async move {
            let subject = Subject::new(Operation::Close);
            let send = |deadline| {
                store.closed.cancel();
                store.backend.close(CloseRequest::new(deadline))
            };
            store.call(subject, &limits, send).await
        })
    }
}
