//! [`Overdue`]: a lease in the tolerance.

use std::time::Instant;

use futures_util::future::try_join_all;
use syncguard_core::backend::{FenceToken, LockBackend, TIME_TOLERANCE_MS};
use syncguard_core::{LockId, LockInfoDebug, LockKey};

use crate::clock::dead_at;
use crate::outcome::{same, step};
use crate::steps::{EXTENDS, LONG, acquire, ms, renew, ttl};
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

pub(crate) const TOO_SLOW: Outcome =
    Outcome::Skipped("the store takes too long to be asked within the second after an expiry");

/// A lease in the tolerance: its expiry has passed, and the second after it has not.
pub(crate) struct Overdue<F: FenceToken> {
    pub(crate) key: LockKey,
    pub(crate) id: LockId,
    /// The lock as it was before its expiry.
    pub(crate) info: LockInfoDebug<F>,
    /// The lease is in the tolerance between these local times.
    pub(crate) from: Instant,
    pub(crate) until: Instant,
    /// From this local time the store must count the lease as dead.
    pub(crate) dead_at: Instant,
}

impl<F: FenceToken> Overdue<F> {
    /// Acquires a key, and lets its lease expire after so many extends.
    #[track_caller]
    pub(crate) fn new<B: LockBackend<Fence = F>>(
        client: &Client<B>,
        key: LockKey,
        extends: usize,
    ) -> impl Future<Output = Result<Self, Failure>> {
        step(async move {
            // The store's clock may be coarse.
            let (lasting, slack) = (ms(50), ms(40));
            let granted = if extends == 0 { lasting } else { LONG };
            let mut sent = Instant::now();
            let grant = acquire(client, &key, granted).await?;
            let (id, mut expires_at_ms) = (grant.lock_id, grant.expires_at_ms);
            let acquired_at_ms = expires_at_ms - ttl(granted)?.as_millis();
            for left in (0..extends).rev() {
                sent = Instant::now();
                expires_at_ms = renew(client, &id, if left == 0 { lasting } else { LONG }).await?;
            }
            let tolerance = ms(TIME_TOLERANCE_MS.unsigned_abs());
            let info =
                LockInfoDebug::new(key.clone(), id, expires_at_ms, acquired_at_ms, grant.fence);
            Ok(Self {
                key,
                id,
                info,
                from: Instant::now() + lasting + slack,
                until: sent + lasting + tolerance - slack,
                dead_at: dead_at(lasting),
            })
        })
    }
}

/// Leases in the tolerance are as live after other work as before it, extended or not. If the work takes longer than
/// the tolerance, the case tries again.
#[track_caller]
pub(crate) fn unchanged_in_tolerance<H: Harness, W: Future<Output = Result<(), Failure>>>(
    bench: &Bench<H>,
    client: &Client<H::Backend>,
    what: &str,
    work: impl Fn() -> W,
) -> impl Future<Output = CaseResult> {
    const ROUNDS: usize = 6;
    step(async move {
        for round in 0..ROUNDS {
            let mut leases = Vec::new();
            let keys = bench.keys(&format!("overdue:{round}"), EXTENDS.len())?;
            for (extends, key) in EXTENDS.into_iter().zip(keys) {
                leases.push(Overdue::new(client, key, extends).await?);
            }
            for lease in &leases {
                tokio::time::sleep_until(lease.from.into()).await;
            }
            let are_live = async || {
                try_join_all(leases.iter().map(|lease| client.is_locked(&lease.key))).await
            };
            let before = are_live().await?;
            work().await?;
            let after = are_live().await?;
            let in_time = leases.iter().all(|lease| Instant::now() < lease.until);
            for lease in &leases {
                let _ = client.release(&lease.id).await?;
            }
            if in_time {
                same(
                    &format!("is_locked in the tolerance, after {what}"),
                    after,
                    before,
                )?;
                return Ok(Outcome::Passed);
            }
        }
        Ok(TOO_SLOW)
    })
}
