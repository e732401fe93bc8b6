//! Calls that are halted in the middle while others run: an operation that is not one atomic step fails
//! here, every time.
//!
//! A call is polled a few times and then left alone while calls of another client run to their end. Then it
//! goes on. Each case does so after each of the call's first polls, so that it halts between any two of
//! its steps.

use std::time::{Duration, Instant};

use syncguard_core::backend::{LockBackend, Lookup, MAX_PAGE_SIZE};
use syncguard_core::{LockId, LockInfoDebug, LockKey};

use crate::clock::dead_at;
use crate::outcome::{require, same, step};
use crate::pages::{can_list, listed};
use crate::polling::{HALTS, Halts};
use crate::purge_race::PurgeRace;
use crate::reads::{Seen, read, read_after};
use crate::steps::{
    EXPIRING, LONG, acquire, acquire_as, expiring, fence_in, fence_of, free, held, holds_nothing,
    join, ms, next_fence, not_released, not_renewed, release, renew, rise, take_over, ttl,
};
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

/// After that, every store may have removed a lock that is dead.
const KEPT_FOR: Duration = Duration::from_secs(3);

/// An extend that is halted while its lock is released does not bring it back.
///
/// Proves X3, R1.
pub async fn a_halted_extend_brings_nothing_back<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut halts = Halts::new(&bench);
    for (polls, key) in bench.keys("extended", HALTS)?.iter().enumerate() {
        let id = acquire(&client, key, LONG).await?.lock_id;
        let extend = client.extend(&id, ttl(LONG * 10)?);
        let (extended, released) = halts.halt(polls, extend, release(&other, &id)).await;
        let _ = extended?;
        released?;
        free(&other, key).await?;
        holds_nothing(&client, &id).await?;
    }
    Ok(halts.outcome())
}

/// An extend that is halted while the key gets a new holder does not change the new holder's lock.
///
/// Proves X3, E1.
pub async fn a_halted_extend_leaves_a_successor_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut halts = Halts::new(&bench);
    for (polls, key) in bench.keys("extended", HALTS)?.iter().enumerate() {
        let id = acquire(&client, key, LONG).await?.lock_id;
        let extend = client.extend(&id, ttl(LONG * 10)?);
        let (extended, successor) = halts.halt(polls, extend, pass_on(&other, key, &id)).await;
        let _ = extended?;
        undisturbed(&other, key, &id, successor?).await?;
    }
    Ok(halts.outcome())
}

/// A release that is halted while the key gets a new holder does not change the new holder's lock.
///
/// Proves R3, R4, R5. One of the two releases succeeds, also if the lock was extended and held for a while.
pub async fn a_halted_release_leaves_a_successor_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    const A_WHILE: Duration = Duration::from_millis(600);
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut halts = Halts::new(&bench);
    let mut old = Vec::new();
    for key in bench.keys("old", HALTS)? {
        let id = acquire(&client, &key, LONG).await?.lock_id;
        renew(&client, &id, LONG).await?;
        old.push(id);
    }
    let old_enough_at = Instant::now() + A_WHILE;
    for (polls, key) in bench.keys("released", HALTS)?.iter().enumerate() {
        let id = acquire(&client, key, LONG).await?.lock_id;
        let passing_on = async {
            let released = other.release(&id).await?.is_released();
            let successor = acquire(&other, key, LONG).await?.lock_id;
            Ok::<_, Failure>((released, held(&other, key, &successor).await?))
        };
        let (first, passed_on) = halts.halt(polls, client.release(&id), passing_on).await;
        let (second, successor) = passed_on?;
        same(
            "one of two releases succeeded",
            first?.is_released() != second,
            true,
        )?;
        undisturbed(&other, key, &id, successor).await?;
    }
    tokio::time::sleep_until(old_enough_at.into()).await;
    for (polls, id) in old.iter().enumerate() {
        let release = client.release(id);
        let (first, second) = halts.halt(polls, release, other.release(id)).await;
        same(
            "one of two releases succeeded",
            first?.is_released() != second?.is_released(),
            true,
        )?;
    }
    Ok(halts.outcome())
}

/// A release that is halted while its lock is extended still frees the key.
///
/// Proves R1, O1.
pub async fn a_halted_release_frees_an_extended_lock<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut halts = Halts::new(&bench);
    for (polls, key) in bench.keys("released", HALTS)?.iter().enumerate() {
        let id = acquire(&client, key, LONG).await?.lock_id;
        let extend = other.extend(&id, ttl(LONG * 10)?);
        let (released, extended) = halts.halt(polls, client.release(&id), extend).await;
        let _ = extended?;
        same("the release", released?.is_released(), true)?;
        free(&other, key).await?;
        holds_nothing(&other, &id).await?;
    }
    Ok(halts.outcome())
}

