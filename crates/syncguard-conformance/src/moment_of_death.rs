//! [`Probe`]: a call in the millisecond in which a lease becomes dead.

use syncguard_core::backend::{LockBackend, Lookup, TIME_TOLERANCE_MS};
use syncguard_core::{LockId, LockKey};

use crate::clock::StoreClock;
use crate::outcome::{require, step};
use crate::steps::{LONG, acquire_as, ms, renew, ttl};
use crate::{Client, Failure};

/// Calls operations as soon as leases are dead. Each lease is extended as often as its probe says. Removes each probe
/// that was answered in that millisecond.
#[track_caller]
pub(crate) fn probe_the_moment_of_death<B: LockBackend>(
    client: &Client<B>,
    clock: &StoreClock<B>,
    keys: Vec<LockKey>,
    undecided: &mut Vec<(Probe, usize)>,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let probes = undecided.clone();
        let mut locks = Vec::new();
        for (probe, key) in probes.into_iter().cycle().zip(keys) {
            let id = LockId::generate()?;
            if probe.1 > 0 {
                acquire_as(client, &key, &id, LONG).await?;
            }
            for _ in 1..probe.1 {
                renew(client, &id, LONG).await?;
            }
            locks.push((probe, key, id, 0_i64));
        }
        for (order, (probe, key, id, dead_at_ms)) in (0_u64..).zip(&mut locks) {
            // The leases end at different times, so that each operation is called just as some lease ends. A coarse
            // clock distinguishes steps of 10 ms, too.
            let lasting = ms(100 + order * 10);
            let expires_at_ms = match probe.1 {
                0 => acquire_as(client, key, id, lasting).await?.expires_at_ms,
                _ => renew(client, id, lasting).await?,
            };
            *dead_at_ms = expires_at_ms + TIME_TOLERANCE_MS;
        }
        tokio::time::sleep(ms(950)).await;
        while !locks.is_empty() {
            let now_ms = clock.now_ms().await?;
            let due = locks
                .iter()
                .position(|(.., dead_at_ms)| *dead_at_ms <= now_ms);
            let Some(due) = due else {
                tokio::task::yield_now().await;
                continue;
            };
            let (probe, key, id, dead_at_ms) = locks.swap_remove(due);
            let (operation, extends) = probe;
            require(
                !operation.finds_it_live(client, &key, &id).await?,
                format_args!(
                    "{operation:?} at expiry + {TIME_TOLERANCE_MS} + {} ms, after {extends} extends: \
                     expected the lease dead, saw it live",
                    now_ms - dead_at_ms
                ),
            )?;
            if clock.now_ms().await? == dead_at_ms {
                undecided.retain(|other| *other != probe);
            }
        }
        Ok(())
    })
}

/// The operations that decide whether a lease is live.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Probe {
    IsLocked,
    LookupByKey,
    LookupById,
    Extend,
    Release,
    Acquire,
}

impl Probe {
    pub(crate) const ALL: [Self; 6] = [
        Self::IsLocked,
        Self::LookupByKey,
        Self::LookupById,
        Self::Extend,
        Self::Release,
        Self::Acquire,
    ];

    #[track_caller]
    fn finds_it_live<B: LockBackend>(
        self,
        client: &Client<B>,
        key: &LockKey,
        id: &LockId,
    ) -> impl Future<Output = Result<bool, Failure>> {
        step(async move {
            Ok(match self {
                Self::IsLocked => client.is_locked(key).await?,
                Self::LookupByKey => client.lookup_raw(Lookup::Key(key)).await?.is_some(),
                Self::LookupById => client.lookup_raw(Lookup::Id(id)).await?.is_some(),
                Self::Extend => client
                    .extend(id, ttl(LONG)?)
                    .await?
                    .expires_at_ms()
                    .is_some(),
                Self::Release => client.release(id).await?.is_released(),
                Self::Acquire => {
                    let id = LockId::generate()?;
                    client.acquire(key, &id, ttl(LONG)?).await?.is_locked()
                }
            })
        })
    }
}
