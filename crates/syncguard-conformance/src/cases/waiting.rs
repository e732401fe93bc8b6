//! What callers that wait rely on.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use syncguard_core::backend::{AcquireResult, LockBackend, TIME_TOLERANCE_MS};
use syncguard_core::{LockId, LockKey, Ttl};
use tokio::time::{sleep_until, timeout};

use crate::clock::{LIFETIMES, dead_at, too_slow};
use crate::keyspace::{filled, wide_keys};
use crate::outcome::{require, step};
use crate::steps::{EXPIRING, LONG, acquire, acquire_as, expiring, ms, release, renew, ttl};
use crate::watching::{until_free, woken_by};
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

/// A key is granted when the time that a refusal stated has passed, and not before its lease ends.
///
/// Proves W1. Of leases of up to ten years the case asks once. Of short ones, extended or not, it asks when they begin,
/// later, and in the tolerance; it waits for the earliest time that was stated. By the local monotonic clock, from
/// before a refused call to after the granted one.
pub async fn a_refusal_says_when_the_key_is_free<H: Harness>(bench: Bench<H>) -> CaseResult {
    const DAY: Duration = Duration::from_secs(86_400);
    let (client, other) = (bench.client().await?, bench.client().await?);
    for (index, lasting) in [ms(7_300), DAY * 60, Ttl::MAX.as_duration()]
        .into_iter()
        .enumerate()
    {
        let key = bench.key(&format!("lasting:{index}"))?;
        let lease = TimedLease::begin(&client, &key, (lasting, lasting)).await?;
        let Some(lease) = lease else { continue };
        if let Attempt::Refused(None) = lease.ask(&other, &key).await? {
            release(&client, &lease.id).await?;
            return Ok(Outcome::Skipped(
                "the backend does not say when a key is free",
            ));
        }
        // On a slow machine it may have ended.
        let _ = client.release(&lease.id).await?;
    }
    // Granted for that long, or extended to it from a shorter or a longer time.
    let histories: [fn(Duration) -> Duration; 3] = [|lease| lease, |lease| lease / 2, |_| LONG];
    let leases = histories.into_iter().enumerate();
    let leases = leases.map(|(index, granted)| {
        let name = format!("freed:{index}");
        until_stated(&bench, &client, &other, name, granted)
    });
    try_join_all(leases).await?;
    Ok(Outcome::Passed)
}

/// The shortest lease: half of it is longer than a few calls on most machines.
const LEAST: Duration = Duration::from_millis(1_000);

/// Whole milliseconds on either side.
const SLACK: Duration = Duration::from_millis(10);

/// A lease that began between two times.
struct TimedLease {
    id: LockId,
    lasting: Duration,
    earliest: Instant,
    latest: Instant,
}

/// An attempt of another client.
enum Attempt {
    Granted,
    /// The key is free at this time, as the refusal says.
    Refused(Option<Instant>),
}

impl TimedLease {
    /// Acquires a key, and extends its lease unless it is granted as long as that. `None` if the lease ended too soon.
    #[track_caller]
    fn begin<B: LockBackend>(
        client: &Client<B>,
        key: &LockKey,
        (granted, lasting): (Duration, Duration),
    ) -> impl Future<Output = Result<Option<Self>, Failure>> {
        step(async move {
            let mut earliest = Instant::now();
            let id = acquire(client, key, granted).await?.lock_id;
            if granted != lasting {
                earliest = Instant::now();
                let answer = client.extend(&id, ttl(lasting)?).await?;
                if answer.expires_at_ms().is_none() {
                    return Ok(None);
                }
            }
            Ok(Some(Self {
                id,
                lasting,
                earliest,
                latest: Instant::now(),
            }))
        })
    }

