//! Acquiring a lock.

use std::time::Duration;

use syncguard_core::{ErrorCode, LockId, Ttl};

use crate::clock::{StoreClock, counted_between};
use crate::outcome::same;
use crate::steps::{
    LONG, Quickest, acquire, acquire_as, fails_with, fence_of, fence_step, free, held,
    holds_nothing, next_fence, refused, release, renew, rise, ttl,
};
use crate::{Bench, CaseResult, Failure, Harness, Outcome};

/// A free key is granted to the id that asked, and every client sees that.
///
/// Proves A1, L2.
pub async fn a_free_key_is_granted_to_the_given_id<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, id) = (bench.key("free")?, LockId::generate()?);
    free(&client, &key).await?;
    let grant = acquire_as(&client, &key, &id, LONG).await?;
    for client in [&client, &other] {
        let info = held(client, &key, &id).await?;
        same(
            "the expiry that lookup shows",
            info.expires_at_ms,
            grant.expires_at_ms,
        )?;
        same("the fence that lookup shows", info.fence, grant.fence)?;
    }
    release(&client, &id).await?;
    Ok(Outcome::Passed)
}

/// A held key is `Locked` for every other id, on every client.
///
/// Proves A2.
pub async fn a_held_key_is_locked_for_everyone_else<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("held")?;
    let grant = acquire(&client, &key, LONG).await?;
    for _ in 0..3 {
        refused(&client, &key).await?;
        refused(&other, &key).await?;
    }
    release(&client, &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// Contended attempts of any TTL do not change the holder's lock.
///
/// Proves A2. The lock lasts for minutes or for almost ten years, by its grant or by an extend.
pub async fn contention_changes_nothing<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("contended")?;
    let years = Ttl::MAX.as_duration() - Duration::from_millis(1);
    for (granted, extended) in [(LONG, None), (years, None), (LONG, Some(years))] {
        let grant = acquire(&client, &key, granted).await?;
        if let Some(lasting) = extended {
            renew(&client, &grant.lock_id, lasting).await?;
        }
        let before = held(&client, &key, &grant.lock_id).await?;
        for lasting in [LONG / 100, LONG, LONG * 100] {
            for client in [&client, &other] {
                let id = LockId::generate()?;
                let attempt = client.acquire(&key, &id, ttl(lasting)?).await?;
                same("a contended attempt is Locked", attempt.is_locked(), true)?;
            }
        }
        let after = held(&other, &key, &grant.lock_id).await?;
        same("the lock after contention", after, before)?;
        release(&client, &grant.lock_id).await?;
    }
    Ok(Outcome::Passed)
}

/// An id that was refused holds nothing, and releasing it does no harm.
///
/// Proves A2, R3.
pub async fn a_loser_leaves_no_trace<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, loser) = (bench.key("contended")?, LockId::generate()?);
    let grant = acquire(&client, &key, LONG).await?;
    let before = held(&client, &key, &grant.lock_id).await?;
    let attempt = other.acquire(&key, &loser, ttl(LONG)?).await?;
    same("a contended attempt is Locked", attempt.is_locked(), true)?;
    holds_nothing(&other, &loser).await?;
    holds_nothing(&client, &loser).await?;
    let after = held(&client, &key, &grant.lock_id).await?;
    same("the lock after the loser's release", after, before)?;
    release(&client, &grant.lock_id).await?;
    holds_nothing(&other, &loser).await?;
    free(&client, &key).await?;
    Ok(Outcome::Passed)
}

/// An acquire repeated by its holder gives the same grant, from any client.
///
/// Proves A5.
pub async fn replay_gives_the_same_grant<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, id) = (bench.key("replayed")?, LockId::generate()?);
    let grant = acquire_as(&client, &key, &id, LONG).await?;
    for client in [&client, &other, &client] {
        // Long enough for a clock of milliseconds to move on.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let again = acquire_as(client, &key, &id, LONG).await?;
        same("the replayed grant", &again, &grant)?;
    }
    release(&client, &id).await?;
    free(&client, &key).await?;
    Ok(Outcome::Passed)
}

