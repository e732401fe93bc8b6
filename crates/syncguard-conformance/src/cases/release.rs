//! Releasing a lock.

use syncguard_core::LockId;
use syncguard_core::backend::Lookup;

use crate::outcome::same;
use crate::steps::{
    LONG, acquire, acquire_as, fence_of, fence_step, free, held, holds_nothing, join, ms,
    next_fence, not_released, refused, release, renew, rise, ttl,
};
use crate::{Bench, CaseResult, Harness, Outcome};

/// A released key is free at once: to reads and to the next holder.
///
/// Proves R1.
pub async fn it_frees_the_key_at_once<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("released")?;
    for _ in 0..5 {
        let grant = acquire(&client, &key, LONG).await?;
        release(&client, &grant.lock_id).await?;
        free(&other, &key).await?;
        let next = acquire(&other, &key, LONG).await?;
        release(&other, &next.lock_id).await?;
    }
    Ok(Outcome::Passed)
}

/// The lock id alone releases, from another client and another task.
///
/// Proves R1.
pub async fn it_works_from_any_client<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("handed-over")?;
    let grant = acquire(&client, &key, LONG).await?;
    let elsewhere = tokio::spawn(async move { release(&other, &grant.lock_id).await });
    join([elsewhere]).await?;
    free(&client, &key).await?;
    Ok(Outcome::Passed)
}

/// Every further release is `NotHeld`, from any client.
///
/// Proves R2.
pub async fn again_it_is_not_held<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("twice")?;
    let grant = acquire(&client, &key, LONG).await?;
    release(&client, &grant.lock_id).await?;
    for client in [&client, &other, &client, &other] {
        not_released(client, &grant.lock_id).await?;
    }
    free(&client, &key).await?;
    Ok(Outcome::Passed)
}

/// Releasing an id that never held anything is `NotHeld`.
///
/// Proves R2.
pub async fn an_unknown_id_is_not_held<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    for _ in 0..3 {
        not_released(&client, &LockId::generate()?).await?;
    }
    Ok(Outcome::Passed)
}

/// A late release by the former holder does not change the successor's lock.
///
/// Proves R3.
pub async fn it_leaves_a_successor_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("succeeded")?;
    let former = acquire(&client, &key, LONG).await?;
    release(&client, &former.lock_id).await?;
    let successor = acquire(&other, &key, LONG).await?;
    let before = held(&other, &key, &successor.lock_id).await?;
    for client in [&client, &other] {
        holds_nothing(client, &former.lock_id).await?;
    }
    let after = held(&client, &key, &successor.lock_id).await?;
    same("the successor's lock", after, before)?;
    release(&other, &successor.lock_id).await?;
    Ok(Outcome::Passed)
}

/// Of concurrent releases of one lock exactly one is `Released`.
///
/// Proves R5, O1.
pub async fn of_concurrent_releases_one_succeeds<H: Harness>(bench: Bench<H>) -> CaseResult {
    let clients = bench.clients(4).await?;
    let key = bench.key("contended-release")?;
    for _ in 0..10 {
        let grant = acquire(&clients[0], &key, LONG).await?;
        let releases = (0..16).map(|index| {
            let client = clients[index % clients.len()].clone();
            tokio::spawn(async move { Ok(client.release(&grant.lock_id).await?.is_released()) })
        });
        let answers = join(releases).await?;
        let released = answers.into_iter().filter(|released| *released).count();
        same("releases that succeeded", released, 1)?;
        free(&clients[0], &key).await?;
    }
    Ok(Outcome::Passed)
}

/// Releasing one lock leaves all others of the client as they are.
///
/// Proves R3, K2.
pub async fn it_leaves_other_locks_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let keys = bench.keys("one-of-many", 5)?;
    let mut locks = Vec::new();
    for key in &keys {
        locks.push((key, acquire(&client, key, LONG).await?.lock_id));
    }
    while let Some((key, id)) = locks.pop() {
        release(&client, &id).await?;
        free(&client, key).await?;
        for (key, id) in &locks {
            held(&client, key, id).await?;
        }
    }
    Ok(Outcome::Passed)
}

