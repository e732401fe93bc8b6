//! [`AutoExtend`]: keeping a lease alive for as long as its holder works.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::{Lease, ManagedBackend, Ttl};

/// A lease is renewed once this fraction of its TTL has passed.
const RENEWALS_PER_TTL: u32 = 3;

/// How many times a failing renewal is tried again within one interval.
const RETRIES_PER_INTERVAL: u32 = 8;

/// How a lease is kept alive: see [`LockOptions::with_auto_extend`](crate::LockOptions) and
/// [`LockGuard::with_auto_extend`](crate::LockGuard::with_auto_extend).
///
/// A third into its TTL the lease is renewed for another, by one request at a time. A renewal that
/// fails is tried again until the local deadline. Once the store says that the lock is gone, or the
/// deadline has passed, the lease is [lost](Lease::lost).
///
/// ```
/// # use std::time::Duration;
/// # use syncguard_core::{AutoExtend, LockOptions};
/// let options = LockOptions::new()
///     .with_ttl(Duration::from_secs(10))
///     .with_auto_extend(AutoExtend::new().with_max_hold(Duration::from_secs(3600)));
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

    /// Stops renewing this long after the start; the lease then runs out with its TTL. Default:
    /// no limit. It keeps a section that hangs from holding its key for ever.
    pub fn with_max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }
}

/// A running renewal.
#[derive(Debug)]
pub(crate) struct Renewal(JoinHandle<()>);

impl Renewal {
    pub(crate) fn start<B: ManagedBackend>(
        runtime: &Handle,
        lease: Lease<B>,
        ttl: Ttl,
        options: AutoExtend,
    ) -> Self {
        Self(runtime.spawn(async move {
            match options.max_hold {
                None => renew(&lease, ttl).await,
                // The lease is left to run out.
                Some(max_hold) => drop(tokio::time::timeout(max_hold, renew(&lease, ttl)).await),
            }
        }))
    }

    /// Ends it and waits until it is gone, a request in flight included. Such a request can no
    /// longer do harm once the lock is released: an extend brings nothing back.
    pub(crate) async fn stop(mut self) {
        self.0.abort();
        // Aborted or, had it ended by itself, done: there is nothing to learn from the result.
        drop((&mut self.0).await);
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Renews the lease until it is lost.
async fn renew<B: ManagedBackend>(lease: &Lease<B>, ttl: Ttl) {
    let left_when_due = ttl.as_duration() - ttl.as_duration() / RENEWALS_PER_TTL;
    let retry_pause = ttl.as_duration() / (RENEWALS_PER_TTL * RETRIES_PER_INTERVAL);
    loop {
        lease.until_at_most(left_when_due).await;
        let renewed = tokio::time::timeout(lease.remaining(), lease.extend(ttl)).await;
        if !lease.is_valid() {
            return;
        }
        if !matches!(renewed, Ok(Ok(_))) {
            tokio::time::sleep(retry_pause.min(lease.remaining())).await;
        }
    }
}