/// A single attempt never waits for the holder.
///
/// Proves A4. The quickest of several refusals takes no longer than grants do, whether the holder extends its lock or
/// not.
pub async fn it_never_waits_for_the_holder<H: Harness>(bench: Bench<H>) -> CaseResult {
    const ATTEMPTS: usize = 8;
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, extended, idle) = (
        bench.key("held")?,
        bench.key("extended")?,
        bench.key("idle")?,
    );
    let holder = acquire(&client, &key, LONG).await?.lock_id;
    let extending = acquire(&client, &extended, LONG).await?.lock_id;
    let mut quickest = [Quickest::NONE; 2];
    for _ in 0..ATTEMPTS {
        renew(&client, &extending, LONG).await?;
        for (key, quickest) in [&key, &extended].into_iter().zip(&mut quickest) {
            quickest.grant(&other, &idle).await?;
            let refused = quickest.ask(&other, key).await?;
            same("a contended attempt is Locked", refused, true)?;
        }
    }
    for quickest in quickest {
        quickest.answers_do_not_wait()?;
    }
    release(&client, &holder).await?;
    release(&client, &extending).await?;
    Ok(Outcome::Passed)
}

/// A refused attempt does not acquire the key later, when the holder has released it.
///
/// Proves A4.
pub async fn a_refusal_is_final<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, loser) = (bench.key("held")?, LockId::generate()?);
    let holder = acquire(&client, &key, LONG).await?;
    let attempt = other.acquire(&key, &loser, ttl(LONG)?).await?;
    same("a contended attempt is Locked", attempt.is_locked(), true)?;
    release(&client, &holder.lock_id).await?;
    // Several times: on a busy machine, a call that waits in the background may sleep as long as this case.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(40)).await;
        free(&client, &key).await?;
    }
    holds_nothing(&client, &loser).await?;
    // The same id may try again and is then granted.
    acquire_as(&other, &key, &loser, LONG).await?;
    release(&other, &loser).await?;
    Ok(Outcome::Passed)
}

/// A replay with another TTL moves neither the grant nor the lock at the store.
///
/// Proves A5, A2.
pub async fn replay_moves_no_ttl<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, id) = (bench.key("replayed")?, LockId::generate()?);
    let grant = acquire_as(&client, &key, &id, LONG).await?;
    let before = held(&client, &key, &id).await?;
    for lasting in [LONG / 10, LONG * 10, LONG] {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let again = acquire_as(&other, &key, &id, lasting).await?;
        same("the replayed grant", &again, &grant)?;
        let after = held(&other, &key, &id).await?;
        same("the lock after a replay", &after, &before)?;
    }
    refused(&other, &key).await?;
    release(&client, &id).await?;
    Ok(Outcome::Passed)
}

/// A replay after an extend returns the extended lock.
///
/// Proves A5, X4. Extended once or several times.
pub async fn replay_after_an_extend_keeps_the_extension<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let (key, id) = (bench.key("replayed")?, LockId::generate()?);
    let grant = acquire_as(&client, &key, &id, LONG).await?;
    for lasting in [LONG * 2, LONG * 4, LONG * 3] {
        let extended = renew(&client, &id, lasting).await?;
        let again = acquire_as(&client, &key, &id, LONG).await?;
        same("the fence of the replayed grant", again.fence, grant.fence)?;
        same(
            "the expiry of the replayed grant",
            again.expires_at_ms,
            extended,
        )?;
        let after = held(&client, &key, &id).await?;
        same("the expiry at the store", after.expires_at_ms, extended)?;
    }
    release(&client, &id).await?;
    Ok(Outcome::Passed)
}

