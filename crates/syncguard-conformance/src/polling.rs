//! Halting or dropping a future at a chosen point.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join_all, maybe_done};

/// Polls a future up to `times` times, when it is woken, and then drops it. Returns its output if it ended
/// before.
pub(crate) async fn poll_times<F: IntoFuture>(times: usize, future: F) -> Option<F::Output> {
    match poll_up_to(times, pin!(future.into_future())).await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Polls a future up to `times` times, when it is woken, and keeps it.
pub(crate) async fn poll_up_to<F: Future>(
    times: usize,
    mut future: Pin<&mut F>,
) -> Poll<F::Output> {
    let mut left = times;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(Poll::Pending);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Poll::Ready(output)),
            Poll::Pending if left == 0 => Poll::Ready(Poll::Pending),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// How long a call stays halted if the other work does not end: that work may wait for a latch that the halted call
/// has.
const PATIENCE: Duration = Duration::from_millis(100);

/// Halts `call` after `polls` polls, runs `meanwhile`, and lets the call continue.
pub(crate) async fn halted<F: Future, M: Future>(
    polls: usize,
    call: F,
    meanwhile: M,
) -> (F::Output, M::Output) {
    let (mut call, mut meanwhile) = (pin!(call), pin!(meanwhile));
    let early = poll_up_to(polls, call.as_mut()).await;
    let done = tokio::time::timeout(PATIENCE, meanwhile.as_mut()).await;
    match (early, done) {
        (Poll::Ready(answer), Ok(done)) => (answer, done),
        (Poll::Ready(answer), Err(_)) => (answer, meanwhile.await),
        (Poll::Pending, Ok(done)) => (call.await, done),
        (Poll::Pending, Err(_)) => tokio::join!(call, meanwhile),
    }
}

/// Halts several equal calls: the first before its first poll, and each other after one poll more than the one before
/// it. Then runs `meanwhile`, and lets all of them continue.
///
/// For calls that change what all of them work on. Between any two of their steps there is a first call that halts
/// there, and the calls before it have not come as far.
pub(crate) async fn all_halted<F: Future, M: Future>(
    calls: impl IntoIterator<Item = F>,
    meanwhile: M,
) -> (Vec<F::Output>, M::Output) {
    let mut halted: Vec<_> = calls
        .into_iter()
        .map(|call| Box::pin(maybe_done(call)))
        .collect();
    for (polls, call) in halted.iter_mut().enumerate() {
        // A call may wait for something that a halted one has, such as a connection.
        let _ = tokio::time::timeout(PATIENCE, poll_up_to(polls, call.as_mut())).await;
    }
    let mut meanwhile = pin!(meanwhile);
    let done = tokio::time::timeout(PATIENCE, meanwhile.as_mut()).await;
    let all = join_all(halted.iter_mut().map(Pin::as_mut));
    let done = match done {
        Ok(done) => {
            all.await;
            done
        }
        Err(_) => tokio::join!(all, meanwhile).1,
    };
    let answers = halted
        .iter_mut()
        .filter_map(|call| call.as_mut().take_output());
    (answers.collect(), done)
}

/// Polls a future once.
pub(crate) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}
