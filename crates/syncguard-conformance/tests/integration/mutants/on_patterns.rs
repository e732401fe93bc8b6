//! Faults of stores that search by patterns.

use syncguard_core::backend::{AcquireResult, Lookup};
use syncguard_core::{ExtendResult, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl};

use super::broken::{Fault, NOT_EXTENDED, NOT_RELEASED};
use super::store::{Answer, Ask, Store};

/// Whether a pattern matches: `one` stands for a character, `many` for any number of them.
fn matches(pattern: &str, text: &str, (one, many): (char, char)) -> bool {
    let Some(first) = pattern.chars().next() else {
        return text.is_empty();
    };
    let rest = &pattern[first.len_utf8()..];
    if first == many {
        let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
        return ends
            .into_iter()
            .any(|at| matches(rest, &text[at..], (one, many)));
    }
    let mut of_text = text.chars();
    match of_text.next() {
        Some(character) if first == one || first == character => {
            matches(rest, of_text.as_str(), (one, many))
        }
        _ => false,
    }
}

const LIKE: (char, char) = ('_', '%');
const GLOB: (char, char) = ('?', '*');

/// The locks whose ids an id matches.
async fn held_like(store: &Store, id: &LockId) -> Vec<LockInfoDebug> {
    let mut held = Vec::new();
    for row in store.unreleased() {
        if matches(id.as_str(), row.lock_id.as_str(), LIKE) {
            held.extend(store.held_by(&row.lock_id).await);
        }
    }
    held
}

/// Finds the lock to release by `LIKE`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseMatches;

impl Fault for ReleaseMatches {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let mut answer = NOT_RELEASED;
        for held in held_like(store, id).await {
            answer = store.memory.release(&held.lock_id).await?;
        }
        Ok(answer)
    }
}

/// Finds the lock to extend by `LIKE`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendMatches;

impl Fault for ExtendMatches {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let mut answer = NOT_EXTENDED;
        for held in held_like(store, id).await {
            answer = store.memory.extend(&held.lock_id, ttl).await?;
        }
        Ok(answer)
    }
}

/// Looks ids up by `LIKE`.
#[derive(Debug, Clone, Default)]
pub(crate) struct LookupMatches;

impl Fault for LookupMatches {
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        match by {
            Lookup::Id(id) => Ok(held_like(store, id).await.into_iter().next()),
            Lookup::Key(_) => store.memory.lookup_raw(by).await,
        }
    }
}

/// A key contends with those that it matches: by `LIKE`, or as a glob.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeysMatch<const IS_GLOB: bool>;

impl<const IS_GLOB: bool> KeysMatch<IS_GLOB> {
    async fn held(store: &Store, key: &LockKey) -> bool {
        let language = if IS_GLOB { GLOB } else { LIKE };
        for row in store.unreleased() {
            let held = &row.key;
            if matches(key.as_str(), held.as_str(), language) && store.holder(held).await.is_some()
            {
                return true;
            }
        }
        false
    }
}

impl<const IS_GLOB: bool> Fault for KeysMatch<IS_GLOB> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let answer = store.memory.lookup_raw(Lookup::Id(ask.id)).await?;
        if answer.is_none() && Self::held(store, ask.key).await {
            return Ok(AcquireResult::locked());
        }
        store.acquire(ask).await
    }
}

/// `is_locked` by `LIKE`.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsLockedMatches;

impl Fault for IsLockedMatches {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        Ok(KeysMatch::<false>::held(store, key).await)
    }
}

/// Recognises a replay by `LIKE`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayMatches;

impl Fault for ReplayMatches {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let holder = store.holder(ask.key).await.map(|held| held.lock_id);
        let replayed = holder.filter(|id| matches(ask.id.as_str(), id.as_str(), LIKE));
        let id = &replayed.unwrap_or(*ask.id);
        store.acquire(Ask { id, ..ask }).await
    }
}