/// A released id can acquire the key again: a new grant, with a new fence.
///
/// Proves A5, F1. A replay gives the latest grant.
pub async fn replay_after_release_is_a_new_grant<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let (key, id) = (bench.key("again")?, LockId::generate()?);
    let mut fence = None;
    for _ in 0..4 {
        let grant = acquire_as(&client, &key, &id, LONG).await?;
        rise(fence, fence_of(&grant))?;
        fence = fence_of(&grant);
        let again = acquire_as(&client, &key, &id, LONG).await?;
        same("the replayed grant", &again, &grant)?;
        held(&client, &key, &id).await?;
        release(&client, &id).await?;
        free(&client, &key).await?;
    }
    Ok(Outcome::Passed)
}

/// A replay after a successor acquired the key is `Locked`.
///
/// Proves A5, A2, E1.
pub async fn replay_does_not_oust_a_successor<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, id) = (bench.key("succeeded")?, LockId::generate()?);
    acquire_as(&client, &key, &id, LONG).await?;
    release(&client, &id).await?;
    let successor = acquire(&other, &key, LONG).await?;
    let before = held(&other, &key, &successor.lock_id).await?;
    for client in [&client, &other] {
        let again = client.acquire(&key, &id, ttl(LONG)?).await?;
        same("a late replay is Locked", again.is_locked(), true)?;
    }
    let after = held(&client, &key, &successor.lock_id).await?;
    same("the successor's lock", after, before)?;
    release(&other, &successor.lock_id).await?;
    Ok(Outcome::Passed)
}

/// The store shows the TTL that was asked for, to the millisecond, up to ten years.
///
/// Proves T1, A6, L2. One client acquires one key with many TTLs. Each must be the expiry minus the time of
/// acquisition.
pub async fn ttls_are_exact<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let clock = StoreClock::new(&bench).await?;
    let key = bench.key("timed")?;
    let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
    for lasting in [
        Duration::from_millis(20_000),
        Duration::from_millis(20_001),
        Duration::from_millis(20_499),
        Duration::from_millis(20_500),
        Duration::from_millis(20_999),
        Duration::from_millis(61_234),
        Duration::from_millis(2_147_483_648),
        days(365),
        Ttl::MAX.as_duration() - Duration::from_millis(1),
        Ttl::MAX.as_duration(),
    ] {
        let before_ms = clock.now_ms().await?;
        let grant = acquire(&client, &key, lasting).await?;
        let after_ms = clock.now_ms().await?;
        let info = held(&client, &key, &grant.lock_id).await?;
        same(
            "the expiry at the store",
            info.expires_at_ms,
            grant.expires_at_ms,
        )?;
        same(
            "milliseconds from acquisition to expiry",
            info.expires_at_ms - info.acquired_at_ms,
            ttl(lasting)?.as_millis(),
        )?;
        counted_between(
            "a grant",
            grant.expires_at_ms,
            lasting,
            (before_ms, after_ms),
        )?;
        release(&client, &grant.lock_id).await?;
    }
    clock.stop().await?;
    Ok(Outcome::Passed)
}

/// The shortest TTLs are granted like others, or the grant has expired when it arrives.
///
/// Proves T1. `Locks` does not return a lease of which nothing is left: it releases the lock, and the error
/// says so.
pub async fn the_shortest_ttls_are_granted<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let clock = StoreClock::new(&bench).await?;
    for millis in [1, 2, 3, 10] {
        let (key, id) = (bench.key(&format!("short:{millis}"))?, LockId::generate()?);
        let lasting = Duration::from_millis(millis);
        let before_ms = clock.now_ms().await?;
        let grant = acquire_as(&client, &key, &id, lasting).await?;
        let times = (before_ms, clock.now_ms().await?);
        counted_between("a grant", grant.expires_at_ms, lasting, times)?;

        let late = bench.key(&format!("late:{millis}"))?;
        match client.locks().try_lock(&late).ttl(lasting).await {
            Ok(Some(_)) => {}
            Ok(None) => {
                return Err(Failure::new("a free key: expected a grant, saw Locked"));
            }
            Err(error) => same(
                "a grant that came after its lease had expired",
                (error.code(), error.outcome_unknown()),
                (ErrorCode::NetworkTimeout, true),
            )?,
        }
    }
    clock.stop().await?;
    Ok(Outcome::Passed)
}