/// An acquire that is halted while another client acquires the key is refused, or was first.
///
/// Proves A3, A1, F1, O1. On a new key, on one that was released, and on one whose lease has expired.
pub async fn a_halted_acquire_and_another_are_one_grant<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut halts = Halts::new(&bench);
    let mut new = Vec::new();
    for key in bench.keys("new", HALTS)? {
        new.push((key, None));
    }
    let mut used = Vec::new();
    for key in bench.keys("used", HALTS)? {
        let fence = next_fence(&client, &key).await?;
        used.push((key, fence));
    }
    let mut expired = Vec::new();
    for key in bench.keys("expired", HALTS)? {
        let former = expiring(&client, &key).await?;
        expired.push((key, fence_in(&former)));
    }
    tokio::time::sleep_until(dead_at(EXPIRING).into()).await;
    for keys in [new, used, expired] {
        for (polls, (key, former)) in keys.iter().enumerate() {
            let (one, two, lasting) = (LockId::generate()?, LockId::generate()?, ttl(LONG)?);
            let (first, second) = halts
                .halt(
                    polls,
                    client.acquire(key, &one, lasting),
                    other.acquire(key, &two, lasting),
                )
                .await;
            let grant = match (first?.granted(), second?.granted()) {
                (Some(grant), None) | (None, Some(grant)) => grant,
                (first, second) => {
                    let seen = usize::from(first.is_some()) + usize::from(second.is_some());
                    return Err(Failure::new(format_args!(
                        "grants of one key: expected 1, saw {seen}"
                    )));
                }
            };
            let info = held(&other, key, &grant.lock_id).await?;
            same("the fence at the store", info.fence, grant.fence)?;
            let loser = if grant.lock_id == one { two } else { one };
            holds_nothing(&client, &loser).await?;
            release(&other, &grant.lock_id).await?;
            rise(fence_of(&grant), next_fence(&other, key).await?)?;
            if former.is_some() {
                rise(*former, fence_of(&grant))?;
            }
        }
    }
    Ok(halts.outcome())
}

/// An acquire that is halted keeps nobody from another key.
///
/// Proves K2, O1, L2. If its own lock can be found by key meanwhile, it can be found by id, too.
pub async fn a_halted_acquire_leaves_other_keys_free<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut halts = Halts::new(&bench);
    let keys = bench.keys("halted", HALTS)?.into_iter();
    let keys = keys.zip(bench.keys("beside", HALTS)?);
    for (polls, (key, beside)) in keys.enumerate() {
        let (id, lasting) = (LockId::generate()?, ttl(LONG)?);
        let acquiring = client.acquire(&key, &id, lasting);
        let meanwhile = async {
            if other.lookup_raw(Lookup::Key(&key)).await?.is_some() {
                held(&other, &key, &id).await?;
            }
            acquire(&other, &beside, LONG).await
        };
        let (acquired, granted) = halts.halt(polls, acquiring, meanwhile).await;
        same("a free key is Locked", acquired?.is_locked(), false)?;
        let granted = granted?.lock_id;
        held(&other, &key, &id).await?;
        held(&client, &beside, &granted).await?;
        release(&client, &id).await?;
        release(&other, &granted).await?;
    }
    Ok(halts.outcome())
}

/// A replay that is halted while the key gets a new holder does not change the new holder's lock.
///
/// Proves A5, A2, E1.
pub async fn a_halted_replay_leaves_a_successor_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut halts = Halts::new(&bench);
    for (polls, key) in bench.keys("replayed", HALTS)?.iter().enumerate() {
        let id = LockId::generate()?;
        let grant = acquire_as(&client, key, &id, LONG).await?;
        let (successor, lasting) = (LockId::generate()?, ttl(LONG)?);
        let passing_on = async {
            release(&other, &id).await?;
            let answer = other.acquire(key, &successor, lasting).await?;
            Ok::<_, Failure>(answer.granted())
        };
        let replay = client.acquire(key, &id, lasting);
        let (replayed, passed_on) = halts.halt(polls, replay, passing_on).await;
        match (replayed?.granted(), passed_on?) {
            (replayed, Some(_)) => {
                if let Some(again) = replayed {
                    same("the replayed grant", again, grant)?;
                }
                let info = held(&other, key, &successor).await?;
                undisturbed(&other, key, &id, info).await?;
            }
            // It arrived while nobody held the key: a new grant.
            (Some(_), None) => {
                held(&other, key, &id).await?;
                holds_nothing(&other, &successor).await?;
                release(&client, &id).await?;
            }
            (None, None) => {
                return Err(Failure::new(
                    "a free key asked for by two: expected a grant, saw none",
                ));
            }
        }
    }
    Ok(halts.outcome())
}

