//! [`PurgeRace`]: purges that are halted while the keys of expired locks get new holders.

use std::time::Duration;

use futures_util::future::try_join_all;
use syncguard_core::backend::LockBackend;
use syncguard_core::{LockId, LockInfoDebug, LockKey};

use crate::clock::dead_at;
use crate::harness::Fence;
use crate::outcome::step;
use crate::polling::Halts;
use crate::steps::{LONG, acquire, fence_in, held, ms, renew, rise};
use crate::{Bench, Client, Failure, Harness, Outcome};

/// More polls than a call has steps; a call that has ended by then is not halted.
pub(crate) const HALTS: usize = 12;

/// Purges that are halted while the keys of expired locks get new holders.
pub(crate) struct PurgeRace<'a, H: Harness> {
    bench: &'a Bench<H>,
    /// Each purges once: none waits for a connection that a halted purge has.
    clients: Vec<Client<H::Backend>>,
    attempts: usize,
    halts: Halts,
    met: bool,
}

impl<'a, H: Harness> PurgeRace<'a, H> {
    pub(crate) const KEYS: usize = 3;
    pub(crate) const ATTEMPTS: usize = 5;

    #[track_caller]
    pub(crate) fn new(bench: &'a Bench<H>) -> impl Future<Output = Result<Self, Failure>> {
        step(async move {
            Ok(Self {
                bench,
                clients: bench.clients(HALTS).await?,
                attempts: 0,
                halts: Halts::default(),
                met: false,
            })
        })
    }

    /// Races purges with other clients that acquire the keys of expired locks. Returns the keys, the former holders, and
    /// the successors' locks.
    #[track_caller]
    pub(crate) fn run(
        &mut self,
        other: &Client<H::Backend>,
    ) -> impl Future<Output = Result<Vec<TakenOver<H>>, Failure>> {
        step(async move {
            let name = format!("purged:{}", self.attempts);
            self.attempts += 1;
            let keys = self.bench.keys(&name, Self::KEYS)?;
            let mut expired = Vec::new();
            for key in &keys {
                expired.push(expiring(other, key).await?);
            }
            // A purge may keep what expired less than two seconds ago. Soon after that, others have not purged it either.
            tokio::time::sleep_until((dead_at(EXPIRING) + ms(1_000)).into()).await;
            let planted = format!("{}:{name}:", self.bench.namespace());
            let planted = self.bench.harness().stored(&planted).await?;
            let all_there = planted.is_some_and(|stored| stored.locks == Self::KEYS);
            // Few: others check that a purge keeps its limit.
            let purges = self.clients.iter().map(|client| client.purge_expired(3));
            let taking_over = keys.iter().zip(&expired);
            let taking_over = taking_over.map(|(key, former)| take_over(other, key, former));
            let (purged, successors, midway) =
                self.halts.halt_all(purges, try_join_all(taking_over)).await;
            for purged in purged {
                let _ = purged?;
            }
            // A purge of one step cannot be halted in the middle, whatever it finds.
            self.met = all_there || !midway;
            let taken_over = keys.into_iter().zip(expired).zip(successors?);
            let taken_over = taken_over
                .map(|((key, former), successor)| (key, former.lock_id, successor))
                .collect();
            Ok(taken_over)
        })
    }

    /// Passed, if the last purges met the expired locks, and were halted long enough.
    pub(crate) fn outcome(&self) -> Outcome {
        if self.met {
            self.halts.outcome()
        } else {
            Outcome::Skipped(
                "the expired locks were gone before the purge, or the harness cannot tell",
            )
        }
    }
}

/// A key, the former holder, and the successor's lock.
pub(crate) type TakenOver<H> = (LockKey, LockId, LockInfoDebug<Fence<H>>);

/// How long the lock of [`expiring`] is live.
pub(crate) const EXPIRING: Duration = Duration::from_millis(10);

/// A lock that expires at once, as it was before.
#[track_caller]
pub(crate) fn expiring<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<LockInfoDebug<B::Fence>, Failure>> {
    step(async move {
        let id = acquire(client, key, LONG).await?.lock_id;
        let info = held(client, key, &id).await?;
        renew(client, &id, EXPIRING).await?;
        Ok(info)
    })
}

/// Acquires the key of an expired lock for somebody else.
#[track_caller]
pub(crate) fn take_over<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    former: &LockInfoDebug<B::Fence>,
) -> impl Future<Output = Result<LockInfoDebug<B::Fence>, Failure>> {
    step(async move {
        let successor = acquire(client, key, LONG).await?.lock_id;
        let info = held(client, key, &successor).await?;
        rise(fence_in(former), fence_in(&info))?;
        Ok(info)
    })
}
