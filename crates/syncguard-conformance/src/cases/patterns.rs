//! Keys and ids that are patterns in the query language of some store.

use syncguard_core::LockId;

use crate::keyspace::do_not_contend;
use crate::outcome::same;
use crate::steps::{LONG, acquire_as, held, holds_nothing, join, release, renew, ttl};
use crate::{Bench, CaseResult, Harness, Outcome};

/// Patterns, and what they match in `LIKE`, in globs and in regular expressions.
pub(super) const PATTERNS: &[(&str, &str)] = &[
    ("a_c", "abc"),
    ("a%c", "abbc"),
    ("%", "abc"),
    ("a\\_c", "a_c"),
    ("a*c", "abbc"),
    ("*", "abc"),
    ("a?c", "abc"),
    ("a[b]c", "abc"),
    ("a[a-z]c", "abc"),
    ("a[^x]c", "abc"),
    ("a\\*c", "a*c"),
    ("a.c", "abc"),
    ("a.*c", "abbc"),
    ("ab+c", "abbc"),
    ("ab{2}c", "abbc"),
    ("abc|x", "abc"),
    ("(abc)", "abc"),
    ("abc$", "abc"),
    ("^abc", "abc"),
    ("a$b", "a"),
];

/// A key that is a pattern does not contend with the keys that it matches.
///
/// Proves K2, L1, L2, R3. The case acquires either key first.
pub async fn keys_match_themselves_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let mut pairs = Vec::new();
    for (index, (pattern, matched)) in PATTERNS.iter().enumerate() {
        for order in 0..2 {
            let key = |text: &str| bench.key(&format!("{order}:{index}:{text}"));
            let mut pair = [key(pattern)?, key(matched)?];
            pair.rotate_left(order);
            pairs.push(pair);
        }
    }
    let tasks = pairs.into_iter().map(|pair| {
        let client = client.clone();
        tokio::spawn(async move { do_not_contend(&client, &pair).await })
    });
    join(tasks).await?;
    Ok(Outcome::Passed)
}

/// An id that is a pattern extends, releases and finds its own lock only.
///
/// Proves R3, X3, L2, A2. It is refused the key of an id that it matches. In `LIKE` an underscore stands for any
/// character.
pub async fn ids_match_themselves_alone<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let space = bench.namespace().replace(['-', '_'], "x");
    let plain = LockId::parse(&format!("{space}abcdefghAw"))?;
    let key = bench.key("plain")?;
    acquire_as(&client, &key, &plain, LONG).await?;
    let before = held(&client, &key, &plain).await?;
    let patterns = (0..plain.as_str().len()).map(|place| {
        let mut text = plain.as_str().to_owned();
        text.replace_range(place..=place, "_");
        text
    });
    let whole = format!("{space}__________");
    let own = bench.key("own")?;
    for text in patterns.chain([whole]) {
        let pattern = LockId::parse(&text)?;
        holds_nothing(&client, &pattern).await?;
        let attempt = client.acquire(&key, &pattern, ttl(LONG)?).await?;
        same("a contended attempt is Locked", attempt.is_locked(), true)?;
        acquire_as(&client, &own, &pattern, LONG).await?;
        held(&client, &own, &pattern).await?;
        renew(&client, &pattern, LONG * 2).await?;
        release(&client, &pattern).await?;
        let after = held(&client, &key, &plain).await?;
        same("the lock of an id that a pattern matches", &after, &before)?;
    }
    release(&client, &plain).await?;
    Ok(Outcome::Passed)
}
