//! [`Managed`]: the policy that every backend shares, around any of them.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::reclaim::Reclaim;
use crate::{
    AcquireResult, Capabilities, ErrorCode, ExtendResult, FENCE_WARN, Fence, FenceToken as _,
    LockBackend, LockError, LockId, LockInfo, LockInfoDebug, LockKey, Lookup, ManagedBackend,
    Observer, Operation, Policy, ReleaseResult, Ttl, hash_key,
};

/// Makes any [`LockBackend`] keep the promises of a [`Policy`].
///
/// - Every operation ends by the policy's deadline, with `NetworkTimeout`.
/// - An acquire that fails with an unknown outcome, is dropped, or is answered after its lease ran
///   out is *reclaimed*: released by its id in the background until the store has answered.
/// - A release that fails or is dropped is repeated in the background likewise, for up to an hour.
/// - A fence above [`FENCE_WARN`] warns, and one above [`FENCE_MAX`](crate::FENCE_MAX) is given
///   back and is `Internal`.
/// - Errors carry the operation, the key and the id.
///
/// So an id whose acquire has failed is spent: the lock that a repetition with the same id might
/// take would be given back as well. Begin again with a fresh one, as the helpers do.
///
/// Operations must be awaited inside a Tokio runtime with time enabled.
#[derive(Debug, Clone)]
pub struct Managed<B> {
    inner: B,
    policy: Policy,
}

impl<B> Managed<B> {
    /// Wraps a backend with the default policy.
    pub fn new(inner: B) -> Self {
        Self::with_policy(inner, Policy::default())
    }

    /// Wraps a backend with a policy of its own.
    pub fn with_policy(inner: B, policy: Policy) -> Self {
        Self { inner, policy }
    }

    /// The wrapped backend.
    pub fn get_ref(&self) -> &B {
        &self.inner
    }

    /// Unwraps the backend. Background work goes on.
    pub fn into_inner(self) -> B {
        self.inner
    }
}

impl<B: LockBackend + Default> Default for Managed<B> {
    fn default() -> Self {
        Self::new(B::default())
    }
}

impl<B: LockBackend> Managed<B> {
    async fn bounded<T>(
        &self,
        operation: Operation,
        // Pinned by the caller: handed over by value it would take its room twice.
        call: Pin<&mut (impl Future<Output = Result<T, LockError>> + Send)>,
    ) -> Result<T, LockError> {
        let timeout = self.policy.operation_timeout();
        match tokio::time::timeout(timeout, call).await {
            Ok(answer) => answer,
            Err(_) => {
                let error = timed_out(timeout);
                Err(match operation {
                    Operation::IsLocked | Operation::Lookup => error,
                    _ => error.with_outcome_unknown(),
                })
            }
        }
        .map_err(|error| error.with_operation(operation))
    }
}

pub(crate) fn timed_out(timeout: Duration) -> LockError {
    LockError::new(
        ErrorCode::NetworkTimeout,
        format!("no answer within {timeout:?}"),
    )
}

pub(crate) fn granted_too_late() -> LockError {
    let message = "the answer came after the lease had run out; it is given back";
    LockError::new(ErrorCode::NetworkTimeout, message)
        .with_operation(Operation::Acquire)
        .with_outcome_unknown()
}

/// Refuses a fence beyond the end, and warns of one that approaches it.
fn check(fence: Fence, key: &LockKey) -> Result<(), LockError> {
    Fence::from_counter(fence.get())?;
    if fence.get() > FENCE_WARN {
        tracing::warn!(
            key_hash = %hash_key(key.as_str()),
            %fence,
            "the key's fences approach their end; move to a new key or prefix"
        );
    }
    Ok(())
}

pub(crate) fn current_runtime() -> Result<Handle, LockError> {
    Handle::try_current().map_err(|error| {
        LockError::new(
            ErrorCode::Internal,
            "operations must run inside a Tokio runtime",
        )
        .with_source(error)
    })
}

#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend> LockBackend for Managed<B> {
    type Fence = B::Fence;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn clock_skew_ms(&self) -> Option<i64> {
        self.inner.clock_skew_ms()
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult<B::Fence>, LockError> {
        let reclaim = Reclaim::of_acquire(&self.inner, &self.policy, id, ttl)?;
        let outcome = self
            .bounded(Operation::Acquire, pin!(self.inner.acquire(key, id, ttl)))
            .await
            .map_err(|error| error.with_key(key).with_lock_id(id));
        match &outcome {
            // Reclaimed when `reclaim` drops.
            Err(error) if error.outcome_unknown() => {}
            Ok(AcquireResult::Acquired(_)) if reclaim.elapsed() >= ttl.as_duration() => {
                return Err(granted_too_late().with_key(key).with_lock_id(id));
            }
            Ok(AcquireResult::Acquired(grant)) => {
                if let Some(fence) = grant.fence.fence() {
                    check(fence, key).map_err(|error| {
                        let error = error.with_operation(Operation::Acquire);
                        error.with_outcome_unknown().with_key(key).with_lock_id(id)
                    })?;
                }
                reclaim.disarm();
            }
            Ok(AcquireResult::Locked) | Err(_) => reclaim.disarm(),
        }
        outcome
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        let reclaim = Reclaim::of_release(&self.inner, &self.policy, id)?;
        let outcome = self
            .bounded(Operation::Release, pin!(self.inner.release(id)))
            .await
            .map_err(|error| error.with_lock_id(id));
        if outcome.is_ok() {
            reclaim.disarm();
        }
        outcome
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        current_runtime()?;
        self.bounded(Operation::Extend, pin!(self.inner.extend(id, ttl)))
            .await
            .map_err(|error| error.with_lock_id(id))
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        current_runtime()?;
        self.bounded(Operation::IsLocked, pin!(self.inner.is_locked(key)))
            .await
            .map_err(|error| error.with_key(key))
    }

    async fn lookup_raw(
        &self,
        by: Lookup<'_>,
    ) -> Result<Option<LockInfoDebug<B::Fence>>, LockError> {
        current_runtime()?;
        self.bounded(Operation::Lookup, pin!(self.inner.lookup_raw(by)))
            .await
            .map_err(|error| error.with_lookup(by))
    }

    async fn lookup(&self, by: Lookup<'_>) -> Result<Option<LockInfo<B::Fence>>, LockError> {
        current_runtime()?;
        self.bounded(Operation::Lookup, pin!(self.inner.lookup(by)))
            .await
            .map_err(|error| error.with_lookup(by))
    }
}

impl<B: LockBackend> ManagedBackend for Managed<B> {
    fn policy(&self) -> &Policy {
        &self.policy
    }

    fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.policy = self.policy.with_observer(observer);
        self
    }
}