    /// Asks for the key, and fails if the refusal states a time before the lease ends, or after the tolerance.
    #[track_caller]
    fn ask<B: LockBackend>(
        &self,
        other: &Client<B>,
        key: &LockKey,
    ) -> impl Future<Output = Result<Attempt, Failure>> {
        step(async move {
            let challenger = LockId::generate()?;
            let asked = Instant::now();
            let answer = other.acquire(key, &challenger, ttl(LONG)?).await?;
            let answered = Instant::now();
            let AcquireResult::Locked { free_in, .. } = answer else {
                release(other, &challenger).await?;
                return Ok(Attempt::Granted);
            };
            let Some(free_in) = free_in else {
                return Ok(Attempt::Refused(None));
            };
            let tolerance = ms(TIME_TOLERANCE_MS.unsigned_abs());
            require(
                asked + free_in <= self.latest + self.lasting + tolerance + SLACK,
                format_args!(
                    "expected the key free a second after its lease at most, saw {free_in:?}"
                ),
            )?;
            require(
                answered + free_in + SLACK >= self.earliest + self.lasting,
                format_args!("expected the key held until its lease ends, saw {free_in:?}"),
            )?;
            Ok(Attempt::Refused(Some(answered + free_in + SLACK)))
        })
    }
}

/// Asks for a key while it is held, and acquires it at the earliest time that a refusal stated.
#[track_caller]
fn until_stated<H: Harness>(
    bench: &Bench<H>,
    client: &Client<H::Backend>,
    other: &Client<H::Backend>,
    name: String,
    granted: fn(Duration) -> Duration,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        // On a busy machine the last call may come too late to find the key held. On a slow one, a lease may end too
        // soon.
        let longer = LIFETIMES.into_iter().filter(|lease| *lease >= LEAST);
        let tries = [LEAST; 3].into_iter().chain(longer);
        'tries: for (index, lasting) in tries.enumerate() {
            let key = bench.key(&format!("{name}:{index}"))?;
            let lease = TimedLease::begin(client, &key, (granted(lasting), lasting)).await?;
            let Some(lease) = lease else { continue };
            // In different milliseconds: a time that is rounded is exact in some.
            let later = (0..8).map(|order| lasting / 3 + ms(order * 7));
            let mut stated: Option<Instant> = None;
            for passed in std::iter::once(Duration::ZERO).chain(later) {
                if lease.latest.elapsed() > lasting * 2 / 3 {
                    break;
                }
                sleep_until((lease.latest + passed).into()).await;
                match lease.ask(other, &key).await? {
                    Attempt::Granted => continue 'tries,
                    Attempt::Refused(at) => stated = stated.into_iter().chain(at).min(),
                }
            }
            let Some(mut stated) = stated else {
                return Ok(());
            };
            let overdue = lease.latest + lasting + ms(300);
            if overdue < stated {
                sleep_until(overdue.into()).await;
                match lease.ask(other, &key).await? {
                    // On a slow machine the tolerance has passed.
                    Attempt::Granted => return Ok(()),
                    Attempt::Refused(at) => stated = at.map_or(stated, |at| at.min(stated)),
                }
            }
            let id = LockId::generate()?;
            sleep_until(stated.into()).await;
            let late = stated.elapsed() > SLACK / 2;
            let next = other.acquire(&key, &id, ttl(LONG)?).await?;
            require(
                !next.is_locked(),
                "expected the key granted at the time that a refusal stated, saw it held",
            )?;
            release(other, &id).await?;
            if !late || lasting > LEAST {
                return Ok(());
            }
        }
        Err(too_slow())
    })
}

