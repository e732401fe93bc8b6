//! Replacing a lock's remaining time.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use syncguard_core::backend::{LockBackend, Lookup};
use syncguard_core::{LockId, LockKey, Ttl};

use crate::clock::{LIFETIMES, SLACK_MS, StoreClock, counted_between, dead_at, too_slow};
use crate::outcome::{require, same, step};
use crate::steps::{
    LONG, acquire, fence_of, fence_step, free, held, join, ms, next_fence, not_renewed, refused,
    release, renew, rise, soon_free, ttl,
};
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

/// The remaining time is replaced by the TTL, counted from now; it may be shortened.
///
/// Proves X1, T1. The TTL is not added to what is left, and does not count from the acquisition.
pub async fn it_replaces_the_remaining_time<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let clock = StoreClock::new(&bench).await?;
    let key = bench.key("extended")?;
    let grant = acquire(&client, &key, LONG).await?;
    // Distinguishes "from now" from "from the acquisition", by the lock itself: the store's clock is read from an
    // extended lock, and would stand still.
    tokio::time::sleep(ms(50)).await;
    let later = renew(&client, &grant.lock_id, LONG).await?;
    let least = grant.expires_at_ms + 25;
    require(
        later >= least,
        format_args!(
            "an extend by the TTL of the grant 50 ms after it: expected an expiry of at least \
             {least}, saw {later}"
        ),
    )?;
    for lasting in [
        LONG,
        LONG * 3,
        LONG,
        LONG / 2,
        ms(20_001),
        ms(20_999),
        ms(2_147_483_648),
        Ttl::MAX.as_duration() - ms(1),
        Ttl::MAX.as_duration(),
        LONG,
    ] {
        let before_ms = clock.now_ms().await?;
        let expires_at_ms = renew(&client, &grant.lock_id, lasting).await?;
        let after_ms = clock.now_ms().await?;
        counted_between("an extend", expires_at_ms, lasting, (before_ms, after_ms))?;
        let info = held(&client, &key, &grant.lock_id).await?;
        same("the expiry at the store", info.expires_at_ms, expires_at_ms)?;
    }
    release(&client, &grant.lock_id).await?;
    clock.stop().await?;
    Ok(Outcome::Passed)
}

/// A shortened lease ends at its new expiry, not at the old one.
///
/// Proves X1, E2.
pub async fn a_shortened_lease_ends_early<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("shortened")?;
    let grant = acquire(&client, &key, LONG).await?;
    renew(&client, &grant.lock_id, ms(200)).await?;
    let dead_at = dead_at(ms(200));
    tokio::time::sleep_until(dead_at.into()).await;
    free(&other, &key).await?;
    not_renewed(&client, &grant.lock_id).await?;
    let next = acquire(&other, &key, LONG).await?;
    release(&other, &next.lock_id).await?;
    Ok(Outcome::Passed)
}

/// An extend by a few milliseconds stores exactly the expiry that it returns.
///
/// Proves X1, X2. The TTL is a few milliseconds, or the new expiry is a few milliseconds after the former one. The lock
/// shows the new expiry, or has already expired by it.
pub async fn a_few_milliseconds_are_done<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let clock = StoreClock::new(&bench).await?;
    let brief = [1, 2, 3, 5, 10, 20].map(ms);
    let keys = bench.keys("brief", brief.len())?;
    for (key, lasting) in keys.iter().zip(brief) {
        let grant = acquire(&client, key, LONG).await?;
        let before_ms = clock.now_ms().await?;
        let expires_at_ms = renew(&client, &grant.lock_id, lasting).await?;
        let found = client.lookup_raw(Lookup::Key(key)).await?;
        let after_ms = clock.now_ms().await?;
        let times = (before_ms, after_ms);
        counted_between("an extend", expires_at_ms, lasting, times)?;
        match found {
            Some(info) => same("the expiry at the store", info.expires_at_ms, expires_at_ms)?,
            None => require(
                after_ms >= expires_at_ms,
                format_args!("the lock until {expires_at_ms}: expected it, saw None at {after_ms}"),
            )?,
        }
    }
    let dead_at = dead_at(ms(20));
    clock.stop().await?;
    tokio::time::sleep_until(dead_at.into()).await;
    for key in &keys {
        free(&client, key).await?;
    }
    Ok(
        match move_a_little(&client, &bench.keys("moved", 4)?).await? {
            true => Outcome::Passed,
            false => Outcome::Skipped("the store takes too long to move an expiry by milliseconds"),
        },
    )
}

