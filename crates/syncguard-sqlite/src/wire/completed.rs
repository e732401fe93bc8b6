//! [`Completed`]: a transaction that runs to its end.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A future that runs to its end: if it is dropped before, it continues in the background.
///
/// SQLite executes what it was sent in any case. The transaction must end before the next turn
/// begins.
pub(super) struct Completed<T: Send + 'static> {
    /// `None` once it has ended.
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Option<Handle>,
}

impl<T: Send + 'static> Completed<T> {
    pub(super) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            work: Some(Box::pin(work)),
            runtime: Handle::try_current().ok(),
        }
    }
}

impl<T: Send + 'static> Future for Completed<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        let result = work.as_mut().poll(cx);
        if result.is_ready() {
            self.work = None;
        }
        result
    }
}

impl<T: Send + 'static> Drop for Completed<T> {
    fn drop(&mut self) {
        if let (Some(work), Some(runtime)) = (self.work.take(), &self.runtime) {
            // If the runtime has ended, the work is dropped here, and sqlx's pool spawns a task then.
            let _entered = runtime.enter();
            drop(runtime.spawn(work));
        }
    }
}
