//! [`Broken`]: any store, made to break one promise, to test the checker itself.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, ExtendRequest, Grant, LockBackend, Lookup, LookupRequest,
    ReleaseRequest,
};
use syncguard_core::{
    ExtendResult, Fence, LockError, LockId, LockKey, ReleaseResult, Ttl, forward_calls,
};
use tokio::time::Instant;

/// A promise that is broken at every opportunity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// An acquire of a held key removes it from its holder.
    StealsKeys,
    /// A release by an id that holds nothing releases the current holder's lock.
    ReleasesOthers,
    /// A release returns success and does nothing.
    ForgetsReleases,
    /// An extend returns success and ends the lease.
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
    async fn free(&self, key: &LockKey, deadline: Instant) -> Result<ReleaseResult, LockError> {
        let holder = LookupRequest::new(Lookup::Key(key), deadline);
        match self.inner.lookup_raw(holder).await? {
            Some(info) => {
                let release = ReleaseRequest::new(&info.lock_id, deadline);
                self.inner.release(release).await
            }
            None => Ok(ReleaseResult::not_held(None)),
        }
    }
}

impl<B: LockBackend<Fence = Fence>> LockBackend for Broken<B> {
    type Fence = Fence;

    forward_calls! { |broken| &broken.inner =>
        capabilities lookup_raw is_locked
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        self.keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(*request.id, request.key.clone());
        let answer = self.inner.acquire(request.clone()).await?;
        match (self.mutant, answer) {
            (Mutant::StealsKeys, AcquireResult::Locked { .. }) => {
                let _ = self.free(request.key, request.deadline).await?;
                self.inner.acquire(request).await
            }
            (Mutant::RepeatsFences, AcquireResult::Acquired(grant)) => {
                let fence = Fence::from_counter(1)?;
                let grant = Grant::new(grant.lock_id, grant.expires_at_ms, fence);
                Ok(AcquireResult::Acquired(grant))
            }
            (_, answer) => Ok(answer),
        }
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        if self.mutant == Mutant::ForgetsReleases {
            return Ok(ReleaseResult::Released);
        }
        let answer = self.inner.release(request.clone()).await?;
        match self.key_of(request.id) {
            Some(key) if self.mutant == Mutant::ReleasesOthers && !answer.is_released() => {
                self.free(&key, request.deadline).await
            }
            _ => Ok(answer),
        }
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        let answer = self.inner.extend(request.clone()).await?;
        if self.mutant == Mutant::LosesExtensions {
            let shortest = Ttl::new(Duration::from_millis(1))?;
            let shorten = ExtendRequest::new(request.id, shortest, request.deadline);
            let _ = self.inner.extend(shorten).await?;
        }
        Ok(answer)
    }
}
