//! The end of a lease, in real time.
//!
//! A case claims "before the expiry" only if the answer arrived before the TTL had passed by the local clock, and
//! "after" only if the call was made after the tolerance.

use std::time::{Duration, Instant};

use syncguard_core::backend::{AcquireResult, Lookup};
use syncguard_core::{LockId, LockInfoDebug, LockKey};

use crate::clock::{
    Brief, LIFETIMES, StoreClock, acquire_briefly, counted_between, dead_at, too_slow,
};
use crate::harness::Fence;
use crate::moment_of_death::{Probe, probe_the_moment_of_death};
use crate::outcome::{require, same, step};
use crate::steps::{
    EXPIRING, EXTENDS, LONG, acquire, acquire_as, expiring, fence_of, free, held, join, ms,
    not_released, not_renewed, refused, release, renew, rise, ttl,
};
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

/// Until it expires a lease is live: all reads say so and nobody else is granted the key.
///
/// Proves E1, L1, L2. At the start of the lease, and late in it.
pub async fn before_it_a_lease_is_live<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    for lasting in LIFETIMES {
        let key = bench.key(&format!("live:{}", lasting.as_millis()))?;
        let started = Instant::now();
        let seen = async {
            let grant = acquire(&client, &key, lasting).await?;
            for part in [0, 1, 2, 3] {
                tokio::time::sleep_until((started + lasting * part / 4).into()).await;
                held(&client, &key, &grant.lock_id).await?;
                refused(&other, &key).await?;
            }
            Ok::<_, Failure>(())
        }
        .await;
        if started.elapsed() < lasting {
            seen?;
            return Ok(Outcome::Passed);
        }
    }
    Err(too_slow())
}

/// Until the store's own clock reaches the expiry, the key is held to the millisecond.
///
/// Proves E1, T1. A TTL is not rounded down, and nothing removes a live lock.
pub async fn before_it_a_lease_is_live_to_the_millisecond<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    let client = bench.client().await?;
    let clock = StoreClock::new(&bench).await?;
    let key = bench.key("live")?;
    // Acquired with a long TTL and then shortened: the reply to the acquire may arrive late.
    let grant = acquire(&client, &key, LONG).await?;
    let expires_at_ms = renew(&client, &grant.lock_id, ms(900)).await?;
    loop {
        let locked = client.is_locked(&key).await?;
        let by_key = client.lookup_raw(Lookup::Key(&key)).await?;
        let by_id = client.lookup_raw(Lookup::Id(&grant.lock_id)).await?;
        // Read after the answers: if the clock has not reached the expiry now, it had not then.
        let now_ms = clock.now_ms().await?;
        if now_ms >= expires_at_ms {
            break;
        }
        let left = expires_at_ms - now_ms;
        require(
            locked && by_key.is_some() && by_id.is_some(),
            format_args!(
                "{left} ms before the expiry: expected the lock, saw is_locked {locked}, \
                 lookup by key {}, by id {}",
                by_key.is_some(),
                by_id.is_some()
            ),
        )?;
        if left > 100 {
            tokio::time::sleep(ms(20)).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    clock.stop().await?;
    Ok(Outcome::Passed)
}

/// A second after its expiry a lease is dead: reads find nothing, and the key is granted.
///
/// Proves E2, L1, L3, A1.
pub async fn after_the_tolerance_the_key_is_free<H: Harness>(bench: Bench<H>) -> CaseResult {
    let clients = bench.clients(2).await?;
    let keys = bench.keys("dead", 4)?;
    let mut brief = Vec::new();
    for key in &keys {
        brief.push(acquire_briefly(&clients[0], key).await?);
    }
    for lease in &brief {
        lease.end().await;
    }
    // Each operation is the first one on a dead lock of its own.
    same("is_locked", clients[1].is_locked(&keys[0]).await?, false)?;
    same(
        "lookup by key",
        clients[1].lookup_raw(Lookup::Key(&keys[1])).await?,
        None,
    )?;
    let id = brief[2].grant.lock_id;
    same(
        "lookup by id",
        clients[1].lookup_raw(Lookup::Id(&id)).await?,
        None,
    )?;
    acquire(&clients[1], &keys[3], LONG).await.map(drop)?;
    for key in &keys[..3] {
        free(&clients[1], key).await?;
        let next = acquire(&clients[1], key, LONG).await?;
        held(&clients[0], key, &next.lock_id).await?;
        release(&clients[1], &next.lock_id).await?;
    }
    Ok(Outcome::Passed)
}

/// From expiry + 1000 on, by the store's own clock, a lease is dead to the millisecond.
///
/// Proves E2, L3, X3, R2. Every operation, each on locks of its own: extended, or never. The case continues until each
/// operation was answered in the millisecond in which a lease became dead.
pub async fn after_the_tolerance_a_lease_is_dead_to_the_millisecond<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    // A slower store meets that millisecond only if its clock is coarse, and then in the first round.
    const SLOW: Duration = Duration::from_millis(2);
    const SLOW_ROUNDS: usize = 3;
    // Between two readings of the clock, and an answer between them, less than a millisecond can pass.
    const FAST: Duration = Duration::from_micros(450);
    // If the store is fast and the machine is busy. Far below the timeout of a case.
    const PATIENCE: Duration = Duration::from_secs(30);
    let client = bench.client().await?;
    let clock = StoreClock::new(&bench).await?;
    let probes = Probe::ALL.into_iter();
    let probes = probes.flat_map(|probe| EXTENDS.map(|extends| (probe, extends)));
    let mut undecided: Vec<_> = probes.collect();
    let (began, mut fastest, mut without_progress) = (Instant::now(), Duration::MAX, 0);
    for round in 0.. {
        for _ in 0..20 {
            let asked = Instant::now();
            clock.now_ms().await?;
            fastest = fastest.min(asked.elapsed());
        }
        let is_fast = fastest < FAST;
        let each = if is_fast { 4 } else { 2 };
        let before = undecided.len();
        let keys = bench.keys(&format!("dead:{round}"), before * each)?;
        probe_the_moment_of_death(&client, &clock, keys, &mut undecided).await?;
        without_progress = match undecided.len() == before {
            true => without_progress + 1,
            false => 0,
        };
        let enough = match is_fast {
            true => began.elapsed() > PATIENCE,
            false => without_progress == if fastest < SLOW { SLOW_ROUNDS } else { 1 },
        };
        if undecided.is_empty() || enough {
            break;
        }
    }
    clock.stop().await?;
    Ok(match undecided.is_empty() {
        true => Outcome::Passed,
        false => TOO_SLOW,
    })
}