/// Moves expiries by one to five milliseconds, of several locks at once. Returns whether the store was steady enough
/// for that.
///
/// A store that leaves an expiry as it is for a change of up to so many milliseconds fails at a change by one. If it
/// also returns that expiry, it fails once the change is greater than a clock's precision. A store that does so within
/// units of ten milliseconds or more fails at each change with a chance of one half or more: it passes 20 changes with
/// a chance of 2^-20, less than one in a million.
#[track_caller]
fn move_a_little<B: LockBackend>(
    client: &Client<B>,
    keys: &[LockKey],
) -> impl Future<Output = Result<bool, Failure>> {
    const MOVES: usize = 20;
    const ATTEMPTS: usize = 1_000;
    const PATIENCE: Duration = Duration::from_secs(30);
    step(async move {
        let moves = Mutex::new(Vec::new());
        let decided = || {
            let moves = moves.lock();
            moves.is_ok_and(|moves| moves.len() >= MOVES && moves.contains(&1))
        };
        let began = Instant::now();
        let moving = keys.iter().map(|key| async {
            let id = acquire(client, key, LONG).await?.lock_id;
            let (mut former_ms, mut passed_ms) = (renew(client, &id, LONG).await?, 0);
            let mut lasting_ms = ttl(LONG)?.as_millis();
            let mut latest_ms = former_ms - lasting_ms;
            for by_ms in (1..=5).cycle().take(ATTEMPTS / keys.len()) {
                if decided() || began.elapsed() > PATIENCE {
                    break;
                }
                // As if as much time passes before this extend as before the last one.
                let next_ms = (lasting_ms - passed_ms + by_ms).max(1);
                let expires_at_ms = renew(client, &id, ms(next_ms.unsigned_abs())).await?;
                let extended_at_ms = expires_at_ms - next_ms;
                require(
                    extended_at_ms >= latest_ms - SLACK_MS,
                    format_args!(
                        "an extend after another one: expected a TTL counted from {latest_ms} or \
                         later, saw it counted from {extended_at_ms}"
                    ),
                )?;
                latest_ms = latest_ms.max(extended_at_ms);
                let moved_ms = expires_at_ms - former_ms;
                passed_ms = (moved_ms - (next_ms - lasting_ms)).max(0);
                (lasting_ms, former_ms) = (next_ms, expires_at_ms);
                if (1..=5).contains(&moved_ms) {
                    let found = client.lookup_raw(Lookup::Key(key)).await?;
                    let stored_ms = found.map(|info| info.expires_at_ms);
                    same("the expiry at the store", stored_ms, Some(expires_at_ms))?;
                    moves
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(moved_ms);
                }
            }
            release(client, &id).await
        });
        try_join_all(moving).await?;
        Ok(decided())
    })
}

