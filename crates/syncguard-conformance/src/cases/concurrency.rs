//! Many calls at once, by several clients and many tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use syncguard_core::backend::AcquireResult;
use syncguard_core::{LockId, LockOptions, ReleaseResult};
use tokio::sync::Barrier;

use crate::clock::StoreClock;
use crate::outcome::{require, same};
use crate::steps::{
    LONG, acquire, acquire_as, fence_of, free, held, holds_nothing, join, ms, release, renew, rise,
    ttl,
};
use crate::{Bench, CaseResult, Failure, Harness, Outcome};

/// Of many concurrent acquires of one key, exactly one is granted.
///
/// Proves A3, A1, O1. 32 tasks on 4 clients, several times. The others see `Locked`.
pub async fn of_many_exactly_one_is_granted<H: Harness>(bench: Bench<H>) -> CaseResult {
    const TASKS: usize = 32;
    let clients = bench.clients(4).await?;
    let mut fence = None;
    let key = bench.key("contended")?;
    for _ in 0..12 {
        let start = Arc::new(Barrier::new(TASKS));
        let attempts = (0..TASKS).map(|index| {
            let (client, key) = (clients[index % clients.len()].clone(), key.clone());
            let start = Arc::clone(&start);
            tokio::spawn(async move {
                let id = LockId::generate()?;
                start.wait().await;
                Ok(client.acquire(&key, &id, ttl(LONG)?).await?.granted())
            })
        });
        let grants: Vec<_> = join(attempts).await?.into_iter().flatten().collect();
        same("grants of one key", grants.len(), 1)?;
        for grant in grants {
            rise(fence, fence_of(&grant))?;
            fence = fence_of(&grant);
            held(&clients[0], &key, &grant.lock_id).await?;
            release(&clients[0], &grant.lock_id).await?;
        }
    }
    Ok(Outcome::Passed)
}

/// On each of many new keys, exactly one of many concurrent acquires is granted.
///
/// Proves A3, A1, K2, O1.
pub async fn of_many_exactly_one_is_granted_a_new_key<H: Harness>(bench: Bench<H>) -> CaseResult {
    const TASKS: usize = 8;
    let clients = bench.clients(4).await?;
    let keys = bench.keys("new", 16)?;
    let attempts = (0..TASKS * keys.len()).map(|index| {
        let client = clients[index % clients.len()].clone();
        let key = keys[index / TASKS].clone();
        tokio::spawn(async move {
            let id = LockId::generate()?;
            let answer = client.acquire(&key, &id, ttl(LONG)?).await?;
            Ok(answer.granted().map(|grant| (key, grant.lock_id)))
        })
    });
    let grants: Vec<_> = join(attempts).await?.into_iter().flatten().collect();
    for key in &keys {
        let count = grants.iter().filter(|(granted, _)| granted == key).count();
        same("grants of one new key", count, 1)?;
    }
    for (key, id) in &grants {
        held(&clients[0], key, id).await?;
        release(&clients[1], id).await?;
    }
    Ok(Outcome::Passed)
}