const TOO_SLOW: Outcome = Outcome::Skipped(
    "the store takes too long to be asked in the millisecond in which a lease becomes dead",
);

/// Releasing an expired lock is `NotHeld`.
///
/// Proves R2, E2. Several locks, which expire in turn: the purge of another client may delete the first ones.
pub async fn an_expired_lock_is_not_released<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    for (lock, dead_at) in expiring_in_turn(&bench, &client).await? {
        tokio::time::sleep_until(dead_at.into()).await;
        not_released(&client, &lock.lock_id).await?;
        not_released(&other, &lock.lock_id).await?;
        free(&client, &lock.key).await?;
    }
    Ok(Outcome::Passed)
}

/// Extending an expired lock is `NotHeld` and does not bring it back.
///
/// Proves X3, E2. Several locks, which expire in turn: the purge of another client may delete the first ones.
pub async fn an_expired_lock_is_not_extended<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    for (lock, dead_at) in expiring_in_turn(&bench, &client).await? {
        tokio::time::sleep_until(dead_at.into()).await;
        for client in [&client, &other] {
            not_renewed(client, &lock.lock_id).await?;
            free(client, &lock.key).await?;
            let found = client.lookup_raw(Lookup::Id(&lock.lock_id)).await?;
            same("lookup of an expired id", found, None)?;
        }
        let next = acquire(&other, &lock.key, LONG).await?;
        not_renewed(&client, &lock.lock_id).await?;
        release(&other, &next.lock_id).await?;
    }
    Ok(Outcome::Passed)
}

/// A lock, and from when the store must count it as dead.
type Expiring<H> = (LockInfoDebug<Fence<H>>, Instant);

/// Acquires locks that expire within 10 ms, one lock every 100 ms.
#[track_caller]
fn expiring_in_turn<H: Harness>(
    bench: &Bench<H>,
    client: &Client<H::Backend>,
) -> impl Future<Output = Result<Vec<Expiring<H>>, Failure>> {
    step(async move {
        let mut locks = Vec::new();
        for key in bench.keys("expired", 8)? {
            locks.push((expiring(client, &key).await?, dead_at(EXPIRING)));
            tokio::time::sleep(ms(100)).await;
        }
        Ok(locks)
    })
}

