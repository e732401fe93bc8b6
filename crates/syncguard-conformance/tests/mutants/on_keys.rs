//! Faults of key derivation: every operation uses the spoilt key.

use std::fmt::Debug;

use syncguard_core::{
    AcquireResult, LockBackend as _, LockError, LockId, LockInfoDebug, LockKey, Lookup, Ttl,
};

use crate::broken::{Fault, Store};

/// What becomes of a key on its way to the store.
pub(crate) trait Spoils: Debug + Clone + Default + Send + Sync + 'static {
    fn spoil(key: &str) -> String;
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Spoilt<S>(S);

impl<S: Spoils> Spoilt<S> {
    fn stored(key: &LockKey) -> LockKey {
        LockKey::new(&S::spoil(key.as_str())).unwrap_or_else(|_| key.clone())
    }
}

impl<S: Spoils> Fault for Spoilt<S> {
    async fn acquire(
        &self,
        store: &Store,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        store.memory.acquire(&Self::stored(key), id, ttl).await
    }

    async fn is_locked(&self, store: &Store, key: &LockKey) -> Result<bool, LockError> {
        store.memory.is_locked(&Self::stored(key)).await
    }

    /// The user's key is kept beside the spoilt one, so that lookups do not give the fault away.
    async fn lookup_raw(
        &self,
        store: &Store,
        by: Lookup<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        let found = match by {
            Lookup::Key(key) => {
                store
                    .memory
                    .lookup_raw(Lookup::Key(&Self::stored(key)))
                    .await?
            }
            Lookup::Id(_) => store.memory.lookup_raw(by).await?,
        };
        Ok(found.map(|info| LockInfoDebug {
            key: store.key_of(&info.lock_id).unwrap_or(info.key),
            lock_id: info.lock_id,
            expires_at_ms: info.expires_at_ms,
            acquired_at_ms: info.acquired_at_ms,
            fence: info.fence,
        }))
    }
}

/// Upper and lower case are one.
pub(crate) type Folded = Spoilt<Fold>;
/// Space at the ends is dropped.
pub(crate) type Trimmed = Spoilt<Trim>;
/// What is longer than 200 bytes is cut.
pub(crate) type Cut = Spoilt<CutAt200>;

#[derive(Debug, Clone, Default)]
pub(crate) struct Fold;
impl Spoils for Fold {
    fn spoil(key: &str) -> String {
        key.to_lowercase()
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Trim;
impl Spoils for Trim {
    fn spoil(key: &str) -> String {
        key.trim().to_owned()
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct CutAt200;
impl Spoils for CutAt200 {
    fn spoil(key: &str) -> String {
        let end = (0..=key.len().min(200)).rfind(|end| key.is_char_boundary(*end));
        key[..end.unwrap()].to_owned()
    }
}