/// A lookup that is halted while the key gets a new holder shows all fields of one of the two locks, or none.
///
/// Proves L2, L3. By key it shows the former lock or the successor's, by id only the former.
pub async fn a_halted_lookup_shows_one_lock_whole<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut halts = Halts::new(&bench);
    for (index, key) in bench.keys("looked-up", 2 * HALTS)?.iter().enumerate() {
        let (polls, by_key) = (index / 2, index % 2 == 0);
        let id = acquire(&client, key, LONG).await?.lock_id;
        let former = held(&client, key, &id).await?;
        let by = if by_key {
            Lookup::Key(key)
        } else {
            Lookup::Id(&id)
        };
        let (found, successor) = halts
            .halt(polls, client.lookup_raw(by), pass_on(&other, key, &id))
            .await;
        let (found, successor) = (found?, successor?);
        if let Some(found) = found {
            require(
                found == former || by_key && found == successor,
                format_args!("a halted lookup: expected {former:?} or none, saw {found:?}"),
            )?;
        }
        release(&other, &successor.lock_id).await?;
    }
    Ok(halts.outcome())
}

/// A read beside an extend shows the lock before or after the extend. The read is halted, or the extend.
///
/// Proves L1, L2, X4, N1. `is_locked` says meanwhile that the key is held.
pub async fn a_halted_lookup_shows_one_expiry<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let can_list = can_list(&bench, &client).await?;
    let mut halts = Halts::new(&bench);
    let key = bench.key("extended")?;
    let id = acquire(&client, &key, LONG).await?.lock_id;
    let mut lasting = LONG;
    for polls in 0..HALTS {
        for by in [Lookup::Key(&key), Lookup::Id(&id)] {
            let mut before = held(&client, &key, &id).await?;
            // Another expiry each time.
            lasting += ms(1_000);
            let extend = renew(&other, &id, lasting);
            let (found, extended) = halts.halt(polls, client.lookup_raw(by), extend).await;
            let (found, extended) = (found?, extended?);
            let found = found.ok_or_else(|| {
                Failure::new("lookup of a lock that is extended: expected the lock, saw None")
            })?;
            if found != before {
                before.expires_at_ms = extended;
                same("a halted lookup", found, before)?;
            }
        }
        lasting += ms(1_000);
        let extend = renew(&other, &id, lasting);
        let (locked, extended) = halts.halt(polls, client.is_locked(&key), extend).await;
        extended?;
        same("is_locked of a lock that is extended", locked?, true)?;

        let before = held(&client, &key, &id).await?;
        lasting += ms(1_000);
        let reads = async {
            let locked = other.is_locked(&key).await?;
            same("is_locked of a lock that is extended", locked, true)?;
            let mut shown = Vec::new();
            for by in [Lookup::Key(&key), Lookup::Id(&id)] {
                shown.push(other.lookup_raw(by).await?);
            }
            if can_list {
                let mut listed = listed(&other, key.as_str(), MAX_PAGE_SIZE).await?;
                shown.push(listed.remove(key.as_str()));
            }
            Ok::<_, Failure>(shown)
        };
        let extend = renew(&client, &id, lasting);
        let (extended, shown) = halts.halt(polls, extend, reads).await;
        let mut after = before.clone();
        after.expires_at_ms = extended?;
        for shown in shown? {
            require(
                shown.as_ref() == Some(&before) || shown.as_ref() == Some(&after),
                format_args!("beside an extend: expected {before:?} or {after:?}, saw {shown:?}"),
            )?;
        }
    }
    release(&client, &id).await?;
    Ok(halts.outcome())
}

/// A read shows what was done before it began, even if an earlier read of its client has not ended.
///
/// Proves L1, L2, L3, N1, N3. Reads of a client are halted, or were dropped. Meanwhile another client acquires the key
/// or releases it.
pub async fn a_halted_read_does_not_answer_for_a_later_one<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let can_list = can_list(&bench, &client).await?;
    let mut halts = Halts::new(&bench);
    for (polls, drops) in (1..HALTS).flat_map(|polls| [(polls, false), (polls, true)]) {
        // No key is a prefix of another one: each listing shows one lock.
        let key = bench.key(&format!("{drops}:{polls}:read"))?;
        let id = LockId::generate()?;
        let read = || read(client.clone(), key.clone(), id, can_list);
        let acquire = acquire_as(&other, &key, &id, LONG);
        let seen = read_after(&mut halts, polls, drops, read, acquire).await?;
        let info = held(&other, &key, &id).await?;
        same(
            "reads after an acquire",
            seen,
            Seen::of(Some(info), can_list),
        )?;
        let release = release(&other, &id);
        let seen = read_after(&mut halts, polls, drops, read, release).await?;
        same("reads after a release", seen, Seen::of(None, can_list))?;
    }
    Ok(halts.outcome())
}