/// No call of a holder that overran harms its successor.
///
/// Proves R3, X3, L3, F1, A5. An index may still have its id, which must not lead to the new lock. Nor does the former
/// lock come back once the successor has released the key.
pub async fn an_overrun_holder_does_no_harm<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("overrun")?;
    let lease = acquire_briefly(&client, &key).await?;
    let former = lease.grant.lock_id;
    lease.end().await;
    let successor = acquire(&other, &key, LONG).await?;
    rise(fence_of(&lease.grant), fence_of(&successor))?;
    let before = held(&other, &key, &successor.lock_id).await?;
    for client in [&client, &other] {
        not_released(client, &former).await?;
        not_renewed(client, &former).await?;
        let found = client.lookup_raw(Lookup::Id(&former)).await?;
        same("lookup of the former holder's id", found, None)?;
        let again = client.acquire(&key, &former, ttl(LONG)?).await?;
        same(
            "the former holder's replay is Locked",
            again.is_locked(),
            true,
        )?;
        let after = held(client, &key, &successor.lock_id).await?;
        same("the successor's lock", &after, &before)?;
    }
    release(&other, &successor.lock_id).await?;
    not_renewed(&client, &former).await?;
    free(&other, &key).await?;
    let again = acquire_as(&client, &key, &former, LONG).await?;
    rise(fence_of(&successor), fence_of(&again))?;
    release(&client, &former).await?;
    Ok(Outcome::Passed)
}

/// An id whose lease expired can acquire the key again: a new fence and a whole TTL.
///
/// Proves A5, A6, F1. The earlier grant is not returned again.
pub async fn a_replay_after_expiry_is_a_new_grant<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let key = bench.key("again")?;
    let lease = acquire_briefly(&client, &key).await?;
    lease.end().await;
    let again = acquire_as(&client, &key, &lease.grant.lock_id, LONG).await?;
    rise(fence_of(&lease.grant), fence_of(&again))?;
    let info = held(&client, &key, &again.lock_id).await?;
    same(
        "the expiry at the store",
        info.expires_at_ms,
        again.expires_at_ms,
    )?;
    let lasting = info.expires_at_ms - info.acquired_at_ms;
    same(
        "milliseconds from acquisition to expiry",
        lasting,
        ttl(LONG)?.as_millis(),
    )?;
    require(
        info.acquired_at_ms >= lease.grant.expires_at_ms,
        format_args!(
            "the new time of acquisition: expected {} or later, saw {}",
            lease.grant.expires_at_ms, info.acquired_at_ms
        ),
    )?;
    release(&client, &again.lock_id).await?;
    Ok(Outcome::Passed)
}

/// A key that is acquired at the moment of its expiry has a whole TTL, and five renewals succeed.
///
/// Proves A6, X1, E2. A wait inside the store does not shorten the lease.
pub async fn the_next_lease_is_whole<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let clock = StoreClock::new(&bench).await?;
    let (key, id) = (bench.key("awaited")?, LockId::generate()?);
    let lease = acquire_briefly(&client, &key).await?;
    let (next, before_ms) = loop {
        let before_ms = clock.now_ms().await?;
        match other.acquire(&key, &id, ttl(LONG)?).await? {
            AcquireResult::Acquired(grant) => break (grant, before_ms),
            AcquireResult::Locked { .. } => tokio::time::sleep(ms(20)).await,
        }
        // It ends: the lease is dead before long, and the case has a timeout.
    };
    let granted_at_ms = next.expires_at_ms - ttl(LONG)?.as_millis();
    require(
        granted_at_ms >= lease.grant.expires_at_ms,
        format_args!(
            "the successor's lease: expected it counted from {} or later, saw {granted_at_ms}",
            lease.grant.expires_at_ms
        ),
    )?;
    let times = (before_ms, clock.now_ms().await?);
    counted_between("a grant", next.expires_at_ms, LONG, times)?;
    clock.stop().await?;
    for _ in 0..5 {
        renew(&other, &id, LONG).await?;
    }
    release(&other, &id).await?;
    Ok(Outcome::Passed)
}