/// 64 tasks cycle over 16 keys: a key has one holder at a time, and its fences only increase.
///
/// Proves A3, A1, F1, R1, O1. Each task makes up to 200 cycles, on one of four clients. A register in this process
/// records the holders. On a slow store the case ends after some seconds.
pub async fn holders_exclude_each_other<H: Harness>(bench: Bench<H>) -> CaseResult {
    const TASKS: usize = 64;
    const CYCLES: usize = 200;
    const LONGEST: Duration = Duration::from_secs(3);
    struct Place {
        key: syncguard_core::LockKey,
        taken: AtomicBool,
        fence: AtomicU64,
        grants: AtomicU64,
    }
    let clients = bench.clients(4).await?;
    let places: Vec<_> = bench
        .keys("cycled", 16)?
        .into_iter()
        .map(|key| Place {
            key,
            taken: AtomicBool::new(false),
            fence: AtomicU64::new(0),
            grants: AtomicU64::new(0),
        })
        .collect();
    let places = Arc::new(places);
    let end = Instant::now() + LONGEST;
    let has_fences = bench.has_fences();
    let tasks = (0..TASKS).map(|task| {
        let client = clients[task % clients.len()].clone();
        let places = Arc::clone(&places);
        tokio::spawn(async move {
            for cycle in 0..CYCLES {
                if cycle > 0 && Instant::now() > end {
                    break;
                }
                let place = &places[(task * 7 + cycle * 5) % places.len()];
                let id = LockId::generate()?;
                let answer = client.acquire(&place.key, &id, ttl(LONG)?).await?;
                let AcquireResult::Acquired(grant) = answer else {
                    continue;
                };
                require(
                    !place.taken.swap(true, Ordering::SeqCst),
                    "a key granted: expected no other holder, saw one",
                )?;
                place.grants.fetch_add(1, Ordering::Relaxed);
                let fence = fence_of(&grant).unwrap_or_default();
                let greatest = place.fence.fetch_max(fence, Ordering::SeqCst);
                require(
                    fence > greatest || !has_fences,
                    format_args!("a fence: expected more than {greatest}, saw {fence}"),
                )?;
                tokio::task::yield_now().await;
                place.taken.store(false, Ordering::SeqCst);
                release(&client, &id).await?;
            }
            Ok(())
        })
    });
    join(tasks).await?;
    for place in places.iter() {
        require(
            place.grants.load(Ordering::Relaxed) > 0,
            "a key in the cycle: expected grants, saw none",
        )?;
        free(&clients[0], &place.key).await?;
    }
    Ok(Outcome::Passed)
}

