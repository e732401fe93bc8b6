//! [`Call`]: a call to the driver that outlives its caller.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;

/// Is polled by its caller, and by a task of its own if that drops it half-way.
///
/// A task for every call would cost all of them two changes of task and a wake-up.
pub(crate) struct Call<F: Future<Output: Send> + Send + 'static> {
    /// Until it is done.
    call: Option<Pin<Box<F>>>,
    runtime: Handle,
}

impl<F: Future<Output: Send> + Send + 'static> Call<F> {
    /// A call that goes on on this runtime. It begins when it is polled first.
    pub(crate) fn new(runtime: Handle, call: F) -> Self {
        Self {
            call: Some(Box::pin(call)),
            runtime,
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for Call<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(call) = &mut self.call else {
            return Poll::Pending;
        };
        let answer = ready!(call.as_mut().poll(context));
        self.call = None;
        Poll::Ready(answer)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Call<F> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            drop(self.runtime.spawn(call));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_dropped_call_goes_on() {
        let (go, gone) = oneshot::channel::<()>();
        let (done, told) = oneshot::channel();
        let mut call = Call::new(Handle::current(), async move {
            gone.await.unwrap();
            done.send(7).unwrap();
        });
        let polled = timeout(Duration::from_millis(5), &mut call).await;
        assert!(polled.is_err(), "it waits");
        drop(call);
        go.send(()).unwrap();
        assert_eq!(told.await.unwrap(), 7);
    }

    #[tokio::test]
    async fn its_answer_is_the_callers() {
        assert_eq!(Call::new(Handle::current(), async { 7 }).await, 7);
    }
}
