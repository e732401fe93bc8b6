//! [`AutoExtend`]: renews a lease while its holder works.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::backend::FenceToken;
use crate::call::Limits;
use crate::{Lease, Ttl};

/// SyncGuard renews a lease when this fraction of its TTL has passed.
const RENEWALS_PER_TTL: u32 = 3;

/// How often a failed renewal is retried within one interval.
const RETRIES_PER_INTERVAL: u32 = 8;

/// How a lease is renewed: see [`LockOptions::auto_extend`](crate::LockOptions::auto_extend) and
/// [`LockGuard::auto_extend`](crate::LockGuard::auto_extend).
///
/// SyncGuard renews the lease every TTL/3, with one request in flight at a time. It retries a failed
/// renewal until the local deadline. When the store says that the lock is gone, or the deadline has passed,
/// the lease is [lost](Lease::lost).
///
/// ```
/// # use std::time::Duration;
/// # use syncguard_core::{AutoExtend, LockOptions};
/// let options = LockOptions::new()
///     .ttl(Duration::from_secs(10))
///     .auto_extend(AutoExtend::new().max_hold(Duration::from_secs(3600)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct AutoExtend {
    max_hold: Option<Duration>,
}

impl AutoExtend {
    /// Renews for as long as the lock is held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops renewing this long after the start. The lease then expires with its TTL, so the lock is held
    /// for at most `max_hold` plus one TTL. Default: no limit.
    ///
    /// So a section that hangs does not hold its key for ever.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Whether the renewals have stopped by themselves after this time.
    pub(crate) fn ended(self, after: Duration) -> bool {
        self.max_hold.is_some_and(|max_hold| after >= max_hold)
    }
}

/// A running renewal.
#[derive(Debug)]
pub(crate) struct Renewal(JoinHandle<()>);

impl Renewal {
    pub(crate) fn start<F: FenceToken>(
        runtime: &Handle,
        lease: Lease<F>,
        ttl: Ttl,
        options: AutoExtend,
    ) -> Self {
        Self(runtime.spawn(async move {
            match options.max_hold {
                None => renew(&lease, ttl).await,
                // The lease then expires.
                Some(max_hold) => drop(tokio::time::timeout(max_hold, renew(&lease, ttl)).await),
            }
        }))
    }

    /// Ends the renewal, a request in flight included. That request does no harm after the release: an
    /// extend does not bring a lock back.
    pub(crate) fn abort(&self) {
        self.0.abort();
    }

    /// Resolves when the task has ended.
    pub(crate) async fn ended(mut self) {
        // The task was aborted or ended by itself: its result does not matter.
        drop((&mut self.0).await);
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Renews the lease until it is lost.
async fn renew<F: FenceToken>(lease: &Lease<F>, ttl: Ttl) {
    let left_when_due = ttl.as_duration() - ttl.as_duration() / RENEWALS_PER_TTL;
    let retry_pause = ttl.as_duration() / (RENEWALS_PER_TTL * RETRIES_PER_INTERVAL);
    let limits = Limits::default();
    loop {
        lease.until_at_most(left_when_due).await;
        let renewal = lease.extend_within(ttl, &limits);
        let renewed = tokio::time::timeout(lease.remaining(), renewal).await;
        if !lease.is_valid() {
            return;
        }
        if !matches!(renewed, Ok(Ok(_))) {
            tokio::time::sleep(retry_pause.min(lease.remaining())).await;
        }
    }
}