/// `lock()` runs one section at a time: a counter that is read and then written loses no update.
///
/// Proves A3, E1, O1.
pub async fn sections_never_overlap<H: Harness>(bench: Bench<H>) -> CaseResult {
    const TASKS: u64 = 12;
    const SECTIONS: u64 = 4;
    let clients = bench.clients(3).await?;
    let (key, counter) = (bench.key("section")?, Arc::new(AtomicU64::new(0)));
    let tasks = (0..TASKS).zip(clients.iter().cycle()).map(|(_, client)| {
        let (client, key, counter) = (client.clone(), key.clone(), Arc::clone(&counter));
        tokio::spawn(async move {
            let options = LockOptions::new()
                .ttl(LONG)
                .timeout(LONG)
                .max_retries(1_000_000)
                .backoff(syncguard_core::Backoff::Fixed)
                .retry_delay(ms(10));
            for _ in 0..SECTIONS {
                let receipt = client
                    .locks()
                    .lock(&key)
                    .options(&options)
                    .run(async |_| {
                        let seen = counter.load(Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        counter.store(seen + 1, Ordering::SeqCst);
                    })
                    .await?;
                same("overran", receipt.overran(), false)?;
            }
            Ok(())
        })
    });
    join(tasks).await?;
    same(
        "sections counted",
        counter.load(Ordering::SeqCst),
        TASKS * SECTIONS,
    )?;
    Ok(Outcome::Passed)
}

/// Concurrent replays of one acquire are one grant.
///
/// Proves A5, A3. A driver may deliver a call twice.
pub async fn concurrent_replays_are_one_grant<H: Harness>(bench: Bench<H>) -> CaseResult {
    let clients = bench.clients(4).await?;
    for key in bench.keys("replayed", 8)? {
        let id = LockId::generate()?;
        let attempts = (0..8).map(|index| {
            let (client, key) = (clients[index % clients.len()].clone(), key.clone());
            tokio::spawn(async move { acquire_as(&client, &key, &id, LONG).await })
        });
        let grants = join(attempts).await?;
        for grant in &grants {
            same("one of the replayed grants", grant, &grants[0])?;
        }
        let info = held(&clients[0], &key, &id).await?;
        same("the fence at the store", info.fence, grants[0].fence)?;
        same(
            "the expiry at the store",
            info.expires_at_ms,
            grants[0].expires_at_ms,
        )?;
        release(&clients[1], &id).await?;
        free(&clients[0], &key).await?;
    }
    Ok(Outcome::Passed)
}

/// Concurrent acquires of different keys are all granted.
///
/// Proves K2, O1.
pub async fn different_keys_never_wait_for_each_other<H: Harness>(bench: Bench<H>) -> CaseResult {
    let clients = bench.clients(4).await?;
    let keys = bench.keys("parallel", 64)?;
    let tasks = keys.into_iter().enumerate().map(|(index, key)| {
        let client = clients[index % clients.len()].clone();
        tokio::spawn(async move {
            for _ in 0..3 {
                let grant = acquire(&client, &key, LONG).await?;
                renew(&client, &grant.lock_id, LONG).await?;
                held(&client, &key, &grant.lock_id).await?;
                release(&client, &grant.lock_id).await?;
            }
            Ok(())
        })
    });
    join(tasks).await?;
    Ok(Outcome::Passed)
}

/// Concurrent extends of one lock all succeed, and the last one counts.
///
/// Proves X1, X2, O1.
pub async fn concurrent_extends_all_succeed<H: Harness>(bench: Bench<H>) -> CaseResult {
    let clients = bench.clients(4).await?;
    let key = bench.key("extended")?;
    let grant = acquire(&clients[0], &key, LONG).await?;
    for _ in 0..5 {
        let extends = (0_u32..16)
            .zip(clients.iter().cycle())
            .map(|(index, client)| {
                let client = client.clone();
                tokio::spawn(async move {
                    renew(&client, &grant.lock_id, LONG + ms(1_000) * index).await
                })
            });
        let answers = join(extends).await?;
        let info = held(&clients[0], &key, &grant.lock_id).await?;
        require(
            answers.contains(&info.expires_at_ms),
            "the expiry after concurrent extends: expected one of the answers, saw another",
        )?;
        same("the fence", info.fence, grant.fence)?;
    }
    release(&clients[0], &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// A release during an extend frees the key, and the extend does not bring the lock back.
///
/// Proves X3, R1, O1. In either order. The extend does not change the next holder's lock.
pub async fn a_release_beats_an_extend_in_flight<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let tasks = bench
        .keys("raced", 40)?
        .into_iter()
        .enumerate()
        .map(|(index, key)| {
            let (client, other) = (client.clone(), other.clone());
            tokio::spawn(async move {
                let id = acquire(&client, &key, LONG).await?.lock_id;
                let extending = {
                    let other = other.clone();
                    tokio::spawn(async move { Ok(other.extend(&id, ttl(LONG * 10)?).await?) })
                };
                // Half of the extends are under way before the release begins.
                if index % 4 >= 2 {
                    tokio::task::yield_now().await;
                }
                release(&client, &id).await?;
                let next = if index % 2 == 0 {
                    join([extending]).await?;
                    free(&client, &key).await?;
                    acquire(&other, &key, LONG).await?
                } else {
                    let next = acquire(&client, &key, LONG).await?;
                    join([extending]).await?;
                    next
                };
                holds_nothing(&other, &id).await?;
                let info = held(&other, &key, &next.lock_id).await?;
                same(
                    "the next holder's expiry",
                    info.expires_at_ms,
                    next.expires_at_ms,
                )?;
                release(&other, &next.lock_id).await
            })
        });
    join(tasks).await?;
    Ok(Outcome::Passed)
}

/// A grant's TTL counts from a time after its predecessor's end, however long the acquire waited inside the
/// store.
///
/// Proves A6, O1. Contenders ask without pause. The case reads the store's clock before each release; the time of
/// acquisition of the next grant must not be earlier. There are so many contenders, and each holds the key so
/// briefly, that some of them are waiting in the store during a release, even if waits take a fraction of a
/// millisecond. On a slow store the case ends after some seconds.
pub async fn grants_are_timed_after_any_wait<H: Harness>(bench: Bench<H>) -> CaseResult {
    const CONTENDERS: usize = 32;
    // The chance that a store which reads its clock before a short wait passes. It works for some 20 µs a call, so that
    // one of 32 contenders waits for w = 640 µs on average, for times that are distributed exponentially. A grant shows
    // the fault if the contender has waited since before the holder read the clock, which is the holder's own wait ago:
    // with a chance of 1/2. Then the two readings are w apart on average, and a millisecond of the clock ends between
    // them with a chance of w (1 - exp(-1 ms / w)) / 1 ms = 1/2. So each grant after the first one hides the fault with
    // a chance of 3/4, and all of them with less than 2 in a trillion; longer waits show it sooner.
    const GRANTS: u64 = 96;
    const FEWEST: u64 = 2;
    const LONGEST: Duration = Duration::from_secs(3);
    let clients = bench.clients(4).await?;
    let clock = Arc::new(StoreClock::new(&bench).await?);
    let key = bench.key("handed-on")?;
    let granted = Arc::new(AtomicU64::new(0));
    // A time by the store's clock at which the last holder certainly still held the key.
    let held_at_ms = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let end = Instant::now() + LONGEST;
    let tasks = (0..CONTENDERS).map(|index| {
        let (client, key) = (clients[index % clients.len()].clone(), key.clone());
        let (clock, granted) = (Arc::clone(&clock), Arc::clone(&granted));
        let held_at_ms = Arc::clone(&held_at_ms);
        tokio::spawn(async move {
            let until = || if Instant::now() < end { GRANTS } else { FEWEST };
            while granted.load(Ordering::SeqCst) < until() {
                let id = LockId::generate()?;
                let answer = client.acquire(&key, &id, ttl(LONG)?).await?;
                let AcquireResult::Acquired(grant) = answer else {
                    tokio::task::yield_now().await;
                    continue;
                };
                let granted_at_ms = grant.expires_at_ms - ttl(LONG)?.as_millis();
                let earliest = held_at_ms.load(Ordering::SeqCst);
                if granted_at_ms < earliest {
                    // The others would ask for ever.
                    granted.store(GRANTS, Ordering::SeqCst);
                }
                require(
                    granted_at_ms >= earliest,
                    format_args!(
                        "the time a grant counts from: expected {earliest} or later, saw \
                         {granted_at_ms}"
                    ),
                )?;
                granted.fetch_add(1, Ordering::SeqCst);
                held_at_ms.store(clock.now_ms().await?, Ordering::SeqCst);
                release(&client, &id).await?;
            }
            Ok(())
        })
    });
    join(tasks).await?;
    let clock = Arc::into_inner(clock);
    clock
        .ok_or_else(|| Failure::new("a task still reads the clock"))?
        .stop()
        .await?;
    Ok(Outcome::Passed)
}

/// Concurrent operations of all kinds on one key give results, never errors.
///
/// Proves O1, L1, L4. At the end the key is free.
pub async fn mixed_operations_give_no_errors<H: Harness>(bench: Bench<H>) -> CaseResult {
    let clients = bench.clients(4).await?;
    let key = bench.key("mixed")?;
    let tasks = (0..24).map(|task| {
        let (client, key) = (clients[task % clients.len()].clone(), key.clone());
        tokio::spawn(async move {
            for round in 0..12 {
                match (task + round) % 4 {
                    0 => {
                        client.is_locked(&key).await?;
                        client.locks().get_by_key(&key).await?;
                    }
                    1 => {
                        let unknown = LockId::generate()?;
                        let released = client.release(&unknown).await?;
                        same(
                            "the release of an unknown id",
                            released.is_released(),
                            false,
                        )?;
                    }
                    _ => {
                        if let Some(guard) = client.locks().try_lock(&key).ttl(LONG).await? {
                            let renewed = guard.extend(LONG).await?;
                            same("the extend", renewed.expires_at_ms().is_some(), true)?;
                            held(&client, &key, guard.lock_id()).await?;
                            let released = guard.release().await?;
                            same("the release", released, ReleaseResult::Released)?;
                        }
                    }
                }
            }
            Ok(())
        })
    });
    join(tasks).await?;
    free(&clients[0], &key).await?;
    Ok(Outcome::Passed)
}
