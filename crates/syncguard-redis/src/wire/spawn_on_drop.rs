//! [`SpawnOnDrop`]: a call to the driver that outlives its caller.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Runs in its caller's task, and continues in a new task if the caller drops it.
///
/// A task for every call would cost each call two task switches and a wake-up.
pub(crate) struct SpawnOnDrop<F: Future<Output: Send> + Send + 'static> {
    /// `None` once it is done.
    call: Option<Pin<Box<F>>>,
    runtime: Handle,
}

impl<F: Future<Output: Send> + Send + 'static> SpawnOnDrop<F> {
    /// A call that continues on this runtime if it is dropped. It starts with the first poll.
    pub(crate) fn new(runtime: Handle, call: F) -> Self {
        Self {
            call: Some(Box::pin(call)),
            runtime,
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for SpawnOnDrop<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(mut call) = self.call.take() else {
            return Poll::Pending;
        };
        // Kept only while the call is pending: a call that panicked must not be polled again, not even by a
        // task.
        let output = call.as_mut().poll(context);
        if output.is_pending() {
            self.call = Some(call);
        }
        output
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for SpawnOnDrop<F> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            drop(self.runtime.spawn(call));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::Waker;
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_dropped_call_continues() {
        let (go, gone) = oneshot::channel::<()>();
        let (done, finished) = oneshot::channel();
        let mut call = SpawnOnDrop::new(Handle::current(), async move {
            gone.await.unwrap();
            done.send(7).unwrap();
        });
        let polled = timeout(Duration::from_millis(5), &mut call).await;
        assert!(polled.is_err(), "it is pending");
        drop(call);
        go.send(()).unwrap();
        assert_eq!(finished.await.unwrap(), 7);
    }

    fn runtime() -> Runtime {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    }

    /// A pending call on a runtime, a sender that lets it continue, and a receiver that reports that it did.
    fn waiting_on(
        runtime: &Runtime,
    ) -> (
        SpawnOnDrop<impl Future<Output = ()> + Send + use<>>,
        oneshot::Sender<()>,
        mpsc::Receiver<()>,
    ) {
        let (go, gone) = oneshot::channel();
        let (done, finished) = mpsc::channel();
        let mut call = SpawnOnDrop::new(runtime.handle().clone(), async move {
            gone.await.unwrap();
            done.send(()).unwrap();
        });
        runtime.block_on(async {
            let polled = timeout(Duration::from_millis(5), &mut call).await;
            assert!(polled.is_err(), "it is pending");
        });
        (call, go, finished)
    }

    #[test]
    fn a_call_dropped_outside_a_runtime_continues() {
        let home = runtime();
        let (call, go, finished) = waiting_on(&home);
        drop(call);
        go.send(()).unwrap();
        finished.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn a_call_dropped_on_another_runtime_continues_on_its_own() {
        let (home, other) = (runtime(), runtime());
        let (call, go, finished) = waiting_on(&home);
        other.block_on(async { drop(call) });
        drop(other);
        go.send(()).unwrap();
        finished.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn a_call_dropped_after_the_shutdown_ends_without_a_panic() {
        let home = runtime();
        let (call, go, finished) = waiting_on(&home);
        home.shutdown_timeout(LONG);
        drop(call);
        assert!(go.send(()).is_err(), "the call was dropped");
        assert!(finished.recv().is_err());
    }

    #[tokio::test]
    async fn a_call_that_panicked_is_not_polled_again() {
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let mut call = SpawnOnDrop::new(Handle::current(), async { panic!("in the driver") });
        let poll = || pin!(&mut call).poll(&mut Context::from_waker(Waker::noop()));
        let caught: Result<Poll<()>, _> = catch_unwind(AssertUnwindSafe(poll));
        assert!(caught.is_err());
        let before = tasks();
        drop(call);
        assert_eq!(tasks(), before);
    }

    #[tokio::test]
    async fn the_caller_gets_its_output() {
        assert_eq!(SpawnOnDrop::new(Handle::current(), async { 7 }).await, 7);
    }
}
