//! Listings: what their pages show.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use syncguard_core::backend::MAX_PAGE_SIZE;
use syncguard_core::{LockError, LockId, LockInfoDebug, LockKey};

use super::patterns::PATTERNS;
use crate::clock::{LIFETIMES, acquire_briefly, dead_at, too_slow};
use crate::keyspace::{filled, wide_keys};
use crate::outcome::{require, same};
use crate::pages::{
    CANNOT_LIST, beginning, can_list, changes_between_pages, extends_between_pages, hold, listed,
    lists, looked_up, pages, release_all, shows_all,
};
use crate::steps::{
    LONG, acquire, fence_of, fence_step, free, held, join, ms, next_fence, release, renew, rise,
};
use crate::{Bench, CaseResult, Failure, Harness, Outcome};

/// A listing shows every live lock as a lookup shows it, to every client.
///
/// Proves N1, L2. Locks of several clients, extended or not, some of them past the end of what they were
/// granted for.
pub async fn every_live_lock_is_shown<H: Harness>(bench: Bench<H>) -> CaseResult {
    let clients = bench.clients(2).await?;
    if !can_list(&bench, &clients[0]).await? {
        return Ok(CANNOT_LIST);
    }
    let first_lease = ms(2_000);
    let (mut expected, mut first_ends) = (BTreeMap::new(), None);
    for (index, key) in bench.keys("live", 24)?.iter().enumerate() {
        let client = &clients[index % 2];
        if index % 3 == 0 {
            first_ends = Some(dead_at(first_lease));
            let id = acquire(client, key, first_lease).await?.lock_id;
            renew(client, &id, LONG).await?;
        } else {
            acquire(client, key, LONG).await?;
        }
        expected.extend([looked_up(client, key).await?]);
    }
    if let Some(first_ends) = first_ends {
        tokio::time::sleep_until(first_ends.into()).await;
    }
    for limit in [7, MAX_PAGE_SIZE] {
        for client in &clients {
            lists(client, bench.namespace(), limit, &expected).await?;
        }
    }
    let key = bench.key("at-once")?;
    let id = acquire(&clients[0], &key, LONG).await?.lock_id;
    let at_once = listed(&clients[1], bench.namespace(), MAX_PAGE_SIZE).await?;
    same("locks after one more grant", at_once.len(), 25)?;
    let extended = renew(&clients[0], &id, LONG * 2).await?;
    let at_once = listed(&clients[1], key.as_str(), MAX_PAGE_SIZE).await?;
    let shown = at_once.get(key.as_str()).map(|lock| lock.expires_at_ms);
    same("the expiry after an extend", shown, Some(extended))?;
    release(&clients[0], &id).await?;
    release_all(&clients[0], &expected).await?;
    lists(&clients[1], bench.namespace(), 7, &BTreeMap::new()).await?;
    Ok(Outcome::Passed)
}

/// A listing shows a lock until its lease ends.
///
/// Proves N1, E1. The case lists when a quarter of the lease is left, by the local monotonic clock.
pub async fn until_its_end_a_lock_is_shown<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    let key = bench.key("ending")?;
    for lasting in LIFETIMES {
        let begun = Instant::now();
        let id = acquire(&client, &key, lasting).await?.lock_id;
        tokio::time::sleep_until((begun + lasting * 3 / 4).into()).await;
        let listed = listed(&client, key.as_str(), MAX_PAGE_SIZE).await?;
        let in_time = begun.elapsed() < lasting;
        if in_time {
            same("locks near their end", listed.len(), 1)?;
        }
        let _ = client.release(&id).await?;
        if in_time {
            return Ok(Outcome::Passed);
        }
    }
    Err(too_slow())
}

/// A listing shows a lock once, whatever the size of its pages.
///
/// Proves N2, N1. If the store may repeat a lock across pages, each page shows it once.
pub async fn a_lock_is_shown_once<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    let expected = hold(&client, &bench.keys("once", 25)?).await?;
    for limit in [1, 2, 3, 7, 24, 25, 26] {
        lists(&client, bench.namespace(), limit, &expected).await?;
    }
    release_all(&client, &expected).await?;
    Ok(Outcome::Passed)
}

