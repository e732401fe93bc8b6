//! [`Recording`]: a backend that records every call of the store, background releases included.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, ExtendRequest, IsLockedRequest, LockBackend, Lookup,
    LookupRequest, ReleaseRequest,
};
use syncguard_core::{
    ErrorCode, ExtendResult, Fence, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult,
    forward_calls,
};

use crate::history::{Invocation, Response};
use crate::record::Recorder;

/// One client of a store. Clones are the same client.
pub(crate) struct Recording<B> {
    backend: Arc<B>,
    client: u32,
    recorder: Arc<Recorder>,
    /// Which key each id was for: a release names the id alone.
    keys: Arc<Mutex<HashMap<LockId, LockKey>>>,
}

impl<B> Recording<B> {
    pub(crate) fn new(backend: Arc<B>, client: u32, recorder: Arc<Recorder>) -> Self {
        Self {
            backend,
            client,
            recorder,
            keys: Arc::default(),
        }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<LockId, LockKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a call. It returned when the result is dropped, at the latest.
    fn made(&self, key: &LockKey, invocation: Invocation) -> Result<Made<'_>, LockError> {
        let response = match invocation.only_reads() {
            true => Response::Failed,
            false => Response::Unknown,
        };
        let number = self.recorder.made(self.client, key.as_str(), invocation);
        Ok(Made {
            recorder: &self.recorder,
            number: number.map_err(|error| {
                LockError::new(ErrorCode::Internal, "the call cannot be recorded")
                    .with_source(error)
            })?,
            response,
        })
    }

    fn made_by_id(
        &self,
        id: &LockId,
        invocation: impl FnOnce(String) -> Invocation,
    ) -> Result<Made<'_>, LockError> {
        let key = self.keys().get(id).cloned();
        let key = key.ok_or_else(|| {
            LockError::new(
                ErrorCode::Internal,
                "an id that this client did not acquire",
            )
        })?;
        self.made(&key, invocation(id.as_str().to_owned()))
    }
}

/// A call that was made.
struct Made<'a> {
    recorder: &'a Recorder,
    number: u64,
    /// The outcome, if nothing else is known.
    response: Response,
}

impl Made<'_> {
    fn ended<T>(
        mut self,
        answer: Result<T, LockError>,
        seen: impl FnOnce(&T) -> Response,
    ) -> Result<T, LockError> {
        self.response = match &answer {
            Ok(answer) => seen(answer),
            Err(error) if error.outcome_unknown() => Response::Unknown,
            Err(_) => Response::Failed,
        };
        answer
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // A call without an end counts as one of unknown outcome.
        let _ = self.recorder.returned(self.number, self.response.clone());
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend<Fence = Fence>> LockBackend for Recording<B> {
    type Fence = Fence;

    forward_calls! { |recording| &recording.backend =>
        capabilities watch list attach preflight purge_expired close
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        self.keys().insert(*request.id, request.key.clone());
        let invocation = Invocation::Acquire {
            id: request.id.as_str().to_owned(),
            ttl_ms: request.ttl.as_millis(),
        };
        let made = self.made(request.key, invocation)?;
        made.ended(self.backend.acquire(request).await, |answer| match answer {
            AcquireResult::Acquired(grant) => Response::Granted {
                fence: grant.fence.get(),
                expires_at_ms: grant.expires_at_ms,
            },
            AcquireResult::Locked { .. } => Response::Locked,
        })
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        let made = self.made_by_id(request.id, |id| Invocation::Release { id })?;
        made.ended(self.backend.release(request).await, |answer| {
            match answer.is_released() {
                true => Response::Released,
                false => Response::NotHeld,
            }
        })
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        let ttl_ms = request.ttl.as_millis();
        let made = self.made_by_id(request.id, |id| Invocation::Extend { id, ttl_ms })?;
        made.ended(self.backend.extend(request).await, |answer| {
            match answer.expires_at_ms() {
                Some(expires_at_ms) => Response::Extended { expires_at_ms },
                None => Response::NotHeld,
            }
        })
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        let made = match request.by {
            Lookup::Key(key) => self.made(key, Invocation::LookupByKey)?,
            Lookup::Id(id) => self.made_by_id(id, |id| Invocation::LookupById { id })?,
        };
        let answer = self.backend.lookup_raw(request).await;
        made.ended(answer, |found| seen(found.as_ref()))
    }

    async fn is_locked(&self, request: IsLockedRequest<'_>) -> Result<bool, LockError> {
        let made = self.made(request.key, Invocation::IsLocked)?;
        made.ended(self.backend.is_locked(request).await, |held| match held {
            true => Response::Locked,
            false => Response::Free,
        })
    }
}

impl<B> Clone for Recording<B> {
    fn clone(&self) -> Self {
        Self {
            backend: Arc::clone(&self.backend),
            client: self.client,
            recorder: Arc::clone(&self.recorder),
            keys: Arc::clone(&self.keys),
        }
    }
}

impl<B: fmt::Debug> fmt::Debug for Recording<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording")
            .field("backend", &self.backend)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// The result of a lookup.
#[must_use]
pub fn seen(info: Option<&LockInfoDebug>) -> Response {
    info.map_or(Response::Free, |info| Response::Found {
        key: info.key.as_str().to_owned(),
        id: info.lock_id.as_str().to_owned(),
        fence: info.fence.get(),
        acquired_at_ms: info.acquired_at_ms,
        expires_at_ms: info.expires_at_ms,
    })
}