/// A call that finds an expired lock and is halted while the key gets a new holder does not change the new holder's
/// lock.
///
/// Proves E1, R3, X3, L3, L4, N3, N6, F2. A read, a listing, an extend or a release may remove the expired lock that it
/// finds. The case halts them once the lock is dead, and three seconds later: some stores keep dead locks for a while.
pub async fn a_halted_call_on_an_expired_lock_leaves_a_successor_alone<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let can_list = can_list(&bench, &client).await?;
    let mut races = Vec::new();
    for call in LateCall::ALL {
        if call == LateCall::List && !can_list {
            continue;
        }
        // None is the beginning of another one: a listing shows one lock.
        let keys = (0..2 * HALTS).map(|index| bench.key(&format!("{call:?}:{index}:late")));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let (client, other) = (client.clone(), other.clone());
        let mut halts = Halts::new(&bench);
        races.push(tokio::spawn(async move {
            let mut expired = Vec::new();
            for key in keys {
                expired.push((expiring(&client, &key).await?, key));
            }
            let mut dead_at = dead_at(EXPIRING);
            for (index, (former, key)) in expired.iter().enumerate() {
                if index == HALTS {
                    dead_at += KEPT_FOR;
                }
                tokio::time::sleep_until(dead_at.into()).await;
                let late = call.run(&client, key, &former.lock_id);
                let taking_over = take_over(&other, key, former);
                let (found, successor) = halts.halt(index % HALTS, late, taking_over).await;
                let (found, successor) = (found?, successor?);
                require(
                    found.is_none() || found.as_ref() == Some(&successor),
                    format_args!("{call:?}: expected {successor:?} or none, saw {found:?}"),
                )?;
                undisturbed(&other, key, &former.lock_id, successor).await?;
            }
            Ok(halts.outcome())
        }));
    }
    let mut outcomes = join(races).await?.into_iter();
    let undecided = outcomes.find(|outcome| *outcome != Outcome::Passed);
    Ok(undecided.unwrap_or(Outcome::Passed))
}

/// A purge that is halted while the keys of expired locks get new holders does not change the new holders' locks.
///
/// Proves P1, E1, F2. Several purges halt at once, each a poll later than the one before: a purge that has ended leaves
/// nothing for another one. If purges of others came first, the case tries again.
pub async fn a_halted_purge_leaves_successors_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let other = bench.client().await?;
    let mut race = PurgeRace::new(&bench).await?;
    while !race.is_over() {
        for (key, former, successor) in race.run(&other).await? {
            undisturbed(&other, &key, &former, successor).await?;
        }
    }
    Ok(race.outcome())
}

/// A call that meets a lock after its end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum LateCall {
    IsLocked,
    LookupByKey,
    LookupById,
    List,
    Extend,
    Release,
}

impl LateCall {
    const ALL: [Self; 6] = [
        Self::IsLocked,
        Self::LookupByKey,
        Self::LookupById,
        Self::List,
        Self::Extend,
        Self::Release,
    ];

    /// Returns the lock that the call shows. Fails if the call finds the lock of `former`.
    #[track_caller]
    fn run<B: LockBackend>(
        self,
        client: &Client<B>,
        key: &LockKey,
        former: &LockId,
    ) -> impl Future<Output = Result<Option<LockInfoDebug<B::Fence>>, Failure>> {
        step(async move {
            match self {
                // Either answer is right, depending on when it is given.
                Self::IsLocked => client.is_locked(key).await.map(drop)?,
                Self::LookupByKey => return Ok(client.lookup_raw(Lookup::Key(key)).await?),
                Self::LookupById => {
                    let found = client.lookup_raw(Lookup::Id(former)).await?;
                    same("lookup of an expired id", found, None)?;
                }
                Self::List => {
                    let mut listed = listed(client, key.as_str(), MAX_PAGE_SIZE).await?;
                    return Ok(listed.remove(key.as_str()));
                }
                Self::Extend => not_renewed(client, former).await?,
                Self::Release => not_released(client, former).await?,
            }
            Ok(None)
        })
    }
}

/// Releases the lock of `former`, and acquires the key for somebody else.
#[track_caller]
fn pass_on<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    former: &LockId,
) -> impl Future<Output = Result<LockInfoDebug<B::Fence>, Failure>> {
    step(async move {
        release(client, former).await?;
        let successor = acquire(client, key, LONG * 2).await?.lock_id;
        held(client, key, &successor).await
    })
}

/// Fails unless the successor's lock is as it was, and the former holder has none; and unless the key's fences rise
/// further.
#[track_caller]
fn undisturbed<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    former: &LockId,
    successor: LockInfoDebug<B::Fence>,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let id = successor.lock_id;
        same(
            "the successor's lock",
            &held(client, key, &id).await?,
            &successor,
        )?;
        holds_nothing(client, former).await?;
        release(client, &id).await?;
        rise(fence_in(&successor), next_fence(client, key).await?)?;
        Ok(())
    })
}