/// A fraction of a millisecond rounds up.
///
/// Proves T3. Also for extend.
pub async fn fractions_round_up<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let key = bench.key("fractions")?;
    for (nanos, millis) in [
        (0, 20_000),
        (1, 20_001),
        (500_000, 20_001),
        (999_999, 20_001),
    ] {
        let lasting = Duration::from_secs(20) + Duration::from_nanos(nanos);
        let guard = client.locks().try_lock(&key).ttl(lasting).await?;
        let guard = guard.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
        let info = held(&client, &key, guard.lock_id()).await?;
        same(
            "the TTL at the store",
            info.expires_at_ms - info.acquired_at_ms,
            millis,
        )?;
        same("the release", guard.release().await?.is_released(), true)?;
    }
    for nanos in [1, 999, 999_999] {
        let lasting = Duration::from_nanos(nanos);
        same("milliseconds of a fraction", ttl(lasting)?.as_millis(), 1)?;
    }
    Ok(Outcome::Passed)
}

/// A TTL of zero or of more than ten years is `InvalidArgument` and uses up no fence.
///
/// Proves T2. For acquire, extend and `lock`. A free key stays free, and a lock stays as it was.
pub async fn bad_ttls_are_refused<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let (key, held_key) = (bench.key("refused")?, bench.key("held")?);
    let step = fence_step(&client, &key).await?;
    let before = next_fence(&client, &key).await?;
    let holder = acquire(&client, &held_key, LONG).await?;
    let holding = held(&client, &held_key, &holder.lock_id).await?;
    let too_long = Ttl::MAX.as_duration();
    for lasting in [
        Duration::ZERO,
        too_long + Duration::from_nanos(1),
        too_long + Duration::from_millis(1),
        too_long / 10 * 11,
        Duration::from_secs(u64::from(u32::MAX) * 1_000),
        Duration::MAX,
    ] {
        let code = ErrorCode::InvalidArgument;
        fails_with("acquire", code, client.locks().try_lock(&key).ttl(lasting)).await?;
        fails_with(
            "extend",
            code,
            client.locks().extend(holder.lock_id, lasting),
        )
        .await?;
        fails_with("lock", code, client.locks().lock(&key).ttl(lasting)).await?;
        free(&client, &key).await?;
    }
    let after = next_fence(&client, &key).await?;
    same(
        "rise of the fence across refused TTLs",
        rise(before, after)?,
        step,
    )?;
    let still = held(&client, &held_key, &holder.lock_id).await?;
    same("the lock after refused extends", still, holding)?;
    release(&client, &holder.lock_id).await?;
    Ok(Outcome::Passed)
}

/// An id that holds a key is not granted a key that another id holds.
///
/// Proves A2, I3. The answer is `Locked`, or `InvalidArgument` for an id in use. Neither lock changes.
pub async fn an_id_that_holds_a_key_is_granted_no_held_one<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (own, foreign) = (bench.key("own")?, bench.key("foreign")?);
    let id = acquire(&client, &own, LONG).await?.lock_id;
    let holder = acquire(&other, &foreign, LONG).await?.lock_id;
    let before = [
        held(&client, &own, &id).await?,
        held(&other, &foreign, &holder).await?,
    ];
    for client in [&client, &other] {
        match client.acquire(&foreign, &id, ttl(LONG)?).await {
            Ok(answer) => same("a held key is Locked", answer.is_locked(), true)?,
            Err(error) => {
                let expected = ErrorCode::InvalidArgument;
                same("the code of the refusal", error.code(), expected)?;
            }
        }
        let after = [
            held(client, &own, &id).await?,
            held(client, &foreign, &holder).await?,
        ];
        same("both locks", &after, &before)?;
    }
    release(&client, &id).await?;
    held(&client, &foreign, &holder).await?;
    release(&other, &holder).await?;
    Ok(Outcome::Passed)
}
