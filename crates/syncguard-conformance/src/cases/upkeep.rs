//! Deadlines, clean-up and closing.

use std::future::ready;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use syncguard_core::backend::{AcquireRequest, ExtendRequest, LockBackend, Lookup, ReleaseRequest};
use syncguard_core::list::KeyPrefix;
use syncguard_core::{ErrorCode, LockError, LockId, LockKey};
use tokio::time::timeout;

use crate::clock::{LIFETIMES, acquire_briefly, purgeable_at, too_slow};
use crate::keyspace::filled;
use crate::outcome::{require, same, step};
use crate::overdue::{TOO_SLOW, unchanged_in_tolerance};
use crate::steps::{
    EXPIRING, LONG, acquire, fails_with, fence_of, fence_step, free, held, ms, next_fence, release,
    renew, rise, ttl,
};
use crate::view::View;
use crate::watching::{until_free, woken_by};
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

/// A call after its deadline is not sent, or it returns a result and has taken effect.
///
/// Proves D1. Acquire, extend and release. A store in the same process may answer at once.
pub async fn a_call_after_its_deadline_is_not_sent<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (free_key, held_key) = (bench.key("free")?, bench.key("held")?);
    let (id, lasting) = (LockId::generate()?, ttl(LONG)?);
    let step = fence_step(&client, &free_key).await?;
    let fence = next_fence(&client, &free_key).await?;
    let holder = acquire(&client, &held_key, LONG).await?.lock_id;
    let before = held(&client, &held_key, &holder).await?;
    let backend = client.backend();
    let late = tokio::time::Instant::now();

    let acquired = backend
        .acquire(AcquireRequest::new(&free_key, &id, lasting, late))
        .await;
    let sent = was_sent("acquire", acquired)?.is_some();
    // A call that was queued nonetheless would take effect now.
    tokio::time::sleep(ms(500)).await;
    if sent {
        release(&other, &id).await?;
    } else {
        free(&other, &free_key).await?;
        let next = next_fence(&other, &free_key).await?;
        same(
            "rise of the fence across an acquire that was not sent",
            rise(fence, next)?,
            step,
        )?;
    }
    let extended = backend
        .extend(ExtendRequest::new(&holder, ttl(LONG * 2)?, late))
        .await;
    if was_sent("extend", extended)?.is_none() {
        let after = held(&other, &held_key, &holder).await?;
        same("the lock after an extend that was not sent", after, before)?;
    }
    let released = backend.release(ReleaseRequest::new(&holder, late)).await;
    if was_sent("release", released)?.is_none() {
        tokio::time::sleep(ms(500)).await;
        release(&other, &holder).await?;
    }
    free(&other, &held_key).await?;
    Ok(Outcome::Passed)
}

/// The answer, or `None` if the call was certainly not sent.
fn was_sent<T>(what: &str, answer: Result<T, LockError>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) => {
            same(
                &format!("{what} after its deadline: code, and whether the outcome is unknown"),
                (error.code(), error.outcome_unknown()),
                (ErrorCode::NetworkTimeout, false),
            )?;
            Ok(None)
        }
    }
}

/// `purge_expired` deletes no live lock, none in the tolerance, and no fence counter.
///
/// Proves P1, P2, E1, F2. It deletes what expired long ago, of any client, also on a key of the greatest length and
/// beside extended locks.
pub async fn purging_spares_live_locks_and_fences<H: Harness>(bench: Bench<H>) -> CaseResult {
    const LIVE: usize = 5;
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (dead, long) = (bench.key("dead")?, filled(&bench, "x", "")?);
    let dead_view = View::of(&bench, "dead").await?;
    let step = fence_step(&client, &dead).await?;
    let live = bench.keys("live", LIVE)?;
    let holders = try_join_all(live.iter().map(|key| outlive_the_grant(&client, key))).await?;
    // They expire later than the grants above would have, on a coarse clock, too.
    tokio::time::sleep(ms(20)).await;
    let lease = acquire_briefly(&client, &dead).await?;
    // This key is granted once, the key above three times.
    let only = acquire_briefly(&client, &long).await?;
    let _turn = bench.purging_at(lease.purgeable_at()).await;
    tokio::time::sleep_until(only.purgeable_at().into()).await;
    if let Some(view) = &dead_view {
        let gone = is_purged(&other, view, LIVE).await?;
        require(
            gone,
            "an expired lock, after purges that stayed below their limit: expected it deleted, saw it kept",
        )?;
    }
    let before = held(&client, &live[0], &holders[0]).await?;
    purge(&other).await?;
    let after = held(&other, &live[0], &holders[0]).await?;
    same("a live lock after a purge", after, before)?;

    let mut spared = TOO_SLOW;
    for (key, holder) in live.iter().zip(&holders).skip(1) {
        const LEFT: Duration = Duration::from_millis(400);
        let renewed = Instant::now();
        renew(&client, holder, LEFT).await?;
        purge(&other).await?;
        let is_live = client.is_locked(key).await?;
        // On a slow machine the purge may end too late, and the store's clock may be coarse.
        if renewed.elapsed() + ms(40) < LEFT {
            same("is_locked of a short lease, after a purge", is_live, true)?;
            spared = unchanged_in_tolerance(&bench, &client, "a purge", || purge(&other)).await?;
            break;
        }
    }

    free(&client, &dead).await?;
    let next = next_fence(&other, &dead).await?;
    same(
        "rise of the fence across a purge",
        rise(fence_of(&lease.grant), next)?,
        step,
    )?;
    rise(fence_of(&only.grant), next_fence(&other, &long).await?)?;
    for holder in &holders {
        let _ = client.release(holder).await?;
    }
    Ok(spared)
}

