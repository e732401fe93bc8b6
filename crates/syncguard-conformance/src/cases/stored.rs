//! What the store keeps, as the harness counts it: no answer of a backend shows orphaned entries or growth.

use std::time::Instant;

use futures_util::future::join_all;
use syncguard_core::backend::{LockBackend, Lookup};
use syncguard_core::list::KeyPrefix;
use syncguard_core::{LockId, LockKey};

use crate::clock::{acquire_briefly, dead_at};
use crate::outcome::same;
use crate::overdue::{Overdue, TOO_SLOW};
use crate::polling::{HALTS, Halts, poll_once, poll_times};
use crate::purge_race::PurgeRace;
use crate::steps::{
    DRAIN, EXPIRING, LONG, SOON, acquire, challenge, holds_nothing, join, ms, next_fence,
    not_released, not_renewed, refused, release, renew, ttl,
};
use crate::view::View;
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

/// A released key leaves its fence counter, and nothing else.
///
/// Proves G1, K3, R1. Never extended or up to three times, released by its own client or by another.
pub async fn a_released_key_leaves_its_counter<H: Harness>(bench: Bench<H>) -> CaseResult {
    let Some(view) = View::new(&bench).await? else {
        return Ok(Outcome::NO_VIEW);
    };
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut ids = Vec::new();
    for key in bench.keys("released", 20)? {
        ids.push(acquire(&client, &key, LONG).await?.lock_id);
    }
    view.keeps("20 held locks", 20, 20).await?;
    for (index, id) in ids.iter().enumerate() {
        for _ in 0..index % 4 {
            renew(&other, id, LONG * 2).await?;
        }
        let by = if index % 3 == 0 { &client } else { &other };
        release(by, id).await?;
        if index == 9 {
            view.keeps("10 held locks and 10 released ones", 10, 20)
                .await?;
        }
    }
    view.keeps("20 released locks", 0, 20).await?;
    Ok(Outcome::Passed)
}

/// A key that is acquired many times leaves one fence counter.
///
/// Proves G1, K3. Hundreds of grants by several clients, extended or not.
pub async fn a_key_acquired_again_and_again_leaves_one_counter<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    let Some(view) = View::new(&bench).await? else {
        return Ok(Outcome::NO_VIEW);
    };
    let (clients, key) = (bench.clients(3).await?, bench.key("again")?);
    for (index, client) in clients.iter().cycle().take(200).enumerate() {
        let id = acquire(client, &key, LONG).await?.lock_id;
        if index % 2 == 0 {
            renew(client, &id, LONG * 2).await?;
        }
        release(client, &id).await?;
    }
    view.keeps("a key after 200 grants", 0, 1).await?;
    Ok(Outcome::Passed)
}

/// An expired lock leaves its fence counter once it is purged, or once the key is acquired again.
///
/// Proves G2, G3, E2. The lock is extended or not, and refuses its key to others while it is live. Keys expire and are
/// acquired again twice. The case reads and watches expired locks. Their ids hold nothing, before and after a takeover.
pub async fn an_expired_lock_leaves_its_counter<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (Some(view), Some(taken_over)) = (
        View::new(&bench).await?,
        View::of(&bench, "taken-over").await?,
    ) else {
        return Ok(Outcome::NO_VIEW);
    };
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut leases = Vec::new();
    for key in bench.keys("purged", 4)? {
        leases.push(acquire_briefly(&client, &key).await?);
        challenge(&other, &key).await?;
    }
    for key in bench.keys("extended", 4)? {
        let id = acquire(&client, &key, LONG).await?.lock_id;
        renew(&client, &id, EXPIRING).await?;
    }
    let (successions, mut former) = (bench.keys("taken-over", 4)?, Vec::new());
    for (index, key) in successions.iter().enumerate() {
        let lease = acquire_briefly(&client, key).await?;
        if index % 2 == 0 {
            // Unless it has expired already.
            let _ = client.extend(&lease.grant.lock_id, ttl(EXPIRING)?).await?;
        }
        former.push(lease.grant.lock_id);
        leases.push(lease);
    }
    let (late, mut overrun) = (bench.keys("late", 4)?, Vec::new());
    for key in &late {
        let lease = acquire_briefly(&client, key).await?;
        overrun.push(lease.grant.lock_id);
        leases.push(lease);
    }
    for lease in &leases {
        lease.end().await;
    }

    for (key, id) in late.iter().zip(&overrun) {
        let _ = client.is_locked(key).await?;
        let _ = client.lookup_raw(Lookup::Key(key)).await?;
        let _ = client.lookup_raw(Lookup::Id(id)).await?;
        let _ = client.watch(key).await?;
        holds_nothing(&client, id).await?;
    }
    for is_last in [false, true] {
        let mut successors = Vec::new();
        for (key, id) in successions.iter().zip(&former) {
            successors.push(acquire(&other, key, LONG).await?.lock_id);
            holds_nothing(&client, id).await?;
        }
        taken_over
            .keeps("4 locks that were taken over", 4, 4)
            .await?;
        for id in &successors {
            if is_last {
                release(&other, id).await?;
            } else {
                renew(&other, id, EXPIRING).await?;
            }
        }
        if !is_last {
            tokio::time::sleep_until(dead_at(EXPIRING).into()).await;
            former = successors;
        }
    }
    taken_over
        .keeps("4 locks that were taken over and released", 0, 4)
        .await?;
    // Other users purge the store, too, and a purge keeps what expired a moment ago.
    let _turn = bench.purging_at(Instant::now() + ms(1_000)).await;
    let began = Instant::now();
    while view.count().await? != view.expected(0, 16) && began.elapsed() < SOON {
        let _ = other.purge_expired(500).await?;
        tokio::time::sleep(ms(100)).await;
    }
    view.keeps("16 locks that expired, were purged or taken over", 0, 16)
        .await?;
    Ok(Outcome::Passed)
}

