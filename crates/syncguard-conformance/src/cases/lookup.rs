//! Asking about locks.

use syncguard_core::backend::Lookup;
use syncguard_core::{LockId, hash_key};

use crate::clock::acquire_briefly;
use crate::outcome::{require, same};
use crate::steps::{
    LONG, acquire, fence_of, fence_step, free, held, ms, next_fence, release, rise, ttl,
};
use crate::{Bench, CaseResult, Failure, Harness, Outcome};

/// `is_locked` is true from the grant to the release, for every client, of this key alone.
///
/// Proves L1.
pub async fn is_locked_follows_the_lock<H: Harness>(bench: Bench<H>) -> CaseResult {
    let clients = bench.clients(2).await?;
    let (key, beside) = (bench.key("followed")?, bench.key("followed:beside")?);
    for round in 0..4 {
        for client in &clients {
            same(
                "is_locked before the grant",
                client.is_locked(&key).await?,
                false,
            )?;
        }
        let grant = acquire(&clients[round % 2], &key, LONG).await?;
        for client in &clients {
            same(
                "is_locked of a held key",
                client.is_locked(&key).await?,
                true,
            )?;
            same(
                "is_locked of another key",
                client.is_locked(&beside).await?,
                false,
            )?;
        }
        release(&clients[(round + 1) % 2], &grant.lock_id).await?;
    }
    same(
        "is_locked after the release",
        clients[0].is_locked(&key).await?,
        false,
    )?;
    Ok(Outcome::Passed)
}

/// Lookup by key and by id give one answer: that of the grant.
///
/// Proves L2, A1. Both show expiry, fence, key and holder, to every client.
pub async fn it_shows_the_grant_by_key_and_by_id<H: Harness>(bench: Bench<H>) -> CaseResult {
    let clients = bench.clients(2).await?;
    let key = bench.key("looked-up")?;
    let grant = acquire(&clients[0], &key, LONG).await?;
    for client in &clients {
        let info = held(client, &key, &grant.lock_id).await?;
        same("the expiry", info.expires_at_ms, grant.expires_at_ms)?;
        same("the fence", info.fence, grant.fence)?;
        let acquired_at_ms = grant.expires_at_ms - ttl(LONG)?.as_millis();
        same(
            "the time of acquisition",
            info.acquired_at_ms,
            acquired_at_ms,
        )?;
    }
    release(&clients[0], &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// Among many locks, lookup finds the one that was asked for.
///
/// Proves L2.
pub async fn it_finds_one_among_many<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let mut locks = Vec::new();
    for key in bench.keys("many", 20)? {
        let grant = acquire(&client, &key, LONG).await?;
        locks.push((key, grant));
    }
    for (key, grant) in &locks {
        let info = held(&client, key, &grant.lock_id).await?;
        same("the expiry", info.expires_at_ms, grant.expires_at_ms)?;
    }
    for (_, grant) in &locks {
        release(&client, &grant.lock_id).await?;
    }
    Ok(Outcome::Passed)
}

/// Lookup of what does not exist is `None`: unknown, released, refused.
///
/// Proves L3.
pub async fn what_is_absent_is_none<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let (key, loser) = (bench.key("held")?, LockId::generate()?);
    free(&client, &bench.key("never")?).await?;
    let unknown = LockId::generate()?;
    same(
        "lookup of an unknown id",
        client.lookup_raw(Lookup::Id(&unknown)).await?,
        None,
    )?;
    let grant = acquire(&client, &key, LONG).await?;
    let attempt = client.acquire(&key, &loser, ttl(LONG)?).await?;
    same("a contended attempt is Locked", attempt.is_locked(), true)?;
    same(
        "lookup of a refused id",
        client.lookup_raw(Lookup::Id(&loser)).await?,
        None,
    )?;
    release(&client, &grant.lock_id).await?;
    free(&client, &key).await?;
    let released = client.lookup_raw(Lookup::Id(&grant.lock_id)).await?;
    same("lookup of a released id", released, None)?;
    Ok(Outcome::Passed)
}

/// Lookup by id shows that id's lock, never the lock of a key's next holder.
///
/// Proves L2, L3.
pub async fn by_id_it_shows_the_ids_own_lock<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("passed-on")?;
    let mut former = Vec::new();
    for _ in 0..3 {
        let grant = acquire(&client, &key, LONG).await?;
        for id in &former {
            for client in [&client, &other] {
                let found = client.lookup_raw(Lookup::Id(id)).await?;
                same("lookup of a former holder's id", found, None)?;
                same(
                    "owns of a former holder's id",
                    client.locks().owns(id).await?,
                    false,
                )?;
            }
        }
        held(&other, &key, &grant.lock_id).await?;
        release(&client, &grant.lock_id).await?;
        former.push(grant.lock_id);
    }
    Ok(Outcome::Passed)
}