/// A page has no more locks than its limit, and a listing comes to an end.
///
/// Proves N5. A listing without locks does, too.
pub async fn pages_are_bounded<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    let expected = hold(&client, &bench.keys("bounded", 12)?).await?;
    for limit in [1, 4, 5, 11, 12, 13] {
        pages(&client, bench.namespace(), limit).await?;
    }
    let nothing = format!("{}:no-such-key", bench.namespace());
    let pages = pages(&client, &nothing, 1).await?;
    let shown = pages.iter().map(|page| page.locks.len()).sum();
    same("locks of a prefix that no key has", shown, 0)?;
    release_all(&client, &expected).await?;
    Ok(Outcome::Passed)
}

/// A listing shows no lock that was released or has expired; of a key with a new holder it shows only the
/// new lock.
///
/// Proves N3, E2, L3.
pub async fn the_dead_are_not_shown<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    let [expired, taken_over] = [bench.key("expired")?, bench.key("taken-over")?];
    let leases = [
        acquire_briefly(&client, &expired).await?,
        acquire_briefly(&client, &taken_over).await?,
    ];
    let live = hold(&client, &bench.keys("live", 2)?).await?;
    let released = acquire(&client, &bench.key("released")?, LONG).await?;
    // It was listed once, in case a backend remembers it.
    listed(&other, bench.namespace(), MAX_PAGE_SIZE).await?;
    release(&client, &released.lock_id).await?;
    for lease in &leases {
        lease.end().await;
    }
    let mut expected = hold(&other, &[taken_over]).await?;
    expected.extend(live);
    for limit in [1, MAX_PAGE_SIZE] {
        for client in [&client, &other] {
            lists(client, bench.namespace(), limit, &expected).await?;
        }
    }
    release_all(&client, &expected).await?;
    Ok(Outcome::Passed)
}

/// A listing shows no fence counters and no other internal entries of the store.
///
/// Proves N3, N1, K3. Also with the prefixes that a store may use for such names. It shows the locks on keys that look
/// like such names.
pub async fn nothing_else_is_shown<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    next_fence(&client, &bench.key("idle")?).await?;
    let like_an_id = format!("held:{}", LockId::generate()?.as_str());
    let keys = ["held", "fence:held", "id:held", "held:id", &like_an_id];
    let keys = keys.map(|name| bench.key(name));
    let keys = keys.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    let expected = hold(&client, &keys).await?;
    lists(&client, bench.namespace(), MAX_PAGE_SIZE, &expected).await?;
    for prefix in ["", "fence:", "id:"] {
        for (text, lock) in listed(&client, prefix, MAX_PAGE_SIZE).await? {
            let is_ours = text.contains(bench.namespace());
            let is_id = expected
                .values()
                .any(|lock| text.contains(lock.lock_id.as_str()));
            require(
                !(is_ours || is_id) || expected.get(&text) == Some(&lock),
                format_args!("a listing of {prefix:?}: expected locks alone, saw {text:?}"),
            )?;
        }
    }
    release_all(&client, &expected).await?;
    Ok(Outcome::Passed)
}

/// A prefix that is a pattern selects the keys that begin with it, not those that it matches.
///
/// Proves N4, N1, N5. Patterns of `LIKE`, of globs and of regular expressions. The same for the key at which a page
/// ends.
pub async fn a_prefix_is_no_pattern<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    let name = |index: usize, text: &str| format!("{}:{index}:{text}", bench.namespace());
    let mut keys = Vec::new();
    for (index, (pattern, matched)) in PATTERNS.iter().enumerate() {
        for text in [pattern, matched] {
            keys.push(LockKey::new(&format!("{}/", name(index, text)))?);
        }
    }
    let all = hold(&client, &keys).await?;
    for (index, (pattern, _)) in PATTERNS.iter().enumerate() {
        let prefix = name(index, pattern);
        lists(&client, &prefix, MAX_PAGE_SIZE, &beginning(&all, &prefix)).await?;
    }
    lists(&client, bench.namespace(), 1, &all).await?;
    release_all(&client, &all).await?;
    Ok(Outcome::Passed)
}

