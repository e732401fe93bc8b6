//! Keys and lock ids.

use std::collections::HashSet;
use std::time::Instant;

use syncguard_core::backend::{
    AcquireResult, FenceToken, Grant, LOCK_ID_LENGTH, Lookup, MAX_KEY_LENGTH_BYTES,
};
use syncguard_core::{ErrorCode, Fence, LockError, LockId, LockKey};

use crate::clock::dead_at;
use crate::keyspace::{NEAR, SPELLINGS, do_not_contend, filled, own_fences, wide_keys, works};
use crate::outcome::{require, same};
use crate::steps::{
    LONG, SOON, acquire, acquire_as, expiring, fails_with, fence_in, fence_of, free, held,
    holds_nothing, join, ms, next_fence, refused, release, renew, rise, ttl,
};
use crate::{Bench, CaseResult, Failure, Harness, Outcome};

/// Canonically equivalent spellings of a key are one lock.
///
/// Proves K1. Every spelling reaches the same lock, the same state and the same fences.
pub async fn canonical_spellings_are_one_lock<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    for (group, spellings) in SPELLINGS.iter().enumerate() {
        let texts: Vec<_> = spellings
            .iter()
            .map(|spelling| format!("{}:{group}:{spelling}", bench.namespace()))
            .collect();
        let mut fence = None;
        for taken in &texts {
            let guard = client.locks().try_lock(taken).ttl(LONG).await?;
            let guard = guard.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
            for asked in &texts {
                let contender = other.locks().try_lock(asked).ttl(LONG).await?;
                require(
                    contender.is_none(),
                    "another spelling of a held key: expected it refused, saw it granted",
                )?;
                require(
                    other.locks().is_locked(asked).await?,
                    "another spelling of a held key: expected is_locked true, saw false",
                )?;
                let info = other.locks().get_by_key_raw(asked).await?;
                same(
                    "the holder by another spelling",
                    info.map(|info| info.lock_id),
                    Some(*guard.lock_id()),
                )?;
            }
            let id = *guard.lock_id();
            let _ = guard.detach();
            let info = held(&client, &LockKey::new(taken)?, &id).await?;
            let seen = info.fence.fence().map(Fence::get);
            rise(fence, seen)?;
            fence = seen;
            release(&client, &id).await?;
        }
    }
    Ok(Outcome::Passed)
}

/// Every operation works on a key of any characters.
///
/// Proves K2, A1, R1, X1, L2. Colons, braces, slashes, quotes, controls, emoji, combining marks:
/// acquire, both lookups, extend, and a release that succeeds.
pub async fn any_characters_work_in_every_operation<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let tasks = wide_keys(&bench)?.into_iter().map(|key| {
        let (client, other) = (client.clone(), other.clone());
        tokio::spawn(async move {
            let worked = works(&client, &other, &key).await;
            worked
                .map_err(|failure| Failure::new(format_args!("key {:?}: {failure}", key.as_str())))
        })
    });
    join(tasks).await?;
    Ok(Outcome::Passed)
}

/// Keys of any characters can all be held at once: none contends with another.
///
/// Proves K2.
pub async fn any_characters_never_contend<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    do_not_contend(&client, &wide_keys(&bench)?).await?;
    Ok(Outcome::Passed)
}

/// Keys that differ by a space, case, accent, width or escape do not contend.
///
/// Proves K2. Nor do two numbers that differ by a leading zero.
pub async fn near_identical_keys_do_not_contend<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let space = bench.namespace();
    // A number that no other case uses.
    let digits = space.bytes().map(|byte| char::from(b'0' + byte % 10));
    let number: String = digits.collect();
    let mut groups = vec![vec![number.clone(), format!("0{number}")]];
    for (index, texts) in NEAR.iter().enumerate() {
        // The difference at the end of a key, and at its start.
        let at_end = texts.iter().map(|text| format!("{space}:{index}:{text}"));
        let at_start = texts.iter().map(|text| format!("{text}|{space}:{index}"));
        groups.extend([at_end.collect(), at_start.collect()]);
    }
    let mut tasks = Vec::new();
    for texts in groups {
        let keys: Result<Vec<_>, _> = texts.iter().map(|text| LockKey::new(text)).collect();
        let (keys, client) = (keys?, client.clone());
        tasks.push(tokio::spawn(
            async move { do_not_contend(&client, &keys).await },
        ));
    }
    join(tasks).await?;
    Ok(Outcome::Passed)
}

