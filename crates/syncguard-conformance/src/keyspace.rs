//! Keys that are hard to keep apart, and checks of any set of keys.

use syncguard_core::LockKey;
use syncguard_core::backend::{LockBackend, MAX_KEY_LENGTH_BYTES};

use crate::outcome::{same, step};
use crate::steps::{
    LONG, acquire, free, held, holds_nothing, next_fence, refused, release, renew, rise,
};
use crate::{Bench, Client, Failure, Harness};

/// Spellings of one key: composed, decomposed, in another order of marks.
pub(crate) const SPELLINGS: &[&[&str]] = &[
    &["caf\u{e9}", "cafe\u{301}"],
    &["\u{212b}", "\u{c5}", "A\u{30a}"],
    &["\u{d55c}", "\u{1112}\u{1161}\u{11ab}"],
    &["\u{2126}", "\u{3a9}"],
    &["q\u{307}\u{323}", "q\u{323}\u{307}"],
];

/// Characters that mean something to some store. `@` stands for the case's namespace.
pub(crate) const WIDE: &[&str] = &[
    "plain:@",
    ":@",
    "@:",
    "a:@:b",
    "::@::",
    "{@}",
    "{}@",
    "@{}",
    "{a}{@}",
    "{@",
    "}@{",
    "/@",
    "@/",
    "a/@/c",
    "//@",
    "../@",
    "./@",
    ".@",
    "@.",
    "@..",
    "__@__",
    "%2F@",
    "%@_",
    "%",
    "#@",
    "?@",
    "*@",
    "[a-z]@",
    "'@'",
    "''@",
    "\"@\"",
    "`@`",
    "\\@",
    "@\\",
    "\\n@",
    "$1@",
    "${@}",
    "@;--",
    "<@>",
    "&@",
    "|@",
    "~@",
    "=@",
    "+@",
    "@@",
    " @",
    "@ ",
    "\t@",
    "@\t",
    "\n@",
    "@\n",
    "\r\n@",
    "\u{1}@",
    "\u{7f}@",
    "\u{85}@",
    "\u{a0}@",
    "\u{200b}@",
    "\u{202e}@",
    "\u{feff}@",
    "\u{ffff}@",
    "\u{10ffff}@",
    "\u{1f512}@",
    "@\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}",
    "\u{301}@",
    "@\u{301}\u{323}\u{345}",
    "\u{5d0}@",
    "\u{4e2d}\u{6587}@",
    "null:@",
    "true:@",
    "0:@",
    "-1:@",
];

