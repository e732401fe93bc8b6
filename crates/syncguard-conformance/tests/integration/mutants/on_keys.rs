//! Faults of key derivation.

use std::fmt::Debug;

use syncguard_core::backend::{AcquireResult, Lookup};
use syncguard_core::{LockError, LockId, LockInfoDebug, LockKey};
use unicode_normalization::UnicodeNormalization as _;

use super::broken::Fault;
use super::store::{Answer, Ask, Store};

/// The form of a key in the store.
pub(crate) trait Spoils: Debug + Clone + Default + Send + Sync + 'static {
    fn spoil(key: &str) -> String;
}

/// Every operation uses the spoilt key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spoilt<S>(S);

impl<S: Spoils> Spoilt<S> {
    fn stored(key: &LockKey) -> LockKey {
        LockKey::new(&S::spoil(key.as_str())).unwrap_or_else(|_| key.clone())
    }
}

impl<S: Spoils> Fault for Spoilt<S> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let key = &Self::stored(ask.key);
        store.acquire(Ask { key, ..ask }).await
    }

    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        store.memory.is_locked(&Self::stored(key)).await
    }

    /// The user's key is kept beside the spoilt one, so that lookups do not give the fault away.
    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let found = match by {
            Lookup::Key(key) => store.holder(&Self::stored(key)).await,
            Lookup::Id(id) => store.held_by(id).await,
        };
        Ok(found.map(|info| {
            let key = store.key_of(&info.lock_id).unwrap_or(info.key);
            let (expires_at_ms, acquired_at_ms) = (info.expires_at_ms, info.acquired_at_ms);
            LockInfoDebug::new(key, info.lock_id, expires_at_ms, acquired_at_ms, info.fence)
        }))
    }
}

/// Upper and lower case are one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fold;
impl Spoils for Fold {
    fn spoil(key: &str) -> String {
        key.to_lowercase()
    }
}

/// Space at the ends is dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trim;
impl Spoils for Trim {
    fn spoil(key: &str) -> String {
        key.trim().to_owned()
    }
}

/// Compatible characters are one: NFKC in place of NFC.
#[derive(Debug, Clone, Default)]
pub(crate) struct Compatible;
impl Spoils for Compatible {
    fn spoil(key: &str) -> String {
        key.nfkc().collect()
    }
}

/// Control characters are dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Printable;
impl Spoils for Printable {
    fn spoil(key: &str) -> String {
        key.chars().filter(|c| !c.is_control()).collect()
    }
}

/// One character is dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Without<const CHARACTER: char>;
impl<const CHARACTER: char> Spoils for Without<CHARACTER> {
    fn spoil(key: &str) -> String {
        key.replace(CHARACTER, "")
    }
}

/// One character counts as another.
#[derive(Debug, Clone, Default)]
pub(crate) struct Folded<const CHARACTER: char, const INTO: char>;
impl<const CHARACTER: char, const INTO: char> Spoils for Folded<CHARACTER, INTO> {
    fn spoil(key: &str) -> String {
        key.replace(CHARACTER, INTO.encode_utf8(&mut [0; 4]))
    }
}

/// One character counts once where it is doubled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Undoubled<const CHARACTER: char>;
impl<const CHARACTER: char> Spoils for Undoubled<CHARACTER> {
    fn spoil(key: &str) -> String {
        let one = CHARACTER.to_string();
        key.replace(&one.repeat(2), &one)
    }
}

/// A number is kept as a number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Number;
impl Spoils for Number {
    fn spoil(key: &str) -> String {
        let number = key.parse::<u64>();
        number.map_or_else(|_| key.to_owned(), |number| number.to_string())
    }
}

/// Braces mark the part that counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tag;
impl Spoils for Tag {
    fn spoil(key: &str) -> String {
        let after = key.split_once('{').map(|(_, after)| after);
        let tag = after.and_then(|after| after.split_once('}'));
        tag.map_or(key, |(tag, _)| tag).to_owned()
    }
}

/// What is longer than 200 bytes is cut.
#[derive(Debug, Clone, Default)]
pub(crate) struct CutAt200;
impl Spoils for CutAt200 {
    fn spoil(key: &str) -> String {
        let end = (0..=key.len().min(200)).rfind(|end| key.is_char_boundary(*end));
        key[..end.unwrap()].to_owned()
    }
}

/// Which keys a store refuses.
pub(crate) trait Dislikes: Debug + Clone + Default + Send + Sync + 'static {
    fn dislikes(key: &str) -> bool;
}

/// Passes the store's refusal on to the caller.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refuses<D>(D);

impl<D: Dislikes> Fault for Refuses<D> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if D::dislikes(ask.key.as_str()) {
            return Err(LockError::invalid_argument("not a name for a document"));
        }
        store.acquire(ask).await
    }
}

/// What ends a string.
#[derive(Debug, Clone, Default)]
pub(crate) struct Quotes;
impl Dislikes for Quotes {
    fn dislikes(key: &str) -> bool {
        key.contains(['\'', '"', '\\'])
    }
}

/// What names a folder.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dots;
impl Dislikes for Dots {
    fn dislikes(key: &str) -> bool {
        matches!(key, "." | "..")
    }
}

/// What is longer than a name may be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Length;
impl Dislikes for Length {
    fn dislikes(key: &str) -> bool {
        key.len() > 255
    }
}

/// Shortens a key everywhere but in `is_locked`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadUnshortened;

impl Fault for ReadUnshortened {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        Ok(key.as_str().len() <= 200 && store.memory.is_locked(key).await?)
    }
}

/// Keeps its index by id among the keys: `id:...` overwrites an entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShareTheIndex;

impl Fault for ShareTheIndex {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let entry = ask.key.as_str().strip_prefix("id:");
        if let Some(Ok(id)) = entry.map(LockId::parse) {
            let _ = store.memory.release(&id).await?;
        }
        store.acquire(ask).await
    }
}