/// Grants of a near-identical key do not move a key's fences.
///
/// Proves K3.
pub async fn near_identical_keys_have_their_own_fences<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let client = bench.client().await?;
    let mut tasks = Vec::new();
    for (index, texts) in NEAR.iter().enumerate() {
        let key = |text: &&str| bench.key(&format!("{index}:{text}"));
        let keys: Result<Vec<_>, _> = texts.iter().map(key).collect();
        let (keys, client) = (keys?, client.clone());
        tasks.push(tokio::spawn(
            async move { own_fences(&client, &keys).await },
        ));
    }
    join(tasks).await?;
    Ok(Outcome::Passed)
}

/// The keys `.` and `..`, which name folders elsewhere, are keys like any other.
///
/// Proves K2. These two cannot have a namespace, so other runs may hold them for a moment.
pub async fn dots_alone_are_keys<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    for text in [".", ".."] {
        let (key, id) = (LockKey::new(text)?, LockId::generate()?);
        let started = Instant::now();
        while client
            .acquire(&key, &id, ttl(ms(20_000))?)
            .await?
            .is_locked()
        {
            require(
                started.elapsed() < SOON,
                format_args!("the key {text:?}: expected a grant, saw it Locked for {SOON:?}"),
            )?;
            tokio::time::sleep(ms(20)).await;
        }
        held(&other, &key, &id).await?;
        refused(&other, &key).await?;
        renew(&other, &id, ms(20_000)).await?;
        release(&client, &id).await?;
        holds_nothing(&other, &id).await?;
    }
    Ok(Outcome::Passed)
}

/// A key that looks like an internal name of the store is refused, or does not touch what that name stores.
///
/// Proves K2, K3. A refusal is `InvalidArgument`. The key that it imitates is not affected.
pub async fn keys_that_imitate_internal_names_do_no_harm<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    let client = bench.client().await?;
    let key = bench.key("bar")?;
    let grant = acquire(&client, &key, LONG).await?;
    let before = held(&client, &key, &grant.lock_id).await?;
    let (key_text, id_text) = (key.as_str(), grant.lock_id.as_str());
    let mut fences = None;
    for imitation in [
        format!("id:{id_text}"),
        id_text.to_owned(),
        format!("fence:{key_text}"),
        format!("fence:syncguard:{key_text}"),
        format!("syncguard:{key_text}"),
        format!("syncguard:id:{id_text}"),
        format!("locks/{key_text}"),
        format!("{key_text}:{id_text}"),
    ] {
        let (imitation, id) = (LockKey::new(&imitation)?, LockId::generate()?);
        match client.acquire(&imitation, &id, ttl(LONG)?).await {
            Ok(answer) => {
                require(
                    !answer.is_locked(),
                    "a key like an internal name: expected a grant, saw Locked",
                )?;
                held(&client, &imitation, &id).await?;
                let during = held(&client, &key, &grant.lock_id).await?;
                same("the lock whose name was imitated", &during, &before)?;
                release(&client, &id).await?;
            }
            Err(error) => same(
                "the refusal of a key like an internal name",
                error.code(),
                ErrorCode::InvalidArgument,
            )?,
        }
        let after = held(&client, &key, &grant.lock_id).await?;
        same("the lock whose name was imitated", &after, &before)?;
    }
    release(&client, &grant.lock_id).await?;
    for _ in 0..2 {
        let next = next_fence(&client, &key).await?;
        rise(fences, next)?;
        fences = next;
    }
    Ok(Outcome::Passed)
}

