//! Giving a lock back.

use futures_util::future::join_all;
use syncguard_core::{LockBackend as _, LockId};

use crate::outcome::same;
use crate::steps::{LONG, free, give_back, held, holds_nothing, not_released, take};
use crate::{Bench, CaseResult, Failure, Harness, Outcome};

/// A released key is free at once: to reads and to the next holder.
///
/// Proves R1.
pub async fn it_frees_the_key_at_once<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("released")?;
    for _ in 0..5 {
        let grant = take(&client, &key, LONG).await?;
        give_back(&client, &grant.lock_id).await?;
        free(&other, &key).await?;
        let next = take(&other, &key, LONG).await?;
        give_back(&other, &next.lock_id).await?;
    }
    Ok(Outcome::Passed)
}

/// The lock id alone releases, from another client and another task.
///
/// Proves R1.
pub async fn it_works_from_any_client<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("handed-over")?;
    let grant = take(&client, &key, LONG).await?;
    let elsewhere = tokio::spawn(async move { give_back(&other, &grant.lock_id).await });
    elsewhere
        .await
        .map_err(|error| Failure::new(format_args!("the releasing task failed: {error}")))??;
    free(&client, &key).await?;
    Ok(Outcome::Passed)
}

/// A second release is `NotHeld`, however often and wherever it is asked.
///
/// Proves R2.
pub async fn again_it_is_not_held<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("twice")?;
    let grant = take(&client, &key, LONG).await?;
    give_back(&client, &grant.lock_id).await?;
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

/// A late release by the former holder does not touch the successor's lock.
///
/// Proves R3.
pub async fn it_leaves_a_successor_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("succeeded")?;
    let former = take(&client, &key, LONG).await?;
    give_back(&client, &former.lock_id).await?;
    let successor = take(&other, &key, LONG).await?;
    let before = held(&other, &key, &successor.lock_id).await?;
    for client in [&client, &other] {
        holds_nothing(client, &former.lock_id).await?;
    }
    let after = held(&client, &key, &successor.lock_id).await?;
    same("the successor's lock", after, before)?;
    give_back(&other, &successor.lock_id).await?;
    Ok(Outcome::Passed)
}

/// Of concurrent releases of one lock exactly one is `Released`.
///
/// Proves R5, O1.
pub async fn of_concurrent_releases_one_succeeds<H: Harness>(bench: Bench<H>) -> CaseResult {
    let clients = bench.clients(4).await?;
    let key = bench.key("contended-release")?;
    for _ in 0..10 {
        let grant = take(&clients[0], &key, LONG).await?;
        let releases = (0..16).map(|index| {
            let client = clients[index % clients.len()].clone();
            tokio::spawn(async move { client.release(&grant.lock_id).await })
        });
        let mut released = 0;
        for answer in join_all(releases).await {
            let answer =
                answer.map_err(|error| Failure::new(format_args!("a task: {error}")))??;
            released += usize::from(answer.is_released());
        }
        same("releases that succeeded", released, 1)?;
        free(&clients[0], &key).await?;
    }
    Ok(Outcome::Passed)
}
