//! Taking a lock.

use std::time::Duration;

use syncguard_core::{LockBackend as _, LockId};

use crate::outcome::same;
use crate::steps::{LONG, free, give_back, held, holds_nothing, refused, take, take_as, ttl};
use crate::{Bench, CaseResult, Harness, Outcome};

/// A free key is granted to the id that asked, and everyone sees so.
///
/// Proves A1, L2.
pub async fn a_free_key_is_granted_to_the_given_id<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, id) = (bench.key("free")?, LockId::generate()?);
    free(&client, &key).await?;
    let grant = take_as(&client, &key, &id, LONG).await?;
    for client in [&client, &other] {
        let info = held(client, &key, &id).await?;
        same(
            "the expiry that lookup shows",
            info.expires_at_ms,
            grant.expires_at_ms,
        )?;
        same("the fence that lookup shows", info.fence, grant.fence)?;
    }
    give_back(&client, &id).await?;
    Ok(Outcome::Passed)
}

/// A held key is `Locked` for every other id, on every client.
///
/// Proves A2.
pub async fn a_held_key_is_locked_for_everyone_else<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("held")?;
    let grant = take(&client, &key, LONG).await?;
    for _ in 0..3 {
        refused(&client, &key).await?;
        refused(&other, &key).await?;
    }
    give_back(&client, &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// Contended attempts of any TTL leave the holder's lock exactly as it was.
///
/// Proves A2.
pub async fn contention_changes_nothing<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("contended")?;
    let grant = take(&client, &key, LONG).await?;
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
    give_back(&client, &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// An id that was refused holds nothing, and releasing it does no harm.
///
/// Proves A2, R3.
pub async fn a_loser_leaves_no_trace<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, loser) = (bench.key("contended")?, LockId::generate()?);
    let grant = take(&client, &key, LONG).await?;
    let before = held(&client, &key, &grant.lock_id).await?;
    let attempt = other.acquire(&key, &loser, ttl(LONG)?).await?;
    same("a contended attempt is Locked", attempt.is_locked(), true)?;
    holds_nothing(&other, &loser).await?;
    holds_nothing(&client, &loser).await?;
    let after = held(&client, &key, &grant.lock_id).await?;
    same("the lock after the loser's release", after, before)?;
    give_back(&client, &grant.lock_id).await?;
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
    let grant = take_as(&client, &key, &id, LONG).await?;
    for client in [&client, &other, &client] {
        // Long enough for a clock of milliseconds to move on.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let again = take_as(client, &key, &id, LONG).await?;
        same("the replayed grant", again, grant)?;
    }
    give_back(&client, &id).await?;
    free(&client, &key).await?;
    Ok(Outcome::Passed)
}
