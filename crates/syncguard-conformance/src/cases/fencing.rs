//! Fences. On a backend without them every case here is skipped.

use syncguard_core::backend::{FENCE_MAX, FENCE_WARN, FenceToken as _, Lookup};
use syncguard_core::{ErrorCode, Fence, LockId};

use crate::clock::{acquire_briefly, dead_at};
use crate::outcome::same;
use crate::steps::{
    LONG, acquire, acquire_as, fails_with, fence_of, fence_step, free, held, holds_nothing, ms,
    next_fence, refused, release, renew, rise, ttl,
};
use crate::view::View;
use crate::{Bench, CaseResult, Harness, Outcome};

/// Fences strictly increase from grant to grant, whichever client asks.
///
/// Proves F1. Every lookup of a grant shows the same fence.
pub async fn fences_strictly_increase<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let clients = bench.clients(3).await?;
    let key = bench.key("counted")?;
    let mut fence = None;
    for round in 0..20 {
        let client = &clients[round % clients.len()];
        let grant = acquire(client, &key, LONG).await?;
        rise(fence, fence_of(&grant))?;
        fence = fence_of(&grant);
        let info = held(&clients[0], &key, &grant.lock_id).await?;
        same("the fence at the store", info.fence, grant.fence)?;
        release(client, &grant.lock_id).await?;
    }
    Ok(Outcome::Passed)
}

/// Every key has its own counter: grants of other keys do not move its fences.
///
/// Proves K3.
pub async fn every_key_counts_for_itself<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let client = bench.client().await?;
    let (key, others) = (bench.key("counted")?, bench.keys("others", 10)?);
    let step = fence_step(&client, &key).await?;
    let before = next_fence(&client, &key).await?;
    let mut first = Vec::new();
    for other in &others {
        first.push(next_fence(&client, other).await?);
    }
    let after = next_fence(&client, &key).await?;
    let rise = rise(before, after)?;
    same(
        "rise of a key's fence across grants of other keys",
        rise,
        step,
    )?;
    first.dedup();
    same("distinct first fences of new keys", first.len(), 1)?;
    Ok(Outcome::Passed)
}

/// Fences continue to increase after the clients that acquired earlier ones are gone.
///
/// Proves F2. All clients end, closed or not, and new ones connect.
pub async fn fences_outlive_clients<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let key = bench.key("counted")?;
    let mut fence = None;
    for closes in [false, true, false] {
        let client = bench.client().await?;
        for _ in 0..2 {
            let next = next_fence(&client, &key).await?;
            rise(fence, next)?;
            fence = next;
        }
        if closes {
            client.close().await?;
        }
        drop(client);
    }
    Ok(Outcome::Passed)
}

/// Fences continue to increase across expiries.
///
/// Proves F1, F2, R4, X4. The removal of a dead lock keeps the counter, and so does a release or an extend that finds
/// the lock dead.
pub async fn fences_rise_across_expiries<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("expiring")?;
    let mut fence = next_fence(&client, &key).await?;
    for client in [&client, &other] {
        let lease = acquire_briefly(client, &key).await?;
        rise(fence, fence_of(&lease.grant))?;
        fence = fence_of(&lease.grant);
        lease.end().await;
        free(client, &key).await?;
        holds_nothing(client, &lease.grant.lock_id).await?;
    }
    rise(fence, next_fence(&client, &key).await?)?;
    Ok(Outcome::Passed)
}

/// Contended attempts use up no fence of the key.
///
/// Proves F4, A2. Replays by the holder use none either. The lock is extended or not.
pub async fn contention_uses_no_fence<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, id) = (bench.key("contended")?, LockId::generate()?);
    let step = fence_step(&client, &key).await?;
    let grant = acquire_as(&client, &key, &id, LONG).await?;
    for _ in 0..10 {
        refused(&client, &key).await?;
        refused(&other, &key).await?;
        acquire_as(&other, &key, &id, LONG).await?;
        renew(&other, &id, LONG).await?;
    }
    let info = held(&other, &key, &id).await?;
    same(
        "the holder's fence after contention",
        info.fence,
        grant.fence,
    )?;
    release(&client, &id).await?;
    let next = next_fence(&client, &key).await?;
    same(
        "rise of the fence across contention",
        rise(fence_of(&grant), next)?,
        step,
    )?;
    Ok(Outcome::Passed)
}