/// A call that changes nothing leaves nothing.
///
/// Proves G3, A2, L4, R2, X3. Refusals, calls with ids that hold nothing, reads, purges, and listings of which nobody
/// asks for the second page: on held keys, on a released one, and on keys that were never acquired.
pub async fn a_call_that_changes_nothing_leaves_nothing<H: Harness>(bench: Bench<H>) -> CaseResult {
    let Some(view) = View::new(&bench).await? else {
        return Ok(Outcome::NO_VIEW);
    };
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (held, released) = (bench.key("held")?, bench.key("released")?);
    let holder = acquire(&client, &held, LONG).await?.lock_id;
    let beside = acquire(&client, &bench.key("held-beside")?, LONG).await?;
    let former = acquire(&client, &released, LONG).await?.lock_id;
    release(&client, &former).await?;
    view.keeps("two held locks and a released one", 2, 3)
        .await?;
    for new in bench.keys("new", 25)? {
        refused(&other, &held).await?;
        for key in [&held, &released, &new] {
            let _ = other.is_locked(key).await?;
            let _ = other.lookup_raw(Lookup::Key(key)).await?;
        }
        for id in [LockId::generate()?, former] {
            not_renewed(&other, &id).await?;
            not_released(&other, &id).await?;
            let _ = other.lookup_raw(Lookup::Id(&id)).await?;
        }
        // Both held keys begin with it.
        let prefix = KeyPrefix::new(held.as_str())?;
        let _ = other.list(&prefix, None, 1).await?;
        let _turn = bench.purging().await;
        let _ = other.purge_expired(1).await?;
    }
    view.keeps(
        "two held locks and a released one, after calls in vain",
        2,
        3,
    )
    .await?;
    release(&client, &holder).await?;
    release(&client, &beside.lock_id).await?;
    view.keeps("three released locks", 0, 3).await?;
    Ok(Outcome::Passed)
}

/// A watch that has ended leaves nothing.
///
/// Proves G3, W2. It resolved, was dropped while it waited, or was never awaited. Its key was held, or never acquired.
pub async fn a_watch_leaves_nothing<H: Harness>(bench: Bench<H>) -> CaseResult {
    let Some(view) = View::new(&bench).await? else {
        return Ok(Outcome::NO_VIEW);
    };
    let (client, other) = (bench.client().await?, bench.client().await?);
    for (index, key) in bench.keys("watched", 9)?.into_iter().enumerate() {
        let id = acquire(&client, &key, LONG).await?.lock_id;
        let watch = other.watch(&key).await?;
        if let Some(mut watch) = watch {
            if index % 3 > 0 {
                let mut changed = Box::pin(watch.changed());
                let _ = poll_once(changed.as_mut()).await;
                if index % 3 == 1 {
                    drop(changed);
                } else {
                    release(&client, &id).await?;
                    changed.await?;
                    continue;
                }
            }
            drop(watch);
        } else {
            release(&client, &id).await?;
            return Ok(Outcome::NO_WAKE_UPS);
        }
        release(&client, &id).await?;
    }
    for key in bench.keys("never", 3)? {
        if let Some(mut watch) = other.watch(&key).await? {
            watch.changed().await?;
        }
    }
    view.soon_keeps("9 released locks that were watched", 0, 9)
        .await?;
    Ok(Outcome::Passed)
}