/// Keys of the greatest length work through every operation.
///
/// Proves K4, A1, R1, X1, L2. Keys of one-byte characters, of four-byte characters, and of characters that stores
/// escape.
pub async fn the_longest_keys_work<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    for filling in ["x", "/", "\"", "\u{1f512}", "\u{e9}"] {
        works(&client, &other, &filled(&bench, filling, "")?).await?;
    }
    Ok(Outcome::Passed)
}

/// Long keys that differ in their last or first character alone do not contend.
///
/// Proves K4, K2. A key is not shortened by cutting it.
pub async fn long_keys_are_not_cut<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    for filling in ["x", "/", "\u{1f512}"] {
        let mut keys = Vec::new();
        for end in ["a", "b", "ab", "A"] {
            keys.push(filled(&bench, filling, end)?);
        }
        // Each is a prefix of the next, with lengths on both sides of the limits of stores.
        for length in [63, 64, 127, 128, 200, 254, 255, 256, 400, 500, 511] {
            let whole = filled(&bench, filling, "")?;
            let text = whole.as_str();
            let cut = (0..=length).rfind(|end| text.is_char_boundary(*end));
            keys.push(LockKey::new(&text[..cut.unwrap_or_default()])?);
        }
        let distinct: HashSet<_> = keys.iter().cloned().collect();
        do_not_contend(&client, &distinct.into_iter().collect::<Vec<_>>()).await?;
    }
    Ok(Outcome::Passed)
}

/// Long keys that differ in their last character alone have fences of their own.
///
/// Proves K4, K3.
pub async fn long_keys_have_their_own_fences<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let client = bench.client().await?;
    for filling in ["x", "/"] {
        let (one, two) = (filled(&bench, filling, "a")?, filled(&bench, filling, "b")?);
        own_fences(&client, &[one, two]).await?;
    }
    Ok(Outcome::Passed)
}