/// Extend returns the expiry that the store then shows.
///
/// Proves X2. To the millisecond, from any client, many times: until the milliseconds of an expiry had one digit, two
/// and three.
pub async fn it_returns_the_stores_expiry<H: Harness>(bench: Bench<H>) -> CaseResult {
    const ROUNDS: usize = 24;
    const MOST_ROUNDS: usize = 200;
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("extended")?;
    let grant = acquire(&client, &key, LONG).await?;
    let mut former_ms = grant.expires_at_ms - ttl(LONG)?.as_millis();
    let (mut passed_ms, mut digits) = (0, HashSet::new());
    for (round, wanted_ms) in (0..MOST_ROUNDS).zip([5, 50, 500].into_iter().cycle()) {
        if round >= ROUNDS && digits.len() == 3 {
            break;
        }
        // As if as much time passes before this extend as before the last one.
        let more_ms = (wanted_ms - former_ms - passed_ms).rem_euclid(1_000);
        let lasting = LONG + ms(more_ms.unsigned_abs());
        let expires_at_ms = renew(&client, &grant.lock_id, lasting).await?;
        let info = held(&other, &key, &grant.lock_id).await?;
        same("the expiry at the store", info.expires_at_ms, expires_at_ms)?;
        digits.extend((expires_at_ms % 1_000).checked_ilog10());
        let extended_at_ms = expires_at_ms - ttl(lasting)?.as_millis();
        (passed_ms, former_ms) = (extended_at_ms - former_ms, extended_at_ms);
        tokio::time::sleep(ms(1)).await;
    }
    release(&client, &grant.lock_id).await?;
    Ok(match digits.len() {
        3 => Outcome::Passed,
        _ => Outcome::Skipped(
            "the store's response time varies too much to extend to a chosen millisecond",
        ),
    })
}

/// Key, holder, fence and time of acquisition stay as they were.
///
/// Proves X4.
pub async fn it_changes_the_expiry_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let key = bench.key("extended")?;
    let grant = acquire(&client, &key, LONG).await?;
    let mut expected = held(&client, &key, &grant.lock_id).await?;
    same("the fence at the store", expected.fence, grant.fence)?;
    for lasting in [LONG * 2, LONG / 2, Ttl::MAX.as_duration(), LONG] {
        tokio::time::sleep(ms(5)).await;
        expected.expires_at_ms = renew(&client, &grant.lock_id, lasting).await?;
        let info = held(&client, &key, &grant.lock_id).await?;
        same("the lock after an extend", &info, &expected)?;
    }
    release(&client, &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// Extends use up no fence of the key.
///
/// Proves X4, F1, R4. The release of an extended lock uses none either.
pub async fn it_uses_no_fence<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let client = bench.client().await?;
    let key = bench.key("extended")?;
    let step = fence_step(&client, &key).await?;
    let grant = acquire(&client, &key, LONG).await?;
    for _ in 0..5 {
        renew(&client, &grant.lock_id, LONG).await?;
    }
    release(&client, &grant.lock_id).await?;
    for _ in 0..3 {
        not_renewed(&client, &grant.lock_id).await?;
    }
    let next = next_fence(&client, &key).await?;
    same(
        "rise of the fence across extends",
        rise(fence_of(&grant), next)?,
        step,
    )?;
    Ok(Outcome::Passed)
}

/// The lock id alone extends, from any client, and the holder can still release.
///
/// Proves X5, R1.
pub async fn it_works_from_any_client<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("extended")?;
    let grant = acquire(&client, &key, LONG).await?;
    let elsewhere = other.clone();
    let extending = tokio::spawn(async move { renew(&elsewhere, &grant.lock_id, LONG * 2).await });
    let expires_at_ms = join([extending]).await?;
    let info = held(&client, &key, &grant.lock_id).await?;
    same(
        "the expiry at the store",
        vec![info.expires_at_ms],
        expires_at_ms,
    )?;
    refused(&other, &key).await?;
    release(&client, &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// Extending a released lock is `NotHeld` and brings nothing back.
///
/// Proves X3.
pub async fn it_does_not_bring_back_a_released_lock<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("released")?;
    let grant = acquire(&client, &key, LONG).await?;
    release(&client, &grant.lock_id).await?;
    for client in [&client, &other] {
        not_renewed(client, &grant.lock_id).await?;
        free(client, &key).await?;
        let found = client.lookup_raw(Lookup::Id(&grant.lock_id)).await?;
        same("lookup of a released id", found, None)?;
    }
    let next = acquire(&other, &key, LONG).await?;
    release(&other, &next.lock_id).await?;
    Ok(Outcome::Passed)
}