/// An acquire that is abandoned leaves at most the fence counter of its key.
///
/// Proves G3, C1. Dropped at any of its polls: of a free key, or of a held one.
pub async fn an_abandoned_acquire_leaves_nothing<H: Harness>(bench: Bench<H>) -> CaseResult {
    let Some(view) = View::new(&bench).await? else {
        return Ok(Outcome::NO_VIEW);
    };
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (free, held) = (bench.keys("free", HALTS)?, bench.key("held")?);
    let holder = acquire(&other, &held, LONG).await?.lock_id;
    for (polls, key) in free.iter().enumerate() {
        for key in [key, &held] {
            let abandoned = client.locks().try_lock(key).ttl(LONG);
            if let Some(Some(guard)) = poll_times(polls, abandoned).await.transpose()? {
                same("the release", guard.release().await?.is_released(), true)?;
            }
        }
    }
    client.locks().drain(DRAIN).await?;
    // A call that a driver has queued would take effect now.
    tokio::time::sleep(ms(1_500)).await;
    for key in &free {
        let _ = next_fence(&other, key).await?;
    }
    view.keeps("a held lock and 12 abandoned ones", 1, HALTS + 1)
        .await?;
    release(&other, &holder).await?;
    Ok(Outcome::Passed)
}

/// A release that is abandoned leaves at most the fence counter of its key.
///
/// Proves G1, C4. Dropped at any of its polls.
pub async fn an_abandoned_release_leaves_nothing<H: Harness>(bench: Bench<H>) -> CaseResult {
    let Some(view) = View::new(&bench).await? else {
        return Ok(Outcome::NO_VIEW);
    };
    let client = bench.client().await?;
    for (polls, key) in bench.keys("released", HALTS)?.iter().enumerate() {
        let guard = client.locks().try_lock(key).ttl(LONG).await?;
        let guard = guard.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
        if let Some(answer) = poll_times(polls, guard.release()).await {
            same("the release", answer?.is_released(), true)?;
        }
    }
    client.locks().drain(DRAIN).await?;
    view.soon_keeps("12 released locks", 0, HALTS).await?;
    Ok(Outcome::Passed)
}

/// A call that is halted while its lock is released leaves nothing.
///
/// Proves G1, G3, X3, R1, A5. Extend, release and replay, after each of their first polls.
pub async fn a_halted_call_leaves_nothing<H: Harness>(bench: Bench<H>) -> CaseResult {
    let Some(view) = View::new(&bench).await? else {
        return Ok(Outcome::NO_VIEW);
    };
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut halts = Halts::new(&bench);
    for (polls, key) in bench.keys("extended", HALTS)?.iter().enumerate() {
        let id = acquire(&client, key, LONG).await?.lock_id;
        let extend = client.extend(&id, ttl(LONG * 2)?);
        let (extended, released) = halts.halt(polls, extend, release(&other, &id)).await;
        let _ = extended?;
        released?;
    }
    for (polls, key) in bench.keys("released", HALTS)?.iter().enumerate() {
        let id = acquire(&client, key, LONG).await?.lock_id;
        let passed_on = async {
            let _ = other.release(&id).await?;
            let successor = acquire(&other, key, LONG).await?.lock_id;
            release(&other, &successor).await
        };
        let (released, passed_on) = halts.halt(polls, client.release(&id), passed_on).await;
        let _ = released?;
        passed_on?;
    }
    for (polls, key) in bench.keys("replayed", HALTS)?.iter().enumerate() {
        let id = acquire(&client, key, LONG).await?.lock_id;
        let replay = client.acquire(key, &id, ttl(LONG)?);
        let (replayed, released) = halts.halt(polls, replay, release(&other, &id)).await;
        // It was answered before, or it is a new grant.
        let _ = replayed?;
        released?;
        let _ = client.release(&id).await?;
    }
    view.keeps("36 released locks", 0, 3 * HALTS).await?;
    Ok(halts.outcome())
}