/// A bad key is `InvalidArgument` to every operation.
///
/// Proves K5. Empty keys, keys with U+0000 and keys of more than 512 bytes. Valid keys that resemble them stay free.
pub async fn bad_keys_are_refused<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let space = bench.namespace();
    let bad = [
        String::new(),
        format!("{space}\0b"),
        format!("\0{space}"),
        format!("{space}\0"),
        format!("{space}{}", "x".repeat(MAX_KEY_LENGTH_BYTES)),
        format!("{space}{}", "\u{e9}".repeat(MAX_KEY_LENGTH_BYTES / 2)),
        format!("{space}{}", "e\u{301}".repeat(MAX_KEY_LENGTH_BYTES * 4)),
    ];
    for key in &bad {
        let code = ErrorCode::InvalidArgument;
        fails_with("acquire", code, client.locks().try_lock(key).ttl(LONG)).await?;
        fails_with("is_locked", code, client.locks().is_locked(key)).await?;
        fails_with("get_by_key", code, client.locks().get_by_key(key)).await?;
        fails_with("get_by_key_raw", code, client.locks().get_by_key_raw(key)).await?;
        let section = client.locks().lock(key).run(async |_| ());
        fails_with("lock", code, section).await?;
    }
    for resembled in [space.to_owned(), format!("{space}b")] {
        free(&client, &LockKey::new(&resembled)?).await?;
    }
    // Too long as it is written, but not in NFC.
    let shrinks = format!("{space}{}", "e\u{301}".repeat(240));
    let grant = acquire(&client, &LockKey::new(&shrinks)?, LONG).await?;
    release(&client, &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// A malformed lock id is `InvalidArgument` to every operation.
///
/// Proves I1. Among them the id of a live lock with something added, removed or replaced; that
/// lock stays as it is.
pub async fn malformed_ids_are_refused<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let key = bench.key("held")?;
    let grant = acquire(&client, &key, LONG).await?;
    let before = held(&client, &key, &grant.lock_id).await?;
    let id = grant.lock_id.as_str();
    let malformed = [
        String::new(),
        id[1..].to_owned(),
        format!("{id}="),
        format!("{id} "),
        format!(" {id}"),
        format!("{id}\n"),
        format!("{}+", &id[1..]),
        format!("{}/", &id[1..]),
        format!("{}*", &id[1..]),
        format!("{}\0", &id[1..]),
        format!("{}\u{e9}", &id[2..]),
        "*".repeat(LOCK_ID_LENGTH),
        "x".repeat(10_000),
    ];
    for id in &malformed {
        let code = ErrorCode::InvalidArgument;
        fails_with("release", code, client.locks().release(id)).await?;
        fails_with("extend", code, client.locks().extend(id, LONG)).await?;
        fails_with("get_by_id", code, client.locks().get_by_id(id)).await?;
        fails_with("get_by_id_raw", code, client.locks().get_by_id_raw(id)).await?;
        fails_with("owns", code, client.locks().owns(id)).await?;
    }
    let after = held(&client, &key, &grant.lock_id).await?;
    same("a lock whose id was misspelt", after, before)?;
    release(&client, &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// Ids that differ in the case of one letter, or in a hyphen for an underscore, are different holders.
///
/// Proves R3, X3, L2. Ids of hyphens and underscores alone work as well.
pub async fn ids_are_taken_to_the_letter<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let space = bench.namespace();
    let id = |end: &str| LockId::parse(&format!("{space}-_-_-_-_{end}"));
    let (one, two) = (bench.key("one")?, bench.key("two")?);
    for (end, similar) in [("aw", "aW"), ("-w", "_w")] {
        let (first, second) = (id(end)?, id(similar)?);
        acquire_as(&client, &one, &first, LONG).await?;
        holds_nothing(&client, &second).await?;
        refused(&client, &one).await?;
        let attempt = client.acquire(&one, &second, ttl(LONG)?).await?;
        same(
            "a key held by a similar id is Locked",
            attempt.is_locked(),
            true,
        )?;
        acquire_as(&client, &two, &second, LONG).await?;
        held(&client, &one, &first).await?;
        held(&client, &two, &second).await?;
        release(&client, &second).await?;
        held(&client, &one, &first).await?;
        release(&client, &first).await?;
    }

    let marks = LockId::parse("__-_-_-_-_-_-_-_-_-___")?;
    acquire_as(&client, &one, &marks, LONG).await?;
    held(&client, &one, &marks).await?;
    release(&client, &marks).await?;
    Ok(Outcome::Passed)
}

/// An id that is used for a second key too soon harms no lock of another id.
///
/// Proves I3, E1, R3, F2, G3, O1. The first lock stays as it is. The acquire of the second key is `InvalidArgument`, or
/// a second grant. A refusal leaves nothing of a new key, and the fences of a key with an expired lock rise further.
/// Once the leases have ended, others acquire the keys, and the id reaches neither lock.
pub async fn one_id_on_two_keys_harms_nobody_else<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    // Another TTL than that of the locks.
    let (third, lasting) = (bench.key("3")?, ttl(LONG * 2)?);
    let bystander = acquire(&other, &third, LONG).await?.lock_id;
    let before = held(&other, &third, &bystander).await?;

    // The results of attempts at once are unspecified, too. But their leases must end.
    let (left, right, id) = (bench.key("left")?, bench.key("right")?, LockId::generate()?);
    let attempts = tokio::join!(
        client.acquire(&left, &id, ttl(ms(200))?),
        other.acquire(&right, &id, ttl(ms(200))?),
    );
    granted_or_in_use(attempts.0)?;
    granted_or_in_use(attempts.1)?;
    let (new, dead) = (bench.key("new")?, bench.key("dead")?);
    let former = expiring(&other, &dead).await?;
    tokio::time::sleep_until(dead_at(ms(200)).into()).await;
    let mut successors = Vec::new();
    for key in [&left, &right] {
        let successor = acquire(&other, key, LONG).await?.lock_id;
        successors.push((key, successor, held(&other, key, &successor).await?));
    }
    holds_nothing(&client, &id).await?;

    for (first, second, former) in [
        (bench.key("1")?, &new, None),
        (bench.key("2")?, &dead, fence_in(&former)),
    ] {
        let id = acquire(&client, &first, LONG).await?.lock_id;
        let before = held(&other, &first, &id).await?;
        let kept = bench.harness().stored(second.as_str()).await?;
        match granted_or_in_use(client.acquire(second, &id, lasting).await)? {
            Some(grant) => {
                rise(former, fence_of(&grant))?;
                refused(&other, second).await?;
            }
            None => {
                if *second == new {
                    let left = bench.harness().stored(second.as_str()).await?;
                    same(
                        "stored for a free key whose acquire was refused",
                        left,
                        kept,
                    )?;
                }
                free(&other, second).await?;
                rise(former, next_fence(&other, second).await?)?;
            }
        }
        let after = other.lookup_raw(Lookup::Key(&first)).await?;
        same("the first lock of the id", after, Some(before))?;
        refused(&other, &first).await?;
        // Which lock they reach is unspecified.
        client.lookup_raw(Lookup::Id(&id)).await?;
        let _ = client.extend(&id, lasting).await?;
        let _ = client.release(&id).await?;
    }

    successors.push((&third, bystander, before));
    for (key, holder, before) in successors {
        let after = held(&other, key, &holder).await?;
        same("the lock of another id", after, before)?;
        release(&other, &holder).await?;
    }
    Ok(Outcome::Passed)
}

