//! [`Broken`]: any store, made to break one promise, so that the proof itself can be proved.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use syncguard_core::{
    AcquireResult, Capabilities, ExtendResult, Fence, Grant, LockBackend, LockError, LockId,
    LockInfoDebug, LockKey, Lookup, ReleaseResult, Ttl,
};

/// A promise that is broken, always where there is an occasion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// An acquire of a held key takes it from its holder.
    StealsKeys,
    /// A release of what is not held releases whoever holds the key.
    ReleasesOthers,
    /// A release is answered and not carried out.
    ForgetsReleases,
    /// An extension is answered, and shortens the lease to nothing.
    LosesExtensions,
    /// All grants have one fence.
    RepeatsFences,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::StealsKeys,
        Self::ReleasesOthers,
        Self::ForgetsReleases,
        Self::LosesExtensions,
        Self::RepeatsFences,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::StealsKeys => "steals-keys",
            Self::ReleasesOthers => "releases-others",
            Self::ForgetsReleases => "forgets-releases",
            Self::LosesExtensions => "loses-extensions",
            Self::RepeatsFences => "repeats-fences",
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mutant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |mutant: &Self| mutant.name() == text;
        Self::ALL.into_iter().find(named).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("the mutants are {names}")
        })
    }
}

/// A store that breaks one promise.
#[derive(Clone)]
pub struct Broken<B> {
    inner: B,
    mutant: Mutant,
    /// Which key each id was for.
    keys: Arc<Mutex<HashMap<LockId, LockKey>>>,
}

impl<B> Broken<B> {
    /// Breaks a store.
    pub fn new(inner: B, mutant: Mutant) -> Self {
        Self {
            inner,
            mutant,
            keys: Arc::default(),
        }
    }

    fn key_of(&self, id: &LockId) -> Option<LockKey> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.get(id).cloned()
    }
}

impl<B: fmt::Debug> fmt::Debug for Broken<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broken")
            .field("inner", &self.inner)
            .field("mutant", &self.mutant)
            .finish_non_exhaustive()
    }
}

impl<B: LockBackend<Fence = Fence>> Broken<B> {
    async fn free(&self, key: &LockKey) -> Result<ReleaseResult, LockError> {
        match self.inner.lookup_raw(Lookup::Key(key)).await? {
            Some(info) => self.inner.release(&info.lock_id).await,
            None => Ok(ReleaseResult::NotHeld { reason: None }),
        }
    }
}

impl<B: LockBackend<Fence = Fence>> LockBackend for Broken<B> {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        self.keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(*id, key.clone());
        let answer = self.inner.acquire(key, id, ttl).await?;
        match (self.mutant, answer) {
            (Mutant::StealsKeys, AcquireResult::Locked) => {
                let _ = self.free(key).await?;
                self.inner.acquire(key, id, ttl).await
            }
            (Mutant::RepeatsFences, AcquireResult::Acquired(grant)) => {
                let fence = Fence::from_counter(1)?;
                Ok(AcquireResult::Acquired(Grant { fence, ..grant }))
            }
            _ => Ok(answer),
        }
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        if self.mutant == Mutant::ForgetsReleases {
            return Ok(ReleaseResult::Released);
        }
        let answer = self.inner.release(id).await?;
        match self.key_of(id) {
            Some(key) if self.mutant == Mutant::ReleasesOthers && !answer.is_released() => {
                self.free(&key).await
            }
            _ => Ok(answer),
        }
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        let answer = self.inner.extend(id, ttl).await?;
        if self.mutant == Mutant::LosesExtensions {
            let shortest = Ttl::new(Duration::from_millis(1))?;
            let _ = self.inner.extend(id, shortest).await?;
        }
        Ok(answer)
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        self.inner.is_locked(key).await
    }

    async fn lookup_raw(&self, by: Lookup<'_>) -> Result<Option<LockInfoDebug>, LockError> {
        self.inner.lookup_raw(by).await
    }
}
