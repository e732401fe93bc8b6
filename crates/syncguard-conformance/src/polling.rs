//! Halting or dropping a future at a chosen point.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{MaybeDone, join_all, maybe_done};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{Bench, Harness, Outcome};

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
/// has. Shorter than the time after which any store ends an idle transaction: a call that was halted for longer may
/// rightly fail.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same for several calls, from the first one's first poll.
const PATIENCE_WITH_ALL: Duration = Duration::from_millis(1_500);

/// The same once that time has passed without an end.
const LITTLE_PATIENCE: Duration = Duration::from_millis(200);

/// More polls than a call has steps; a call that has ended by then is not halted.
pub(crate) const HALTS: usize = 12;

/// The calls that a case halts, and whether all other work ended while they were halted.
#[derive(Debug)]
pub(crate) struct Halts {
    one_at_a_time: bool,
    patience: Duration,
    undecided: bool,
}

impl Halts {
    pub(crate) fn new<H: Harness>(bench: &Bench<H>) -> Self {
        Self {
            one_at_a_time: bench.harness().one_call_at_a_time(),
            patience: PATIENCE,
            undecided: false,
        }
    }

    /// For many calls at once, on leases that are in the tolerance for one second.
    pub(crate) fn in_tolerance<H: Harness>(bench: &Bench<H>) -> Self {
        let mut halts = Self::new(bench);
        if halts.one_at_a_time {
            halts.patience = LITTLE_PATIENCE;
        }
        halts
    }

    /// Passed, unless a race is undecided: see [`go_on`](Self::go_on).
    pub(crate) fn outcome(&self) -> Outcome {
        if self.undecided {
            Outcome::Skipped("other calls did not end while a call was halted")
        } else {
            Outcome::Passed
        }
    }

    /// Halts `call` after `polls` polls, runs `meanwhile`, and lets the call continue.
    pub(crate) async fn halt<F: Future, M: Future>(
        &mut self,
        polls: usize,
        call: F,
        meanwhile: M,
    ) -> (F::Output, M::Output) {
        let (mut call, mut meanwhile) = (pin!(call), pin!(meanwhile));
        match poll_up_to(polls, call.as_mut()).await {
            Poll::Ready(answer) => (answer, meanwhile.await),
            Poll::Pending => {
                let waited = self.patience;
                match self.end(waited, meanwhile.as_mut()).await {
                    Some(done) => (call.await, done),
                    None => {
                        let both = async { tokio::join!(call, meanwhile) };
                        self.go_on(waited, both).await
                    }
                }
            }
        }
    }

    /// Halts several equal calls: the first before its first poll, and each other after one poll more than the one
    /// before it. Then runs `meanwhile`, and lets all of them continue. Returns also whether a call had begun and not
    /// ended when it was halted.
    ///
    /// For calls that change what all of them work on. Between any two of their steps there is a first call that halts
    /// there, and the calls before it have not come as far.
    pub(crate) async fn halt_all<F: Future, M: Future>(
        &mut self,
        calls: impl IntoIterator<Item = F>,
        meanwhile: M,
    ) -> (Vec<F::Output>, M::Output, bool) {
        let calls = calls.into_iter().map(|call| Box::pin(maybe_done(call)));
        let mut halted: Vec<_> = calls.collect();
        let end = Instant::now() + PATIENCE_WITH_ALL;
        for (polls, call) in halted.iter_mut().enumerate() {
            // A call may wait for something that a halted one has, such as a latch or a connection.
            let polled = timeout_at(end, poll_up_to(polls, call.as_mut())).await;
            if polled.is_err() {
                self.undecided |= !self.one_at_a_time;
                break;
            }
        }
        let is_midway = |call: &Pin<Box<MaybeDone<F>>>| matches!(**call, MaybeDone::Future(_));
        let midway = halted.iter().skip(1).any(is_midway);
        let mut meanwhile = pin!(meanwhile);
        let left = end.saturating_duration_since(Instant::now());
        let done = self.end(left, meanwhile.as_mut()).await;
        let all = join_all(halted.iter_mut().map(Pin::as_mut));
        let done = match done {
            Some(done) => {
                all.await;
                done
            }
            None => {
                let both = async { tokio::join!(all, meanwhile) };
                self.go_on(PATIENCE_WITH_ALL, both).await.1
            }
        };
        let answers = halted
            .iter_mut()
            .filter_map(|call| call.as_mut().take_output());
        (answers.collect(), done, midway)
    }

    /// Runs the other work, if it ends while the call is halted.
    async fn end<M: Future>(
        &mut self,
        patience: Duration,
        meanwhile: Pin<&mut M>,
    ) -> Option<M::Output> {
        let done = timeout(patience, meanwhile).await.ok();
        if done.is_none() {
            self.patience = LITTLE_PATIENCE;
        }
        done
    }

    /// Lets halted calls go on beside the other work, which did not end in the time `waited`. If all clients share one
    /// connection and the other work is quick now, it had only waited for the connection. Otherwise the race is
    /// undecided.
    async fn go_on<O>(&mut self, waited: Duration, both: impl Future<Output = O>) -> O {
        let began = Instant::now();
        let done = both.await;
        self.undecided |= !self.one_at_a_time || began.elapsed() > waited / 2;
        done
    }
}

/// Polls a future once.
pub(crate) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}