/// Fences are exact up to the greatest, which is granted.
///
/// Proves F1, F3. Stores that count in floating point lose digits here.
pub async fn great_fences_are_exact<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let client = bench.client().await?;
    for (index, counter) in [
        u64::from(u32::MAX) - 1,
        FENCE_WARN - 1,
        123_456_789_012_345,
        FENCE_MAX - 3,
    ]
    .into_iter()
    .enumerate()
    {
        let key = bench.key(&format!("great:{index}"))?;
        if !bench.harness().set_fence_counter(&key, counter).await? {
            return Ok(Outcome::NO_COUNTER);
        }
        for fence in counter + 1..=counter + 3 {
            let grant = acquire(&client, &key, LONG).await?;
            same(
                "a great fence",
                grant.fence.fence(),
                Some(Fence::from_counter(fence)?),
            )?;
            let info = held(&client, &key, &grant.lock_id).await?;
            same("a great fence at the store", info.fence, grant.fence)?;
            release(&client, &grant.lock_id).await?;
        }
    }
    Ok(Outcome::Passed)
}

/// Past the greatest fence an acquire is `Internal` and leaves no lock.
///
/// Proves F3, A5, G3. On every further attempt too, also with the same id. The holder of the last fence is granted the
/// same again.
pub async fn past_the_greatest_fence_nothing_is_granted<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, id) = (bench.key("exhausted")?, LockId::generate()?);
    if !bench
        .harness()
        .set_fence_counter(&key, FENCE_MAX - 1)
        .await?
    {
        return Ok(Outcome::NO_COUNTER);
    }
    let last = acquire(&client, &key, LONG).await?;
    same("the last fence", fence_of(&last), Some(FENCE_MAX))?;
    refused(&other, &key).await?;
    let again = acquire_as(&other, &key, &last.lock_id, LONG).await?;
    same("the replayed grant", &again, &last)?;
    release(&client, &last.lock_id).await?;
    let view = View::of(&bench, "exhausted").await?;
    for client in [&client, &other, &client] {
        let attempt = client.acquire(&key, &id, ttl(LONG)?);
        fails_with(
            "acquire past the greatest fence",
            ErrorCode::Internal,
            attempt,
        )
        .await?;
        if let Some(view) = &view {
            view.keeps("a key whose fences are exhausted", 0, 1).await?;
        }
        free(client, &key).await?;
        same(
            "lookup of its id",
            client.lookup_raw(Lookup::Id(&id)).await?,
            None,
        )?;
        holds_nothing(client, &id).await?;
    }
    let elsewhere = bench.key("fresh")?;
    acquire_as(&client, &elsewhere, &id, LONG).await?;
    release(&client, &id).await?;
    Ok(Outcome::Passed)
}

/// Past the greatest fence, the acquire of an expired lock fails too: its fence is not granted again.
///
/// Proves F3, F1. Nobody is granted it, the former holder included. The greatest fence itself is granted for an expired
/// lock.
pub async fn past_the_greatest_fence_no_expired_lock_is_taken_over<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, id) = (bench.key("exhausted")?, LockId::generate()?);
    let (harness, nearly) = (bench.harness(), bench.key("nearly-exhausted")?);
    if !harness.set_fence_counter(&key, FENCE_MAX - 1).await? {
        return Ok(Outcome::NO_COUNTER);
    }
    harness.set_fence_counter(&nearly, FENCE_MAX - 2).await?;
    let last = acquire(&client, &key, LONG).await?;
    same("the last fence", fence_of(&last), Some(FENCE_MAX))?;
    let last_but_one = acquire(&client, &nearly, LONG).await?;
    for grant in [&last, &last_but_one] {
        renew(&client, &grant.lock_id, ms(50)).await?;
    }
    tokio::time::sleep_until(dead_at(ms(50)).into()).await;
    harness.set_fence_counter(&nearly, FENCE_MAX - 1).await?;
    let successor = acquire(&other, &nearly, LONG).await?;
    same("the last fence", fence_of(&successor), Some(FENCE_MAX))?;
    release(&other, &successor.lock_id).await?;
    for id in [&id, &last.lock_id, &id] {
        let attempt = other.acquire(&key, id, ttl(LONG)?);
        let what = "acquire past the greatest fence";
        fails_with(what, ErrorCode::Internal, attempt).await?;
        free(&client, &key).await?;
        holds_nothing(&client, id).await?;
    }
    Ok(Outcome::Passed)
}
