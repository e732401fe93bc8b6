//! [`Call`]: a call to the driver that outlives its caller.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

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
        let Some(mut call) = self.call.take() else {
            return Poll::Pending;
        };
        // Back only if it waits: one that panics may not be polled again, by a task either.
        let answer = call.as_mut().poll(context);
        if answer.is_pending() {
            self.call = Some(call);
        }
        answer
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

    fn runtime() -> Runtime {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    }

    /// A call that waits on a runtime; what lets it go on, and what tells that it did.
    fn waiting_on(
        runtime: &Runtime,
    ) -> (
        Call<impl Future<Output = ()> + Send + use<>>,
        oneshot::Sender<()>,
        mpsc::Receiver<()>,
    ) {
        let (go, gone) = oneshot::channel();
        let (done, told) = mpsc::channel();
        let mut call = Call::new(runtime.handle().clone(), async move {
            gone.await.unwrap();
            done.send(()).unwrap();
        });
        runtime.block_on(async {
            let polled = timeout(Duration::from_millis(5), &mut call).await;
            assert!(polled.is_err(), "it waits");
        });
        (call, go, told)
    }

    #[test]
    fn a_call_that_is_dropped_outside_a_runtime_goes_on() {
        let home = runtime();
        let (call, go, told) = waiting_on(&home);
        drop(call);
        go.send(()).unwrap();
        told.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn a_call_that_is_dropped_on_another_runtime_goes_on_on_its_own() {
        let (home, other) = (runtime(), runtime());
        let (call, go, told) = waiting_on(&home);
        other.block_on(async { drop(call) });
        drop(other);
        go.send(()).unwrap();
        told.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn a_call_that_is_dropped_after_the_shutdown_ends_without_a_panic() {
        let home = runtime();
        let (call, go, told) = waiting_on(&home);
        home.shutdown_timeout(LONG);
        drop(call);
        assert!(go.send(()).is_err(), "nothing of it is left");
        assert!(told.recv().is_err());
    }

    #[tokio::test]
    async fn a_call_that_panics_is_not_run_again() {
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let mut call = Call::new(Handle::current(), async { panic!("in the driver") });
        let poll = || pin!(&mut call).poll(&mut Context::from_waker(Waker::noop()));
        let caught: Result<Poll<()>, _> = catch_unwind(AssertUnwindSafe(poll));
        assert!(caught.is_err());
        let before = tasks();
        drop(call);
        assert_eq!(tasks(), before);
    }

    #[tokio::test]
    async fn its_answer_is_the_callers() {
        assert_eq!(Call::new(Handle::current(), async { 7 }).await, 7);
    }
}
