//! Time in cases: by the store's own clock, or by the local monotonic one. Cases never compare the two.

use std::time::{Duration, Instant};

use syncguard_core::backend::{CLEANUP_GUARD_MS, Grant, LockBackend, TIME_TOLERANCE_MS};
use syncguard_core::{LockId, LockKey};

use crate::outcome::{require, step};
use crate::steps::{acquire, ms, release, renew, ttl};
use crate::{Bench, Client, Failure, Harness};

/// TTLs for calls that must come before a lease ends. If a slow machine is too late with one, the case tries the
/// next.
pub(crate) const LIFETIMES: [Duration; 6] = [
    Duration::from_millis(500),
    Duration::from_millis(1_000),
    Duration::from_millis(2_000),
    Duration::from_millis(4_000),
    Duration::from_millis(8_000),
    Duration::from_millis(16_000),
];

/// Allows for a small drift between the two clocks, and for milliseconds that begin at different times.
const MARGIN: Duration = Duration::from_millis(100);

/// If a store takes seconds to answer, no case can say anything about a live lease.
#[track_caller]
pub(crate) fn too_slow() -> Failure {
    Failure::new("expected an answer within a lease of 16 s, saw none")
}

/// The store's clock, read from the expiry of a lock that the case extends each time.
#[derive(Debug)]
pub(crate) struct StoreClock<B: LockBackend> {
    client: Client<B>,
    id: LockId,
}

impl<B: LockBackend> StoreClock<B> {
    const LASTING: Duration = Duration::from_secs(3_600);

    #[track_caller]
    pub(crate) fn new<H: Harness<Backend = B>>(
        bench: &Bench<H>,
    ) -> impl Future<Output = Result<Self, Failure>> {
        step(async move {
            let client = bench.client().await?;
            let id = acquire(&client, &bench.key("clock")?, Self::LASTING).await?;
            let id = id.lock_id;
            Ok(Self { client, id })
        })
    }

    /// The store's present, in Unix milliseconds.
    #[track_caller]
    pub(crate) fn now_ms(&self) -> impl Future<Output = Result<i64, Failure>> {
        step(async move {
            let expires_at_ms = renew(&self.client, &self.id, Self::LASTING).await?;
            Ok(expires_at_ms - ttl(Self::LASTING)?.as_millis())
        })
    }

    #[track_caller]
    pub(crate) fn stop(self) -> impl Future<Output = Result<(), Failure>> {
        step(async move { release(&self.client, &self.id).await })
    }
}

/// Allows for a few milliseconds between answers: only the values of one answer are exact.
pub(crate) const SLACK_MS: i64 = 5;

/// Fails unless the store counted `expires_at_ms` from a time between two readings of its clock.
#[track_caller]
pub(crate) fn counted_between(
    what: &str,
    expires_at_ms: i64,
    lasting: Duration,
    (before_ms, after_ms): (i64, i64),
) -> Result<(), Failure> {
    let from_ms = expires_at_ms - ttl(lasting)?.as_millis();
    require(
        (before_ms - SLACK_MS..=after_ms + SLACK_MS).contains(&from_ms),
        format_args!(
            "{what}: expected a TTL of {lasting:?} counted from {before_ms}..={after_ms}, \
             saw it counted from {from_ms}"
        ),
    )
}

/// A lease that expires soon.
#[derive(Debug)]
pub(crate) struct Brief<F> {
    pub(crate) grant: Grant<F>,
    /// From this time the store must count it as dead.
    dead_at: Instant,
}

impl<F> Brief<F> {
    /// Waits until the store must count the lease as dead.
    pub(crate) async fn end(&self) {
        tokio::time::sleep_until(self.dead_at.into()).await;
    }

    /// When a purge must delete the lock.
    pub(crate) fn purgeable_at(&self) -> Instant {
        self.dead_at + PURGED_LATER
    }
}

/// When a lease that was granted or extended before now must be dead.
pub(crate) fn dead_at(lasting: Duration) -> Instant {
    Instant::now() + lasting + ms(TIME_TOLERANCE_MS.unsigned_abs()) + MARGIN
}

/// For how long after the tolerance a purge may keep a lock.
const PURGED_LATER: Duration =
    Duration::from_millis(CLEANUP_GUARD_MS.unsigned_abs() - TIME_TOLERANCE_MS.unsigned_abs());

/// When a purge must delete a lock whose lease was granted or extended before now.
pub(crate) fn purgeable_at(lasting: Duration) -> Instant {
    dead_at(lasting) + PURGED_LATER
}

/// Acquires a free key for a short time. If the answer arrived after the lease had expired, tries a longer time.
#[track_caller]
pub(crate) fn acquire_briefly<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<Brief<B::Fence>, Failure>> {
    step(async move {
        for lasting in LIFETIMES {
            let begun = Instant::now();
            let grant = acquire(client, key, lasting).await?;
            if begun.elapsed() < lasting {
                let dead_at = dead_at(lasting);
                return Ok(Brief { grant, dead_at });
            }
            let _ = client.release(&grant.lock_id).await?;
        }
        Err(too_slow())
    })
}