/// A purge that is halted while the keys of expired locks get new holders leaves nothing of the expired locks.
///
/// Proves G2, P1. Several purges halt at once, each a poll later than the one before. If purges of others came first, the
/// case tries again.
pub async fn a_halted_purge_leaves_nothing<H: Harness>(bench: Bench<H>) -> CaseResult {
    let Some(view) = View::of(&bench, "purged").await? else {
        return Ok(Outcome::NO_VIEW);
    };
    let other = bench.client().await?;
    let mut race = PurgeRace::new(&bench).await?;
    let mut all = 0;
    while !race.is_over() {
        let successors = race.run(&other).await?;
        let held = successors.len();
        all += held;
        view.keeps("locks that were taken over during a purge", held, all)
            .await?;
        for (_, _, successor) in successors {
            release(&other, &successor.lock_id).await?;
        }
        view.keeps("released locks", 0, all).await?;
    }
    Ok(race.outcome())
}

/// A call that changes nothing leaves nothing in the tolerance either.
///
/// Proves G3, A2, L4. Refusals, reads and listings, of locks whose leases have just expired.
pub async fn a_call_in_the_tolerance_leaves_nothing<H: Harness>(bench: Bench<H>) -> CaseResult {
    const ROUNDS: usize = 12;
    const LEASES: usize = 2;
    let (client, other) = (bench.client().await?, bench.client().await?);
    for round in 0..ROUNDS {
        let name = format!("overdue:{round}");
        let Some(view) = View::of(&bench, &name).await? else {
            return Ok(Outcome::NO_VIEW);
        };
        let mut overdue = Vec::new();
        for key in bench.keys(&name, LEASES)? {
            overdue.push(Overdue::new(&client, key, 1).await?);
        }
        for Overdue { key, id, from, .. } in &overdue {
            tokio::time::sleep_until((*from).into()).await;
            let _ = other.is_locked(key).await?;
            let _ = other.lookup_raw(Lookup::Key(key)).await?;
            let _ = other.lookup_raw(Lookup::Id(id)).await?;
            let _ = other.list(&KeyPrefix::new(key.as_str())?, None, 10).await?;
            challenge(&other, key).await?;
        }
        let in_time = overdue.iter().all(|lease| Instant::now() < lease.until);
        for Overdue { key, id, .. } in &overdue {
            // If the lock is dead already, its key's next lock replaces it.
            let _ = client.release(id).await?;
            let _ = next_fence(&other, key).await?;
        }
        view.keeps("2 locks that were released in the tolerance", 0, LEASES)
            .await?;
        if in_time {
            return Ok(Outcome::Passed);
        }
    }
    Ok(TOO_SLOW)
}

/// Many contenders leave only the fence counters of their keys.
///
/// Proves G1, G3, A3. On 4 keys: many are refused at once, and 32 tasks acquire, extend and release.
pub async fn many_at_once_leave_their_counters<H: Harness>(bench: Bench<H>) -> CaseResult {
    const TASKS: usize = 32;
    let Some(view) = View::new(&bench).await? else {
        return Ok(Outcome::NO_VIEW);
    };
    let (clients, keys) = (bench.clients(4).await?, bench.keys("contended", 4)?);
    for key in &keys {
        let holder = acquire(&clients[0], key, LONG).await?.lock_id;
        join_all(
            clients
                .iter()
                .cycle()
                .take(TASKS)
                .map(|client| refused(client, key)),
        )
        .await
        .into_iter()
        .collect::<Result<(), _>>()?;
        release(&clients[0], &holder).await?;
    }
    let tasks = (0..TASKS).map(|task| {
        let (client, keys) = (clients[task % clients.len()].clone(), keys.clone());
        tokio::spawn(async move { contend(&client, &keys, task).await })
    });
    join(tasks).await?;
    // Each key has one counter, whichever contender was granted it.
    for key in &keys {
        let _ = next_fence(&clients[0], key).await?;
    }
    view.keeps("4 keys that many contended for", 0, 4).await?;
    Ok(Outcome::Passed)
}

async fn contend<B: LockBackend>(
    client: &Client<B>,
    keys: &[LockKey],
    task: usize,
) -> Result<(), Failure> {
    for key in keys.iter().cycle().skip(task).take(20) {
        let id = LockId::generate()?;
        if client.acquire(key, &id, ttl(LONG)?).await?.is_locked() {
            not_released(client, &id).await?;
        } else {
            // Others meet the lock.
            tokio::task::yield_now().await;
            renew(client, &id, LONG * 2).await?;
            release(client, &id).await?;
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}