/// A prefix selects the keys that begin with exactly its characters.
///
/// Proves N4, N1, K1. The prefix may be a whole key, in any spelling. Case, accents and width make a difference.
/// Characters above U+FFFF have their place in the order of keys. The last character of a long prefix counts.
pub async fn a_prefix_is_taken_to_the_letter<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    let endings = [
        "order",
        "order:1",
        "order:2",
        "order::",
        "order::1",
        "order;",
        "orde",
        "Order",
        "ORDER:1",
        " order",
        "order ",
        "\u{e9}",
        "\u{e9}1",
        "e",
        "e1",
        "\u{c9}",
        "\u{ff4f}rder",
        "\u{d7ff}1",
        "\u{e000}1",
        "\u{ffff}1",
        "\u{10000}1",
        "\u{10ffff}",
        "\u{10ffff}1",
        "\u{1f512}1",
        "~",
        "\\order",
        "'order",
        "\"order",
        "order\n",
        "\u{1}1",
    ];
    let name = |ending: &str| format!("{}:{ending}", bench.namespace());
    let keys = endings.map(|ending| LockKey::new(&name(ending)));
    let keys = keys.into_iter().collect::<Result<Vec<_>, LockError>>()?;
    let all = hold(&client, &keys).await?;
    for ending in endings
        .into_iter()
        .chain(["", "order:", "order:12", "x", "\u{d7ff}"])
    {
        let prefix = name(ending);
        lists(&client, &prefix, 3, &beginning(&all, &prefix)).await?;
    }
    // The spelling is normalized, and then it is the prefix of both.
    let expected = beginning(&all, &name("\u{e9}"));
    same("keys that begin with an accent", expected.len(), 2)?;
    lists(&client, &name("e\u{301}"), 3, &expected).await?;
    release_all(&client, &all).await?;
    let long = name(&"long".repeat(75));
    let keys = [1, 2].map(|end| LockKey::new(&format!("{long}{end}/")));
    let keys = keys.into_iter().collect::<Result<Vec<_>, LockError>>()?;
    let all = hold(&client, &keys).await?;
    let prefix = format!("{long}1");
    // A key in shortened form may be left out.
    for text in listed(&client, &prefix, 3).await?.keys() {
        require(
            text.starts_with(&prefix),
            format_args!("a listing of {prefix:?}: expected no other locks, saw {text:?}"),
        )?;
    }
    release_all(&client, &all).await?;
    Ok(Outcome::Passed)
}

/// A listing shows locks on keys of any characters, and on the longest key.
///
/// Proves N1, K2, K4. The listing has no prefix.
pub async fn any_key_is_shown<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    let mut keys = wide_keys(&bench)?;
    keys.push(filled(&bench, "\u{1f512}", "end")?);
    keys.push(filled(&bench, "/", "")?);
    let expected = hold(&client, &keys).await?;
    let listed = listed(&client, "", MAX_PAGE_SIZE).await?;
    for (text, lock) in &expected {
        let what = format!("the lock on {text:?} in a listing of all");
        same(&what, listed.get(text), Some(lock))?;
    }
    release_all(&client, &expected).await?;
    Ok(Outcome::Passed)
}

/// Locks that are granted and released during a listing hide no other.
///
/// Proves N1, N2. Their keys are before, between and after those of the locks that stay. They come and go between
/// two pages, and at any time.
pub async fn locks_that_come_and_go_hide_no_other<H: Harness>(bench: Bench<H>) -> CaseResult {
    const LISTINGS: usize = 10;
    let (client, other) = (bench.client().await?, bench.client().await?);
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    let steady: Vec<_> = bench.keys("steady", 30)?;
    let expected = hold(&client, &steady).await?;
    for first in [true, false] {
        changes_between_pages(&bench, &client, &other, first, &expected).await?;
    }
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for task in ["a", "steady:1", "steady:2", "steady:9:z", "z"] {
        let (client, over) = (other.clone(), Arc::clone(&over));
        let keys = bench.keys(&format!("{task}:passing"), 4)?;
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let held = hold(&client, &keys).await?;
                release_all(&client, &held).await?;
                tokio::task::yield_now().await;
            }
            Ok(())
        }));
    }
    let mut listings = Ok(());
    for _ in 0..LISTINGS {
        listings = shows_all(&client, bench.namespace(), &expected).await;
        if listings.is_err() {
            break;
        }
    }
    over.store(true, Ordering::Relaxed);
    join(tasks).await?;
    listings?;
    release_all(&client, &expected).await?;
    Ok(Outcome::Passed)
}