/// A released id is forgotten, also once another id holds the key.
///
/// Proves R1, L3, X3.
pub async fn it_forgets_the_id<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("forgotten")?;
    let former = acquire(&client, &key, LONG).await?;
    release(&client, &former.lock_id).await?;
    for client in [&client, &other] {
        let found = client.lookup_raw(Lookup::Id(&former.lock_id)).await?;
        same("lookup of a released id", found, None)?;
    }
    let successor = acquire(&other, &key, LONG).await?;
    for client in [&client, &other] {
        let found = client.lookup_raw(Lookup::Id(&former.lock_id)).await?;
        same("lookup of a released id", found, None)?;
    }
    release(&other, &successor.lock_id).await?;
    let found = client.lookup_raw(Lookup::Id(&successor.lock_id)).await?;
    same("lookup of a released id", found, None)?;
    // An id that moves on to another key leaves the first one behind.
    let elsewhere = bench.key("elsewhere")?;
    acquire_as(&client, &elsewhere, &former.lock_id, LONG).await?;
    held(&other, &elsewhere, &former.lock_id).await?;
    free(&other, &key).await?;
    release(&other, &former.lock_id).await?;
    free(&client, &elsewhere).await?;
    Ok(Outcome::Passed)
}

/// A release leaves the key's fence counter where it was.
///
/// Proves R4, F1. It neither falls nor rises, also if a release finds no lock.
pub async fn it_leaves_the_fence_counter_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let client = bench.client().await?;
    let key = bench.key("counted")?;
    let step = fence_step(&client, &key).await?;
    let first = acquire(&client, &key, LONG).await?;
    release(&client, &first.lock_id).await?;
    for _ in 0..5 {
        not_released(&client, &first.lock_id).await?;
    }
    let second = acquire(&client, &key, LONG).await?;
    not_released(&client, &first.lock_id).await?;
    release(&client, &second.lock_id).await?;
    let third = next_fence(&client, &key).await?;
    let rises = [
        rise(fence_of(&first), fence_of(&second))?,
        rise(fence_of(&second), third)?,
    ];
    same("rises of the fence across releases", rises, [step, step])?;
    Ok(Outcome::Passed)
}

/// A release in flight while the key gets a new holder never frees the new holder's lock.
///
/// Proves R3, R5. A release that checks the owner in an earlier step of its own would free it.
pub async fn releases_in_flight_never_free_a_successor<H: Harness>(bench: Bench<H>) -> CaseResult {
    const RELEASES: usize = 4;
    let clients = bench.clients(4).await?;
    let rounds = bench.keys("passed-on", 40)?.into_iter().map(|key| {
        let clients = clients.clone();
        tokio::spawn(async move {
            let former = acquire(&clients[0], &key, LONG).await?.lock_id;
            let releases = (0..RELEASES).map(|index| {
                let client = clients[index % clients.len()].clone();
                tokio::spawn(async move { Ok(client.release(&former).await?.is_released()) })
            });
            let releases: Vec<_> = releases.collect();
            let (successor, lasting) = (LockId::generate()?, ttl(LONG)?);
            while clients[1]
                .acquire(&key, &successor, lasting)
                .await?
                .is_locked()
            {
                tokio::task::yield_now().await;
            }
            let released = join(releases).await?;
            let released = released.into_iter().filter(|released| *released).count();
            same("releases that succeeded", released, 1)?;
            held(&clients[2], &key, &successor).await?;
            release(&clients[3], &successor).await
        })
    });
    join(rounds).await?;
    Ok(Outcome::Passed)
}

/// A lock outlives the client that acquired it: others see it, extend it and release it by its id.
///
/// Proves R1, X5, E1. No connection keeps it.
pub async fn a_lock_outlives_its_client<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (gone, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("left")?;
    let grant = acquire(&gone, &key, LONG).await?;
    drop(gone);
    tokio::time::sleep(ms(200)).await;
    held(&other, &key, &grant.lock_id).await?;
    refused(&other, &key).await?;
    renew(&other, &grant.lock_id, LONG).await?;
    release(&bench.client().await?, &grant.lock_id).await?;
    free(&other, &key).await?;
    Ok(Outcome::Passed)
}

/// A section whose lock was removed returns its value, and the receipt reports the loss.
///
/// Proves R2. `Receipt::overran`, whether the section succeeds or fails.
pub async fn a_section_is_told_that_its_lock_was_gone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("section")?;
    for value in [Ok(7), Err("the section's own error")] {
        let other = other.clone();
        let receipt = client
            .locks()
            .lock(&key)
            .run(async |lease| {
                let _ = other.release(lease.lock_id()).await;
                value
            })
            .await?;
        same("overran", receipt.overran(), true)?;
        same("what the section returned", receipt.into_value(), value)?;
    }
    let receipt = client.locks().lock(&key).run(async |_| 7).await?;
    same(
        "overran, of a section that held to the end",
        receipt.overran(),
        false,
    )?;
    same(
        "the error of a release that succeeded",
        receipt.release_error().is_some(),
        false,
    )?;
    free(&other, &key).await?;
    Ok(Outcome::Passed)
}
