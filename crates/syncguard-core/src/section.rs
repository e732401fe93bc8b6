//! [`Receipt`], and how a section runs under a lock.

use tokio::time::Instant;

use crate::backend::FenceToken;
use crate::call::Limits;
use crate::error::Operation;
use crate::observe::{ReleaseFailure, ReleaseStage};
use crate::{AutoExtend, ErrorCode, Lease, LockError, LockGuard, ReleaseResult};

/// The result of a section that ran under a lock. It has what the section returned, also if that is an error.
#[derive(Debug, Clone)]
#[must_use = "it holds what the section returned: a value, or an error of its own"]
pub struct Receipt<T> {
    value: T,
    ending: Ending,
}

#[derive(Debug, Clone)]
enum Ending {
    Released,
    Overran,
    ReleaseFailed(LockError),
}

impl<T> Receipt<T> {
    /// What the section returned.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.value
    }

    /// What the section returned.
    #[must_use]
    pub fn into_value(self) -> T {
        self.value
    }

    /// Whether the lock was gone when the section ended. Part of the section then ran without the lock.
    ///
    /// If so, choose a longer TTL, and let the resource check fences.
    #[must_use]
    pub fn overran(&self) -> bool {
        matches!(self.ending, Ending::Overran)
    }

    /// Why the release at the end of the section failed. The background retries it.
    #[must_use]
    pub fn release_error(&self) -> Option<&LockError> {
        match &self.ending {
            Ending::ReleaseFailed(error) => Some(error),
            Ending::Released | Ending::Overran => None,
        }
    }
}

/// Runs a section under a lock, then releases the lock.
pub(crate) async fn run<F, S, T>(
    guard: LockGuard<F>,
    auto_extend: Option<AutoExtend>,
    section: S,
) -> Result<Receipt<T>, LockError>
where
    F: FenceToken,
    S: AsyncFnOnce(Lease<F>) -> T,
{
    let (mut guard, value) = hold(guard, auto_extend, section).await?;
    let (key, store) = (guard.key().clone(), guard.store().clone());
    let on_error = guard.on_release_error().cloned();
    let released = guard.release_within(&Limits::default()).await;
    drop(guard);
    let ending = match released {
        Ok(ReleaseResult::Released) => Ending::Released,
        Ok(ReleaseResult::NotHeld { .. }) => {
            tracing::warn!(
                key_hash = %key.hash_id(),
                "lock expired or was released before its section ended; choose a longer TTL or \
                 auto-extension"
            );
            Ending::Overran
        }
        Err(error) => {
            let failure = ReleaseFailure::new(error.clone(), ReleaseStage::SectionEnd);
            store.report(&failure, on_error.as_ref());
            Ending::ReleaseFailed(error)
        }
    };
    Ok(Receipt { value, ending })
}

/// Runs the section. With auto-extension, drops it if the lease is lost.
async fn hold<F, S, T>(
    guard: LockGuard<F>,
    auto_extend: Option<AutoExtend>,
    section: S,
) -> Result<(LockGuard<F>, T), LockError>
where
    F: FenceToken,
    S: AsyncFnOnce(Lease<F>) -> T,
{
    let lease = guard.lease();
    let Some(auto_extend) = auto_extend else {
        let value = section(lease).await;
        return Ok((guard, value));
    };
    let started = Instant::now();
    let value = tokio::select! {
        biased;
        value = section(lease) => Some(value),
        () = guard.lost() => None,
    };
    match value {
        Some(value) => Ok((guard, value)),
        None => {
            let message = match auto_extend.ended(started.elapsed()) {
                true => "the section ran longer than `max_hold`; it was dropped unfinished",
                false => "the lease could not be renewed; the section was dropped unfinished",
            };
            let error = LockError::new(ErrorCode::LockLost, message)
                .with_operation(Operation::Lock)
                .with_key(guard.key())
                .with_lock_id(guard.lock_id());
            guard.abandon();
            Err(error)
        }
    }
}