/// Acquires a key briefly, and extends its lease far beyond that.
#[track_caller]
fn outlive_the_grant<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<LockId, Failure>> {
    step(async move {
        for lasting in LIFETIMES {
            let id = acquire(client, key, lasting).await?.lock_id;
            let extended = client.extend(&id, ttl(LONG)?).await?;
            if extended.expires_at_ms().is_some() {
                return Ok(id);
            }
        }
        Err(too_slow())
    })
}

/// Purges with this limit until the lock in view is gone. False if it is still there 5 s after the first purge below the
/// limit: until then, the purge of another client may be about to delete it. True after 15 s, too: locks of others
/// continue to expire, and nothing is decided.
#[track_caller]
fn is_purged<H: Harness>(
    client: &Client<H::Backend>,
    view: &View<'_, H>,
    limit: usize,
) -> impl Future<Output = Result<bool, Failure>> {
    step(async move {
        let limit = u32::try_from(limit).map_err(Failure::new)?;
        let (began, mut quiet) = (Instant::now(), None);
        while began.elapsed() < Duration::from_secs(15) {
            if view.count().await?.locks == 0 {
                return Ok(true);
            }
            if client.purge_expired(limit).await? < u64::from(limit) {
                let since = *quiet.get_or_insert_with(Instant::now);
                if since.elapsed() > Duration::from_secs(5) {
                    return Ok(view.count().await?.locks == 0);
                }
                tokio::time::sleep(ms(20)).await;
            }
        }
        Ok(true)
    })
}

/// `purge_expired` deletes no more than its limit, and returns how many it deleted.
///
/// Proves P2. By the number that each call returns, and by what the store keeps. If purges of others came first, or
/// deleted locks meanwhile, or the purge deleted locks of others, the case tries again.
pub async fn purging_stops_at_its_limit<H: Harness>(bench: Bench<H>) -> CaseResult {
    const ATTEMPTS: usize = 6;
    const LONGEST: usize = 3 * ATTEMPTS;
    let client = bench.client().await?;
    let view = View::of(&bench, "dead").await?;
    let kept = async || match &view {
        Some(view) => view.count().await.map(|stored| Some(stored.locks)),
        None => Ok(None),
    };
    // Limits, each with the number of purges at which the store lost more than they returned.
    let mut undecided = vec![(1, 0), (2, 0)];
    for attempt in 0..LONGEST {
        let keys = bench.keys(&format!("dead:{attempt}"), 16)?;
        let expired = try_join_all(keys.iter().map(|key| acquire(&client, key, EXPIRING))).await?;
        let purgeable_at = purgeable_at(EXPIRING);
        let turn = bench.purging_at(purgeable_at - ms(200)).await;
        if attempt % 2 == 1 {
            // A purge may begin with locks of other cases, which have expired earlier.
            purge(&client).await?;
        }
        tokio::time::sleep_until(purgeable_at.into()).await;
        let purged = client.purge_expired(0).await?;
        same("locks that a purge of none deleted", purged, 0)?;
        let mut still = Vec::new();
        for (limit, exceeded) in undecided {
            let before = kept().await?;
            let purged = client.purge_expired(limit).await?;
            let after = kept().await?;
            require(
                purged <= u64::from(limit),
                format_args!("locks that a purge deleted: expected at most {limit}, saw {purged}"),
            )?;
            let purged = usize::try_from(purged).map_err(Failure::new)?;
            // Without a view, the returned number alone decides.
            let lost = before
                .zip(after)
                .map_or(purged, |(before, after)| before.saturating_sub(after));
            // Undecided: the store deletes expired locks itself, or the purge deleted locks of others.
            if purged == 0 || lost != purged {
                let exceeds = purged > 0 && lost > purged;
                still.push((limit, exceeded + usize::from(exceeds)));
            }
        }
        drop(turn);
        for lock in &expired {
            let found = client.lookup_raw(Lookup::Id(&lock.lock_id)).await?;
            same("lookup of an expired id", found, None)?;
        }
        undecided = still;
        for (limit, exceeded) in &undecided {
            require(
                *exceeded < ATTEMPTS,
                format_args!(
                    "locks that a purge of {limit} deleted: expected as many as it returned, saw more each time"
                ),
            )?;
        }
        // If no purge deleted any, the store deletes expired locks itself, or others came first each time.
        let met = undecided.iter().any(|(_, exceeded)| *exceeded > 0);
        if undecided.is_empty() || (!met && attempt + 1 >= ATTEMPTS) {
            break;
        }
    }
    Ok(Outcome::Passed)
}