/// The grant of a free key to an id that may hold another one; `None` if the id is refused.
#[track_caller]
fn granted_or_in_use<F: FenceToken>(
    answer: Result<AcquireResult<F>, LockError>,
) -> Result<Option<Grant<F>>, Failure> {
    match answer {
        Ok(AcquireResult::Acquired(grant)) => Ok(Some(grant)),
        Ok(AcquireResult::Locked { .. }) => Err(Failure::new(
            "acquire of a free key: expected a grant, saw Locked",
        )),
        Err(error) => {
            let expected = ErrorCode::InvalidArgument;
            same("the code of the refusal", error.code(), expected)?;
            Ok(None)
        }
    }
}

/// Every lock acquired through `Locks` has a fresh id of 128 random bits.
///
/// Proves I2.
pub async fn ids_are_fresh_and_random<H: Harness>(bench: Bench<H>) -> CaseResult {
    const TAKEN: usize = 64;
    let client = bench.client().await?;
    let key = bench.key("taken")?;
    let mut ids = HashSet::new();
    let mut columns = vec![HashSet::new(); LOCK_ID_LENGTH];
    for _ in 0..TAKEN {
        let guard = client.locks().try_lock(&key).ttl(LONG).await?;
        let guard = guard.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
        let id = *guard.lock_id();
        for (column, character) in columns.iter_mut().zip(id.as_str().chars()) {
            column.insert(character);
        }
        ids.insert(id);
        let info = client.lookup_raw(Lookup::Key(&key)).await?;
        same(
            "the id at the store",
            info.map(|info| info.lock_id),
            Some(id),
        )?;
        same("the release", guard.release().await?.is_released(), true)?;
    }
    same("distinct ids", ids.len(), TAKEN)?;
    // The last of 22 characters carries two bits. That 64 draws of 64 characters give fewer than
    // 20, or that 64 draws of 4 give fewer than 4, does not happen.
    for (place, column) in columns.iter().enumerate() {
        let least = if place + 1 == LOCK_ID_LENGTH { 4 } else { 20 };
        require(
            column.len() >= least,
            format_args!(
                "character {place} of {TAKEN} ids: expected at least {least} values, saw {}",
                column.len()
            ),
        )?;
    }
    Ok(Outcome::Passed)
}