/// Groups of texts that careless code treats as one key.
pub(crate) const NEAR: &[&[&str]] = &[
    &[
        "order",
        "order ",
        " order",
        "order\n",
        "order\t",
        "order\u{3000}",
        "order:",
        "order/",
        "order.",
        "Order",
        "ORDER",
        "order\u{200b}",
        "\u{feff}order",
        "order\u{10ffff}",
        "orde",
        "order1",
        "fence:order",
    ],
    &["a:b", "a::b", "a/b", "a%2Fb"],
    &["a b", "a  b", "a\u{a0}b", "a+b"],
    &["a", "{a}", "{a}b", "{a}c", "a\\"],
    &["a\\nb", "a\nb", "a\r\nb"],
    &["a_c", "a%c", "a?c", "a*c"],
    &[r#"'"\"#, r#"''"\"#, r#"'""\"#, r#"'"\\"#],
    &["1", "01", "1.0"],
    &["x1", "x\u{b9}"],
    &["resume", "re\u{301}sume"],
    &["strasse", "stra\u{df}e"],
    &["i", "\u{131}"],
    &["\u{3c3}", "\u{3c2}"],
    &["\u{e9}", "\u{c9}"],
    &["fi", "\u{fb01}"],
    &["A", "\u{ff21}"],
    &["\u{430}", "a"],
    &["\u{1f512}", "\u{1f513}"],
    // In some collations a stroke, katakana or a hyphen makes no difference.
    &[
        "coop\u{304b}",
        "c\u{f8}op\u{304b}",
        "coop\u{30ab}",
        "co-op\u{304b}",
    ],
];

pub(crate) fn wide_keys<H: Harness>(bench: &Bench<H>) -> Result<Vec<LockKey>, Failure> {
    let fill = |pattern: &&str| {
        let text = if pattern.contains('@') {
            pattern.replace('@', bench.namespace())
        } else {
            format!("{pattern}{}", bench.namespace())
        };
        Ok(LockKey::new(&text)?)
    };
    WIDE.iter().map(fill).collect()
}

/// A key of the case, filled up to the greatest length, with the given end.
#[track_caller]
pub(crate) fn filled<H: Harness>(
    bench: &Bench<H>,
    filling: &str,
    end: &str,
) -> Result<LockKey, Failure> {
    let start = format!("{}:", bench.namespace());
    let room = MAX_KEY_LENGTH_BYTES - start.len() - end.len();
    let middle = filling.repeat(room / filling.len());
    let rest = "y".repeat(room % filling.len());
    let key = LockKey::new(&format!("{start}{rest}{middle}{end}"))?;
    same(
        "the length of the key",
        key.as_str().len(),
        MAX_KEY_LENGTH_BYTES,
    )?;
    Ok(key)
}

/// Runs every operation on a key.
#[track_caller]
pub(crate) fn works<B: LockBackend>(
    client: &Client<B>,
    other: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        free(client, key).await?;
        let grant = acquire(client, key, LONG).await?;
        let info = held(other, key, &grant.lock_id).await?;
        same(
            "the expiry at the store",
            info.expires_at_ms,
            grant.expires_at_ms,
        )?;
        refused(other, key).await?;
        let extended = renew(other, &grant.lock_id, LONG * 2).await?;
        let info = held(client, key, &grant.lock_id).await?;
        same("the extended expiry", info.expires_at_ms, extended)?;
        release(other, &grant.lock_id).await?;
        free(client, key).await?;
        holds_nothing(client, &grant.lock_id).await
    })
}

/// Holds all keys at once, each by its own id; then releases them one by one.
#[track_caller]
pub(crate) fn do_not_contend<B: LockBackend>(
    client: &Client<B>,
    keys: &[LockKey],
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let quoted = |key: &LockKey, failure: Failure| {
            failure.about(format_args!(
                "key {:?} beside {} others",
                key.as_str(),
                keys.len() - 1
            ))
        };
        let mut ids = Vec::new();
        for key in keys {
            free(client, key)
                .await
                .map_err(|failure| quoted(key, failure))?;
            let grant = acquire(client, key, LONG).await;
            ids.push(grant.map_err(|failure| quoted(key, failure))?.lock_id);
        }
        let mut held_still: Vec<_> = keys.iter().zip(&ids).collect();
        while let Some((key, id)) = held_still.pop() {
            held(client, key, id)
                .await
                .map_err(|failure| quoted(key, failure))?;
            release(client, id)
                .await
                .map_err(|failure| quoted(key, failure))?;
            free(client, key)
                .await
                .map_err(|failure| quoted(key, failure))?;
        }
        Ok(())
    })
}

/// Fails if grants of one of the keys move the fences of another.
#[track_caller]
pub(crate) fn own_fences<B: LockBackend>(
    client: &Client<B>,
    keys: &[LockKey],
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let mut fences = Vec::new();
        for key in keys {
            let first = next_fence(client, key).await?;
            let second = next_fence(client, key).await?;
            fences.push((second, rise(first, second)?));
        }
        for (key, (before, step)) in keys.iter().zip(fences) {
            let after = next_fence(client, key).await?;
            let risen = rise(before, after)?;
            let what = "rise of the key's fence across grants of other keys";
            same(what, risen, step)
                .map_err(|failure| failure.about(format_args!("key {:?}", key.as_str())))?;
        }
        Ok(())
    })
}