/// A listing shows each lock once, also if it is extended or released between pages.
///
/// Proves N1, N2. After the first page another client releases the lock at which it ended, extends the others, and
/// shortens those that are still to come. Then the other way round.
pub async fn locks_that_change_are_shown_once<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    for (name, shown, to_come) in [
        ("first-later", LONG * 3, LONG / 2),
        ("first-sooner", LONG / 2, LONG * 3),
    ] {
        let locks = hold(&client, &bench.keys(name, 12)?).await?;
        let prefix = format!("{}:{name}", bench.namespace());
        extends_between_pages(&client, &other, &prefix, &locks, (shown, to_come)).await?;
    }
    Ok(Outcome::Passed)
}

/// A listing moves no expiry, uses no fence and holds nothing.
///
/// Proves N6. Several listings, of a live lock, of an expired one and of free keys.
pub async fn it_changes_nothing<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    let [live, dead, idle] = [bench.key("live")?, bench.key("dead")?, bench.key("idle")?];
    let step = fence_step(&client, &live).await?;
    next_fence(&client, &dead).await?;
    let idle_before = next_fence(&client, &idle).await?;
    let lease = acquire_briefly(&client, &dead).await?;
    let grant = acquire(&client, &live, LONG).await?;
    let before = held(&client, &live, &grant.lock_id).await?;
    lease.end().await;
    // Longer than any clean-up's guard.
    tokio::time::sleep(ms(1_500)).await;
    for _ in 0..10 {
        for client in [&client, &other] {
            listed(client, bench.namespace(), MAX_PAGE_SIZE).await?;
        }
        tokio::time::sleep(ms(2)).await;
    }
    let after = held(&client, &live, &grant.lock_id).await?;
    same("the lock after many listings", after, before)?;
    free(&client, &dead).await?;
    free(&client, &idle).await?;
    release(&client, &grant.lock_id).await?;
    for (key, before) in [
        (&live, fence_of(&grant)),
        (&dead, fence_of(&lease.grant)),
        (&idle, idle_before),
    ] {
        let after = next_fence(&client, key).await?;
        same(
            "rise of the fence across listings",
            rise(before, after)?,
            step,
        )?;
    }
    Ok(Outcome::Passed)
}

/// `Locks` lists page by page, with hashes unless raw identifiers are asked for.
///
/// Proves N1, L5. `Debug` and JSON of the results contain no identifier, and neither does `Debug` of the cursor.
pub async fn it_shows_hashes<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    if !can_list(&bench, &client).await? {
        return Ok(CANNOT_LIST);
    }
    let expected = hold(&client, &bench.keys("hashed:caf\u{e9}", 5)?).await?;
    let mut sanitized: Vec<_> = expected.values().map(LockInfoDebug::sanitized).collect();
    let (mut shown, mut raw, mut after, mut after_raw) = (Vec::new(), Vec::new(), None, None);
    let locks = client.locks();
    loop {
        let page = locks.list().prefix(bench.namespace()).page_size(2);
        let page = page.after(after).await?;
        let json = serde_json::to_string(&page.locks);
        let json = json.map_err(|error| Failure::new(format_args!("JSON: {error}")))?;
        for text in [json, format!("{page:?}")] {
            let ids = || expected.values().map(|lock| lock.lock_id);
            require(
                !text.contains(bench.namespace()) && !ids().any(|id| text.contains(id.as_str())),
                "the text of a page: expected hashes, saw a raw identifier",
            )?;
        }
        shown.extend(page.locks);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    loop {
        let page = locks.list_raw().prefix(bench.namespace()).page_size(2);
        let page = page.after(after_raw).await?;
        raw.extend(page.locks);
        after_raw = page.next;
        if after_raw.is_none() {
            break;
        }
    }
    shown.sort_by_key(|lock| lock.lock_id_hash);
    shown.dedup();
    sanitized.sort_by_key(|lock| lock.lock_id_hash);
    same("the locks of a listing", shown, sanitized)?;
    let raw: BTreeMap<_, _> = raw
        .into_iter()
        .map(|lock| (lock.key.as_str().to_owned(), lock))
        .collect();
    same("the locks of a raw listing", &raw, &expected)?;
    release_all(&client, &expected).await?;
    Ok(Outcome::Passed)
}
