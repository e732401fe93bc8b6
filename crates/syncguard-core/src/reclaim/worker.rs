//! [`Reclaimer`]: one worker for each runtime; it releases a few lock ids at a time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::job::{Attempted, Job, pause_after};
use crate::backend::FenceToken;

/// The most releases in flight, so that callers' operations come first, also after an outage.
const MOST_IN_FLIGHT: usize = 16;

/// The workers. Each ends when it has nothing left to do.
pub(crate) struct Reclaimer<F: FenceToken>(Mutex<HashMap<Id, UnboundedSender<Job<F>>>>);

impl<F: FenceToken> Reclaimer<F> {
    /// Runs a job on a runtime. If that runtime has ended, the lock expires with its TTL.
    pub(super) fn settle(&self, runtime: &Handle, job: Job<F>, closed: &CancellationToken) {
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let job = match workers.get(&runtime.id()) {
            None => job,
            Some(worker) => match worker.send(job) {
                Ok(()) => return,
                Err(ended) => ended.0,
            },
        };
        workers.retain(|_, worker| !worker.is_closed());
        let (worker, jobs) = unbounded_channel();
        let _ = worker.send(job);
        workers.insert(runtime.id(), worker);
        // A runtime that has ended drops the worker and its jobs here.
        drop(workers);
        drop(runtime.spawn(Worker::new(jobs).run(closed.clone())));
    }
}

struct Worker<F: FenceToken> {
    arriving: UnboundedReceiver<Job<F>>,
    waiting: BinaryHeap<Reverse<ByDue<F>>>,
    in_flight: JoinSet<Attempted<F>>,
    /// How many releases may be in flight: fewer while the store fails.
    limit: usize,
    failures: u32,
    away_since: Option<Instant>,
    /// No attempt begins before.
    paused_until: Instant,
}

impl<F: FenceToken> Worker<F> {
    fn new(arriving: UnboundedReceiver<Job<F>>) -> Self {
        Self {
            arriving,
            waiting: BinaryHeap::new(),
            in_flight: JoinSet::new(),
            limit: MOST_IN_FLIGHT,
            failures: 0,
            away_since: None,
            paused_until: Instant::now(),
        }
    }

    async fn run(mut self, closed: CancellationToken) {
        loop {
            while let Ok(job) = self.arriving.try_recv() {
                self.wait_for(job);
            }
            let next = self.begin(closed.is_cancelled());
            if next.is_none() && self.in_flight.is_empty() {
                // Later jobs get a new worker.
                self.arriving.close();
                if self.arriving.is_empty() {
                    return;
                }
                continue;
            }
            tokio::select! {
                Some(ended) = self.in_flight.join_next() => {
                    // A backend that panicked dropped its job.
                    if let Ok(attempted) = ended {
                        self.after(attempted);
                    }
                }
                Some(job) = self.arriving.recv() => self.wait_for(job),
                () = until(next) => {}
                () = closed.cancelled(), if !closed.is_cancelled() => {}
            }
        }
    }

    fn wait_for(&mut self, job: Job<F>) {
        self.waiting.push(Reverse(ByDue(job)));
    }

    /// Starts jobs that are due, up to the limit, and returns when the next attempt is due. Once closed,
    /// all jobs are due: each attempt then fails, and the job ends.
    fn begin(&mut self, closed: bool) -> Option<Instant> {
        let now = Instant::now();
        while let Some(Reverse(ByDue(job))) = self.waiting.peek() {
            let due = job.due.max(self.paused_until);
            if !closed && due > now {
                return Some(due);
            }
            if self.in_flight.len() >= self.limit {
                break;
            }
            if let Some(Reverse(ByDue(job))) = self.waiting.pop() {
                self.in_flight.spawn(job.attempt());
            }
        }
        None
    }

    fn after(&mut self, attempted: Attempted<F>) {
        let job = match attempted {
            Attempted::Answered(job) => {
                (self.failures, self.away_since) = (0, None);
                self.limit = MOST_IN_FLIGHT.min(self.limit + 1);
                job
            }
            Attempted::Failed(job, code) => {
                let now = Instant::now();
                let since = *self.away_since.get_or_insert(now);
                self.paused_until = now + pause_after(self.failures, now - since);
                self.failures = self.failures.saturating_add(1);
                self.limit = 1.max(self.limit / 2);
                self.waiting
                    .retain(|Reverse(ByDue(job))| !job.gives_up(code));
                job
            }
        };
        if let Some(job) = job {
            self.wait_for(job);
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// A job, ordered by when it is due.
struct ByDue<F: FenceToken>(Job<F>);

impl<F: FenceToken> Ord for ByDue<F> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.due.cmp(&other.0.due)
    }
}

impl<F: FenceToken> PartialOrd for ByDue<F> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<F: FenceToken> PartialEq for ByDue<F> {
    fn eq(&self, other: &Self) -> bool {
        self.0.due == other.0.due
    }
}

impl<F: FenceToken> Eq for ByDue<F> {}

impl<F: FenceToken> Default for Reclaimer<F> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}