/// A watch resolves each time that any client releases the key.
///
/// Proves W2. The case watches once. The watching client and another one acquire and release the key many times. Some
/// locks replaced an expired lock, were extended, or were acquired twice with one id. The last release comes in the
/// tolerance.
pub async fn a_release_wakes_who_watches<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("watched")?;
    expiring(&client, &key).await?;
    sleep_until(dead_at(EXPIRING).into()).await;
    let mut id = acquire(&client, &key, LONG).await?.lock_id;
    let Some(mut watch) = client.watch(&key).await? else {
        release(&client, &id).await?;
        return Ok(Outcome::NO_WAKE_UPS);
    };
    for round in 0..20_u64 {
        match round / 2 % 3 {
            1 => {
                renew(&client, &id, LONG).await?;
            }
            2 => {
                acquire_as(&client, &key, &id, LONG).await?;
            }
            _ => {}
        }
        if round % 4 == 3 {
            // The first call of `changed` is dropped while it waits. The release comes before the second call.
            timeout(ms(10), watch.changed()).await.unwrap_or(Ok(()))?;
            release(&other, &id).await?;
            until_free(&client, &key, &mut watch).await?;
        } else {
            let by = if round % 2 == 0 { &client } else { &other };
            let woken = until_free(&client, &key, &mut watch);
            woken_by(woken, ms(round % 5 * 4), release(by, &id)).await?;
        }
        id = acquire(&client, &key, LONG).await?.lock_id;
    }
    // On a slow machine the tolerance may have passed.
    for _ in 0..3 {
        renew(&client, &id, ms(50)).await?;
        tokio::time::sleep(ms(60)).await;
        let mut woken = pin!(until_free(&client, &key, &mut watch));
        if let Ok(woken) = timeout(ms(100), woken.as_mut()).await {
            // The store takes a lease for dead there.
            woken?;
            return Ok(Outcome::Passed);
        }
        if other.release(&id).await?.is_released() {
            woken.await?;
            return Ok(Outcome::Passed);
        }
        id = acquire(&client, &key, LONG).await?.lock_id;
    }
    release(&client, &id).await?;
    Ok(Outcome::Passed)
}

/// A release wakes all watches of the key, of any client, also after another watch of the key was dropped.
///
/// Proves W2. Two watches are of one client, which has dropped a third one. One is of another client.
pub async fn a_release_wakes_all_who_watch<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("watched")?;
    let id = acquire(&client, &key, LONG).await?.lock_id;
    let mut watches = Vec::new();
    for client in [&client, &client, &other, &client] {
        let Some(mut watch) = client.watch(&key).await? else {
            release(client, &id).await?;
            return Ok(Outcome::NO_WAKE_UPS);
        };
        timeout(ms(20), watch.changed()).await.unwrap_or(Ok(()))?;
        watches.push(watch);
    }
    watches.pop();
    let woken = watches
        .iter_mut()
        .map(|watch| until_free(&client, &key, watch));
    woken_by(try_join_all(woken), ms(20), release(&other, &id)).await?;
    Ok(Outcome::Passed)
}

/// A client watches dozens of keys at a time, and each release wakes its watch.
///
/// Proves W2. Keys of all kinds, the longest included.
pub async fn keys_of_all_kinds_are_watched_at_once<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut keys: Vec<_> = wide_keys(&bench)?.into_iter().step_by(2).collect();
    keys.push(filled(&bench, "x", "")?);
    let grants = keys.iter().map(|key| acquire(&client, key, LONG));
    let grants = try_join_all(grants).await?;
    let watches = try_join_all(keys.iter().map(|key| client.watch(key))).await?;
    let Some(mut watches) = watches.into_iter().collect::<Option<Vec<_>>>() else {
        for grant in &grants {
            release(&client, &grant.lock_id).await?;
        }
        return Ok(Outcome::NO_WAKE_UPS);
    };
    let watched = keys.iter().zip(&mut watches);
    let woken = watched.map(|(key, watch)| until_free(&client, key, watch));
    let releases = grants.iter().map(|grant| release(&other, &grant.lock_id));
    woken_by(try_join_all(woken), ms(20), try_join_all(releases)).await?;
    Ok(Outcome::Passed)
}

/// A watch that begins after the release resolves at once.
///
/// Proves W2. Nothing happens to the key afterwards, so the watch has to read it.
pub async fn a_watch_of_a_free_key_resolves_at_once<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    for key in bench.keys("free", 5)? {
        let id = acquire(&client, &key, LONG).await?.lock_id;
        release(&other, &id).await?;
        let Some(mut watch) = client.watch(&key).await? else {
            return Ok(Outcome::NO_WAKE_UPS);
        };
        until_free(&client, &key, &mut watch).await?;
    }
    Ok(Outcome::Passed)
}