/// Between expiry and expiry + 1000 an extend and an acquire never both succeed.
///
/// Proves E3, X3, E1. One after the other in either order, and concurrently; before, in and after the tolerance.
pub async fn in_the_tolerance_only_one_wins<H: Harness>(bench: Bench<H>) -> CaseResult {
    const LOCKS: u32 = 36;
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut leases = Vec::new();
    for index in 0..LOCKS {
        let key = bench.key(&format!("window:{index}"))?;
        let id = acquire(&client, &key, LONG).await?.lock_id;
        leases.push((index, key, id));
    }
    // Their expiries lie up to 1.4 s apart, so that one moment finds all stages.
    for (index, _, id) in &leases {
        renew(&client, id, ms(50) + ms(40) * *index).await?;
    }
    tokio::time::sleep(ms(1_150)).await;
    let races = leases.into_iter().map(|(index, key, former)| {
        let (client, other) = (client.clone(), other.clone());
        tokio::spawn(async move {
            let challenger = LockId::generate()?;
            let lasting = ttl(LONG)?;
            let (extended, acquired) = match index % 3 {
                0 => {
                    let extended = client.extend(&former, lasting).await?;
                    (extended, other.acquire(&key, &challenger, lasting).await?)
                }
                1 => {
                    let acquired = other.acquire(&key, &challenger, lasting).await?;
                    (client.extend(&former, lasting).await?, acquired)
                }
                _ => tokio::try_join!(
                    client.extend(&former, lasting),
                    other.acquire(&key, &challenger, lasting)
                )?,
            };
            let (extended, acquired) = (extended.expires_at_ms().is_some(), !acquired.is_locked());
            require(
                !(extended && acquired),
                "extend and acquire by another: expected one to succeed, saw both",
            )?;
            for (id, wins) in [(&former, extended), (&challenger, acquired)] {
                if wins {
                    held(&other, &key, id).await?;
                    release(&client, id).await?;
                }
            }
            Ok(())
        })
    });
    join(races).await?;
    Ok(Outcome::Passed)
}

/// Releases at the very moment of expiry are `Released` or `NotHeld`, never an error.
///
/// Proves R2, O1. From 5 ms before it to 5 ms after, and around the end of the tolerance.
pub async fn a_release_at_the_last_moment_is_no_error<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let mut releases = Vec::new();
    for (index, key) in bench.keys("moment", 22)?.into_iter().enumerate() {
        let id = acquire(&client, &key, LONG).await?.lock_id;
        let client = client.clone();
        releases.push(tokio::spawn(async move {
            renew(&client, &id, ms(150)).await?;
            let tolerance = if index < 11 { 0 } else { 1_000 };
            let offset = u64::try_from(index % 11).unwrap_or_default();
            tokio::time::sleep(ms(145 + tolerance + offset)).await;
            // Either answer is right; an error is not.
            let _ = client.release(&id).await?;
            not_released(&client, &id).await?;
            free(&client, &key).await
        }));
    }
    join(releases).await?;
    Ok(Outcome::Passed)
}

/// Of many callers that find a key expired, exactly one is granted it.
///
/// Proves A3, E2, O1.
pub async fn an_expired_key_has_one_successor<H: Harness>(bench: Bench<H>) -> CaseResult {
    let clients = bench.clients(4).await?;
    let mut leases: Vec<(LockKey, Brief<_>)> = Vec::new();
    for key in bench.keys("contended", 6)? {
        let lease = acquire_briefly(&clients[0], &key).await?;
        leases.push((key, lease));
    }
    for (_, lease) in &leases {
        lease.end().await;
    }
    for (key, lease) in &leases {
        let attempts = (0..16).map(|index| {
            let (client, key) = (clients[index % clients.len()].clone(), key.clone());
            tokio::spawn(async move {
                let id = LockId::generate()?;
                Ok(client.acquire(&key, &id, ttl(LONG)?).await?.granted())
            })
        });
        let grants: Vec<_> = join(attempts).await?.into_iter().flatten().collect();
        same("grants of an expired key", grants.len(), 1)?;
        for grant in grants {
            rise(fence_of(&lease.grant), fence_of(&grant))?;
            held(&clients[0], key, &grant.lock_id).await?;
            release(&clients[0], &grant.lock_id).await?;
        }
    }
    Ok(Outcome::Passed)
}