/// Extending an id that never held anything is `NotHeld`.
///
/// Proves X3.
pub async fn an_unknown_id_is_not_held<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let (key, loser) = (bench.key("held")?, LockId::generate()?);
    not_renewed(&client, &LockId::generate()?).await?;
    let grant = acquire(&client, &key, LONG).await?;
    let attempt = client.acquire(&key, &loser, ttl(LONG)?).await?;
    same("a contended attempt is Locked", attempt.is_locked(), true)?;
    let before = held(&client, &key, &grant.lock_id).await?;
    not_renewed(&client, &loser).await?;
    let after = held(&client, &key, &grant.lock_id).await?;
    same("the holder's lock", after, before)?;
    release(&client, &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// Extending a lock whose key has a new holder is `NotHeld` and does not change the new holder's lock.
///
/// Proves X3.
pub async fn it_leaves_a_successor_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("succeeded")?;
    let former = acquire(&client, &key, LONG).await?;
    release(&client, &former.lock_id).await?;
    let successor = acquire(&other, &key, LONG).await?;
    let before = held(&other, &key, &successor.lock_id).await?;
    for client in [&client, &other] {
        let answer = client.extend(&former.lock_id, ttl(LONG * 10)?).await?;
        same("the former holder's extend", answer.expires_at_ms(), None)?;
    }
    let after = held(&client, &key, &successor.lock_id).await?;
    same("the successor's lock", after, before)?;
    release(&other, &successor.lock_id).await?;
    Ok(Outcome::Passed)
}

/// A lease that is renewed in time lasts much longer than its first TTL, and can still be released.
///
/// Proves X1, E1, L1, L2. The index by lock id lives as long as the lock does.
pub async fn renewals_keep_others_out<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("renewed")?;
    for lasting in LIFETIMES {
        let mut since = Instant::now();
        let guard = match client.locks().try_lock(&key).ttl(lasting).await {
            Err(error) if error.outcome_unknown() => {
                soon_free(&client, &key).await?;
                continue;
            }
            guard => guard?.ok_or_else(|| Failure::new("a free key: expected a guard"))?,
        };
        // Two TTLs and the tolerance, in steps of a third of the TTL.
        let end = since + lasting * 2 + ms(1_000);
        let mut in_time = true;
        while in_time && since < end {
            tokio::time::sleep(lasting / 3).await;
            let asked = Instant::now();
            let answer = guard.extend(lasting).await?;
            in_time = since.elapsed() < lasting;
            require(
                !in_time || answer.expires_at_ms().is_some(),
                "a renewal in time: expected Extended, saw NotHeld",
            )?;
            let attempt = other.locks().try_lock(&key).ttl(LONG).await?;
            in_time &= asked.elapsed() < lasting;
            require(
                !in_time || attempt.is_none(),
                "a key renewed in time: expected Locked for others, saw a grant",
            )?;
            since = asked;
        }
        if in_time {
            renew(&client, guard.lock_id(), LONG).await?;
            held(&other, &key, guard.lock_id()).await?;
            let released = guard.release().await?;
            same("the release after renewals", released.is_released(), true)?;
            return Ok(Outcome::Passed);
        }
        drop(guard);
        soon_free(&client, &key).await?;
    }
    Err(too_slow())
}

/// After someone else removed a lock, extend is `NotHeld`, and the guard is not valid any more.
///
/// Proves X3.
pub async fn a_holder_learns_that_its_lock_is_gone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("removed")?;
    let guard = client.locks().try_lock(&key).ttl(LONG).await?;
    let guard = guard.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
    same("is_valid of a fresh guard", guard.is_valid(), true)?;
    release(&other, guard.lock_id()).await?;
    let answer = guard.extend(LONG).await?;
    same("extend of a removed lock", answer.expires_at_ms(), None)?;
    same("is_valid after that", guard.is_valid(), false)?;
    same(
        "the guard's release",
        guard.release().await?.is_released(),
        false,
    )?;
    free(&client, &key).await?;
    Ok(Outcome::Passed)
}
