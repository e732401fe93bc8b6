//! [`PurgeRace`]: purges that are halted while the keys of expired locks get new holders.

use futures_util::future::try_join_all;
use syncguard_core::{LockId, LockInfoDebug, LockKey};

use crate::clock::purgeable_at;
use crate::harness::Fence;
use crate::outcome::step;
use crate::polling::{HALTS, Halts};
use crate::steps::{EXPIRING, expiring, take_over};
use crate::{Bench, Client, Failure, Harness, Outcome};

/// Purges that are halted while the keys of expired locks get new holders.
pub(crate) struct PurgeRace<'a, H: Harness> {
    bench: &'a Bench<H>,
    /// Each purges once, on a connection of its own. Behind a pooler a purge may wait for one that a halted purge has:
    /// then the race is undecided.
    clients: Vec<Client<H::Backend>>,
    attempts: usize,
    halts: Halts,
    /// Whether a purge was ever halted between two steps.
    midway: bool,
    /// Whether the harness can read the store.
    has_view: bool,
    met: bool,
}

impl<'a, H: Harness> PurgeRace<'a, H> {
    const KEYS: usize = 3;
    const ATTEMPTS: usize = 5;

    #[track_caller]
    pub(crate) fn new(bench: &'a Bench<H>) -> impl Future<Output = Result<Self, Failure>> {
        step(async move {
            Ok(Self {
                bench,
                clients: bench.clients(HALTS).await?,
                attempts: 0,
                halts: Halts::new(bench),
                midway: false,
                has_view: true,
                met: false,
            })
        })
    }

    /// Whether the race is decided, or another run would not decide it either.
    pub(crate) fn is_over(&self) -> bool {
        let decided = self.met || self.halts.outcome() != Outcome::Passed;
        decided || !self.has_view || self.attempts == Self::ATTEMPTS
    }

    /// Races purges with other clients that acquire the keys of expired locks, named `purged`. Returns the keys, the
    /// former holders, and the successors' locks.
    #[track_caller]
    pub(crate) fn run(
        &mut self,
        other: &Client<H::Backend>,
    ) -> impl Future<Output = Result<Vec<TakenOver<H>>, Failure>> {
        step(async move {
            let attempt = self.attempts;
            self.attempts += 1;
            let keys = self.bench.keys(&format!("purged:{attempt}"), Self::KEYS)?;
            let mut expired = Vec::new();
            for key in &keys {
                expired.push(expiring(other, key).await?);
            }
            // Nobody acquires it again: a purge alone removes it.
            let left = format!("left:{attempt}");
            expiring(other, &self.bench.key(&left)?).await?;
            // Soon after that, others have not purged it either.
            let turn = self.bench.purging_at(purgeable_at(EXPIRING)).await;
            let planted = self.stored(&format!("purged:{attempt}:")).await?;
            let left_before = self.stored(&left).await?;
            // Few: others check that a purge keeps its limit.
            let purges = self.clients.iter().map(|client| client.purge_expired(3));
            let taking_over = keys.iter().zip(&expired);
            let taking_over = taking_over.map(|(key, former)| take_over(other, key, former));
            let (purged, successors, midway) =
                self.halts.halt_all(purges, try_join_all(taking_over)).await;
            drop(turn);
            let mut found = 0;
            for (polls, purged) in purged.into_iter().enumerate() {
                let purged = purged?;
                // The first purge begins after the other work.
                found += if polls > 0 { purged } else { 0 };
            }
            let left_after = self.stored(&left).await?;
            self.midway |= midway;
            self.has_view = planted.is_some();
            self.met = if midway {
                let were_there = (planted, left_before) == (Some(Self::KEYS), Some(1));
                were_there && left_after == Some(0)
            } else {
                found > 0
            };
            let taken_over = keys.into_iter().zip(expired).zip(successors?);
            let taken_over = taken_over
                .map(|((key, former), successor)| (key, former.lock_id, successor))
                .collect();
            Ok(taken_over)
        })
    }

    /// How many locks the store keeps of the keys that begin with this name.
    #[track_caller]
    fn stored(&self, name: &str) -> impl Future<Output = Result<Option<usize>, Failure>> {
        step(async move {
            let beginning = format!("{}:{name}", self.bench.namespace());
            let stored = self.bench.harness().stored(&beginning).await?;
            Ok(stored.map(|stored| stored.locks))
        })
    }

    /// Passed, if purges met the expired locks and were halted long enough; or if no purge can be halted between two
    /// steps, as on a store that deletes expired locks itself.
    pub(crate) fn outcome(&self) -> Outcome {
        match self.halts.outcome() {
            Outcome::Passed if self.midway && !self.met => Outcome::Skipped(
                "the expired locks were gone before the purge, or not after it, or the harness cannot tell",
            ),
            outcome => outcome,
        }
    }
}

/// A key, the former holder, and the successor's lock.
pub(crate) type TakenOver<H> = (LockKey, LockId, LockInfoDebug<Fence<H>>);