/// `owns` is true from the grant to the release.
///
/// Proves L2, L3.
pub async fn owns_follows_the_lock<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let guard = client
        .locks()
        .try_lock(&bench.key("owned")?)
        .ttl(LONG)
        .await?;
    let guard = guard.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
    let id = *guard.lock_id();
    for client in [&client, &other] {
        same("owns while held", client.locks().owns(id).await?, true)?;
        same(
            "owns of another id",
            client.locks().owns(LockId::generate()?).await?,
            false,
        )?;
    }
    same("the release", guard.release().await?.is_released(), true)?;
    same(
        "owns after the release",
        other.locks().owns(id).await?,
        false,
    )?;
    Ok(Outcome::Passed)
}

/// Reads move no expiry, use no fence and hold nothing.
///
/// Proves L4. Many reads, of held keys and of free ones.
pub async fn reads_change_nothing<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (key, idle) = (bench.key("read")?, bench.key("idle")?);
    let step = fence_step(&client, &key).await?;
    let idle_before = next_fence(&client, &idle).await?;
    let before = next_fence(&client, &key).await?;
    let grant = acquire(&client, &key, LONG).await?;
    let expected = held(&client, &key, &grant.lock_id).await?;
    for _ in 0..10 {
        for client in [&client, &other] {
            client.is_locked(&key).await?;
            client.locks().get_by_key(&key).await?;
            client.locks().get_by_id(grant.lock_id).await?;
            client.is_locked(&idle).await?;
            client.locks().get_by_key(&idle).await?;
            client.locks().get_by_id(LockId::generate()?).await?;
        }
        tokio::time::sleep(ms(2)).await;
    }
    let after = held(&client, &key, &grant.lock_id).await?;
    same("the lock after many reads", after, expected)?;
    free(&client, &idle).await?;
    same(
        "rise up to the grant",
        rise(before, fence_of(&grant))?,
        step,
    )?;
    release(&client, &grant.lock_id).await?;
    for (key, before) in [(&key, fence_of(&grant)), (&idle, idle_before)] {
        let after = next_fence(&client, key).await?;
        same("rise of the fence across reads", rise(before, after)?, step)?;
    }
    Ok(Outcome::Passed)
}

/// Lookup shows the hashes of key and id, and otherwise what the raw lookup shows.
///
/// Proves L5. Neither its `Debug` nor its JSON contains an identifier.
pub async fn it_shows_hashes<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let key = bench.key("hashed:caf\u{e9}")?;
    let grant = acquire(&client, &key, LONG).await?;
    let raw = held(&client, &key, &grant.lock_id).await?;
    let locks = client.locks();
    for lookup in [locks.get_by_key(&key), locks.get_by_id(grant.lock_id)] {
        let info = lookup.await?;
        let info = info.ok_or_else(|| Failure::new("lookup: expected the lock, saw None"))?;
        same("the hash of the key", info.key_hash, hash_key(key.as_str()))?;
        same(
            "the hash of the id",
            info.lock_id_hash,
            hash_key(grant.lock_id.as_str()),
        )?;
        same("the rest", &info, &raw.sanitized())?;
        let json = serde_json::to_string(&info);
        let json = json.map_err(|error| Failure::new(format_args!("JSON: {error}")))?;
        let debug = format!("{info:?}");
        for text in [json, debug] {
            require(
                !text.contains(bench.namespace()) && !text.contains(grant.lock_id.as_str()),
                "a lookup's text: expected hashes, saw a raw identifier",
            )?;
        }
    }
    release(&client, &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// The removal of dead locks deletes no live lock and no fence counter.
///
/// Proves F2, L4, E1. The case reads locks that died long ago, which an optional clean-up would delete.
pub async fn clean_up_spares_live_locks_and_fences<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (dead, live) = (bench.keys("dead", 3)?, bench.keys("live", 3)?);
    let mut steps = Vec::new();
    for key in &dead {
        steps.push(fence_step(&client, key).await?);
    }
    let mut leases = Vec::new();
    for key in &dead {
        leases.push(acquire_briefly(&client, key).await?);
    }
    let mut holding = Vec::new();
    for key in &live {
        let id = acquire(&client, key, LONG).await?.lock_id;
        holding.push((key, id, held(&client, key, &id).await?));
    }
    for lease in &leases {
        lease.end().await;
    }
    // Longer than any clean-up's guard: 2 s by the store's time, 1 s + tolerance by a client's.
    tokio::time::sleep(ms(1_500)).await;
    for _ in 0..5 {
        for (key, lease) in dead.iter().zip(&leases) {
            for client in [&client, &other] {
                free(client, key).await?;
                let found = client.lookup_raw(Lookup::Id(&lease.grant.lock_id)).await?;
                same("lookup of an expired id", found, None)?;
            }
        }
        for (key, id, before) in &holding {
            let after = held(&other, key, id).await?;
            same("a live lock beside dead ones", &after, before)?;
        }
        tokio::time::sleep(ms(20)).await;
    }
    for ((key, lease), step) in dead.iter().zip(&leases).zip(steps) {
        let next = next_fence(&other, key).await?;
        same(
            "rise of the fence across clean-up",
            rise(fence_of(&lease.grant), next)?,
            step,
        )?;
    }
    for (_, id, _) in holding {
        release(&client, &id).await?;
    }
    Ok(Outcome::Passed)
}
