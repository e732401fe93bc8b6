//! [`Request`]: an operation that starts when it is awaited.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio_util::sync::CancellationToken;

use crate::LockError;
use crate::call::Limits;

/// An operation of [`Locks`](crate::Locks) or of a guard. It starts when it is first polled, and ends at
/// the latest at the operation timeout.
///
/// It is a future of `Result<T, LockError>` and borrows nothing: await it, or spawn it.
///
/// ```
/// # use syncguard_core::{CancellationToken, ErrorCode, Locks};
/// # use syncguard_memory::MemoryBackend;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// # let locks = Locks::new(MemoryBackend::default());
/// let token = CancellationToken::new();
/// token.cancel();
/// let info = locks.get_by_key("report:daily").cancel_on(&token).await;
/// assert_eq!(info.unwrap_err().code(), ErrorCode::Aborted);
/// # }
/// ```
#[must_use = "a request does nothing unless it is awaited"]
pub struct Request<T>(Pin<Box<dyn Pending<T>>>);

impl<T> Request<T> {
    /// A request for the future that `start` makes when its limits are known. One allocation holds both.
    pub(crate) fn new<S, O>(start: S) -> Self
    where
        S: FnOnce(Limits) -> O + Send + 'static,
        O: Future<Output = Result<T, LockError>> + Send + 'static,
    {
        Self(Box::pin(Deferred::Waiting {
            limits: Limits::default(),
            start,
        }))
    }

    /// Ends the operation with `Aborted` when the token is cancelled. Call it before the first poll: later it has no
    /// effect.
    ///
    /// If the token is already cancelled, nothing is sent. An operation in flight ends at once. If it can change
    /// the store, its outcome is then unknown. SyncGuard retries a release in the background.
    pub fn cancel_on(mut self, token: &CancellationToken) -> Self {
        self.0.as_mut().cancel_on(token.clone());
        self
    }
}

impl<T> Future for Request<T> {
    type Output = Result<T, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl<T> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Request")
    }
}

trait Pending<T>: Future<Output = Result<T, LockError>> + Send {
    fn cancel_on(self: Pin<&mut Self>, token: CancellationToken);
}

pin_project! {
    #[project = Projected]
    #[project_replace = Replaced]
    enum Deferred<S, O> {
        // Until the first poll.
        Waiting { limits: Limits, start: S },
        Running { #[pin] running: O },
        // `start` has panicked.
        Empty,
    }
}

impl<S, O, T> Pending<T> for Deferred<S, O>
where
    S: FnOnce(Limits) -> O + Send,
    O: Future<Output = Result<T, LockError>> + Send,
{
    fn cancel_on(self: Pin<&mut Self>, token: CancellationToken) {
        if let Projected::Waiting { limits, .. } = self.project() {
            limits.token = Some(token);
        }
    }
}

impl<S, O, T> Future for Deferred<S, O>
where
    S: FnOnce(Limits) -> O,
    O: Future<Output = Result<T, LockError>>,
{
    type Output = Result<T, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Projected::Running { running } = self.as_mut().project() {
            return running.poll(context);
        }
        if let Replaced::Waiting { limits, start } = self.as_mut().project_replace(Self::Empty) {
            let running = start(limits);
            self.set(Self::Running { running });
        }
        match self.project() {
            Projected::Running { running } => running.poll(context),
            _ => Poll::Pending,
        }
    }
}
