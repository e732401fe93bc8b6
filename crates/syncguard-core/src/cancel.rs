//! [`Cancellable`]: one combinator that ends any operation by a token.

use std::future::Future;

use tokio_util::sync::CancellationToken;

use crate::{
    AcquireResult, ErrorCode, ExtendResult, LockError, LockGuard, LockInfo, LockInfoDebug,
    ManagedBackend, Receipt, ReleaseResult,
};

/// Adds [`cancelled_by`](Cancellable::cancelled_by) to the future of every operation.
///
/// ```
/// # use std::time::Duration;
/// # use syncguard_core::{Cancellable as _, CancellationToken, ErrorCode, acquire};
/// # use syncguard_memory::MemoryBackend;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// # let backend = MemoryBackend::default();
/// let token = CancellationToken::new();
/// token.cancel();
/// let attempt = acquire(&backend, "report:daily", Duration::from_secs(60)).cancelled_by(&token);
/// assert_eq!(attempt.await.unwrap_err().code(), ErrorCode::Aborted);
/// # }
/// ```
pub trait Cancellable<T: Answer>: Future<Output = Result<T, LockError>> + Sized {
    /// Ends the operation with `Aborted` when the token is cancelled.
    ///
    /// Cancelled before the first poll, it does nothing at all. Cancelled in flight, the operation
    /// is dropped at once, and where it writes its outcome is unknown; a lock that an acquire took is
    /// given back in the background.
    ///
    /// # Errors
    /// `Aborted`, and whatever the operation itself fails with.
    ///
    /// # Cancel safety
    /// As the operation's own.
    fn cancelled_by(self, token: &CancellationToken) -> impl Future<Output = Result<T, LockError>> {
        async move {
            if token.is_cancelled() {
                return Err(aborted());
            }
            tokio::select! {
                biased;
                () = token.cancelled() => Err(match T::OF_A_WRITE {
                    true => aborted().with_outcome_unknown(),
                    false => aborted(),
                }),
                answer = self => answer,
            }
        }
    }
}

impl<T: Answer, F: Future<Output = Result<T, LockError>>> Cancellable<T> for F {}

/// What an operation answers, and whether it may have written.
pub trait Answer {
    /// Whether the operation changes locks, so that cut short its outcome is unknown.
    const OF_A_WRITE: bool;
}

impl<F> Answer for AcquireResult<F> {
    const OF_A_WRITE: bool = true;
}

impl<B: ManagedBackend> Answer for Option<LockGuard<B>> {
    const OF_A_WRITE: bool = true;
}

impl<T> Answer for Receipt<T> {
    const OF_A_WRITE: bool = true;
}

impl Answer for ReleaseResult {
    const OF_A_WRITE: bool = true;
}

impl Answer for ExtendResult {
    const OF_A_WRITE: bool = true;
}

impl Answer for bool {
    const OF_A_WRITE: Self = false;
}

impl<F> Answer for Option<LockInfo<F>> {
    const OF_A_WRITE: bool = false;
}

impl<F> Answer for Option<LockInfoDebug<F>> {
    const OF_A_WRITE: bool = false;
}

pub(crate) fn aborted() -> LockError {
    LockError::new(ErrorCode::Aborted, "cancelled by the caller's token")
}