/// Purges until nothing is left, or for some seconds if other locks continue to expire.
async fn purge<B: LockBackend>(client: &Client<B>) -> Result<(), Failure> {
    const LIMIT: u32 = 500;
    let end = Instant::now() + Duration::from_secs(5);
    while client.purge_expired(LIMIT).await? == u64::from(LIMIT) && Instant::now() < end {}
    Ok(())
}

/// Closing a client changes neither its locks nor other clients; its own calls fail only with
/// `ServiceUnavailable`.
///
/// Proves S1. Closed twice, by the bare backend and by `Locks`. Of another client, a watch that was in place goes on.
pub async fn closing_a_client_ends_nothing_else<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, idle) = (bench.key("held")?, bench.key("idle")?);
    let holder = acquire(&client, &key, LONG).await?.lock_id;
    renew(&client, &holder, LONG).await?;
    let mut watch = other.watch(&key).await?;
    if let Some(watch) = &mut watch {
        timeout(ms(20), watch.changed()).await.unwrap_or(Ok(()))?;
    }
    // The purge after the close must have a lock to delete.
    let turn = bench.purging().await;
    acquire(&client, &bench.key("dead")?, EXPIRING).await?;
    tokio::time::sleep_until(purgeable_at(EXPIRING).into()).await;
    client.close().await?;
    client.close().await?;
    let code = ErrorCode::ServiceUnavailable;
    let id = LockId::generate()?;
    match client.acquire(&idle, &id, ttl(LONG)?).await {
        // It had nothing to close.
        Ok(_) => release(&other, &id).await?,
        Err(error) => {
            same("the code of an acquire after close", error.code(), code)?;
            bare_calls_fail(&client, &key, &holder).await?;
        }
    }
    drop(turn);
    free(&other, &idle).await?;
    client.locks().close().await?;
    fails_with("acquire", code, client.locks().try_lock(&idle)).await?;
    fails_with("release", code, client.locks().release(holder)).await?;
    held(&other, &key, &holder).await?;
    renew(&other, &holder, LONG).await?;
    if let Some(watch) = &mut watch {
        let woken = until_free(&other, &key, watch);
        woken_by(woken, ms(20), release(&other, &holder)).await?;
    } else {
        release(&other, &holder).await?;
    }
    Ok(Outcome::Passed)
}

/// Fails unless the calls of a closed client are `ServiceUnavailable`.
#[track_caller]
fn bare_calls_fail<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    id: &LockId,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let code = ErrorCode::ServiceUnavailable;
        fails_with("release after close", code, client.release(id)).await?;
        fails_with("extend after close", code, client.extend(id, ttl(LONG)?)).await?;
        fails_with("is_locked after close", code, client.is_locked(key)).await?;
        for by in [Lookup::Key(key), Lookup::Id(id)] {
            fails_with("lookup after close", code, client.lookup_raw(by)).await?;
        }
        // A watch may fail only once it is awaited.
        let watched = async {
            let Some(mut watch) = client.watch(key).await? else {
                return Ok(None);
            };
            let changed = timeout(ms(5_000), watch.changed()).await;
            changed.unwrap_or(Ok(())).map(Some)
        };
        if let Some(changed) = watched.await.transpose() {
            fails_with("watch after close", code, ready(changed)).await?;
        }
        // A store without wake-ups, listings or clean-up answers without a connection.
        let page = client.list(&KeyPrefix::default(), None, 1).await;
        if let Some(page) = page.transpose() {
            fails_with("list after close", code, ready(page)).await?;
        }
        let purged = client.purge_expired(1).await;
        if !matches!(purged, Ok(0)) {
            fails_with("purge after close", code, ready(purged)).await?;
        }
        Ok(())
    })
}
