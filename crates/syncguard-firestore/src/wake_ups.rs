//! Wake-ups for callers that wait: changes of their locks' documents, on one `Listen` stream.
//!
//! Each caller that waits has a target on the stream: the document of its lock. Firestore sends the
//! state of the document, then that the target is current, and then each change. A release deletes the
//! document. So the stream shows a release by any client, and an extend wakes nobody.

mod targets;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use gcloud_sdk::google::firestore::v1::listen_request::TargetChange as Change;
use gcloud_sdk::google::firestore::v1::target::{DocumentsTarget, TargetType};
use gcloud_sdk::google::firestore::v1::{ListenRequest, ListenResponse, Target};
use syncguard_core::backend::{Refusals, Watch, WatchKey};
use syncguard_core::{ErrorCode, LockError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tonic::Status;

use crate::error::{is_refusal, no_connection};
use crate::wake_ups::targets::{Seen, Targets};
use crate::wire::Wire;

/// How often to check whether the stream is unused, silent or abandoned.
const TICK: Duration = Duration::from_secs(5);

/// The longest that a stream may take to open, and a target to become current.
const REPLY_TIMEOUT: Duration = Duration::from_secs(4);

/// How long a refused caller waits until the stream shows the lock.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The stream of a backend and its clones. It exists while a caller waits.
#[derive(Clone, Default)]
pub(crate) struct WakeUps(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    stream: Option<Stream>,
    /// How many streams were opened.
    opened: u64,
    /// The target that was added last, to any stream.
    last_target: i32,
    refusals: Refusals,
    closed: bool,
}

/// A stream that is open or being opened. It ends when `requests` is dropped.
struct Stream {
    number: u64,
    requests: UnboundedSender<ListenRequest>,
    database: String,
    targets: Targets,
    /// A target was added since the last tick.
    used: bool,
    /// Resolves when the stream has ended.
    ended: oneshot::Receiver<()>,
}

impl WakeUps {
    /// Watches a document; `None` if the server gives no wake-ups.
    pub(crate) async fn watch(
        &self,
        wire: &Wire,
        document: String,
        deadline: Instant,
    ) -> Result<Option<Watch>, LockError> {
        let Some(mut watched) = self.add_target(wire, document) else {
            return Ok(None);
        };
        let deadline = deadline.min(Instant::now() + REPLY_TIMEOUT);
        let current = watched.seen.wait_for(|seen| seen.current);
        let current = timeout_at(deadline, current).await;
        match current.map(|seen| seen.is_ok()) {
            Ok(true) => Ok(Some(Watch::new(watched))),
            Ok(false) if self.state().refusals.in_force() => Ok(None),
            Ok(false) => Err(lost()),
            Err(_) => Err(LockError::new(
                ErrorCode::NetworkTimeout,
                "Firestore did not begin to report changes of the lock in time",
            )),
        }
    }

    /// Adds a target to the current stream, or to a new one.
    fn add_target(&self, wire: &Wire, document: String) -> Option<Watched> {
        let mut state = self.state();
        if state.closed || state.refusals.in_force() {
            return None;
        }
        let is_usable = |stream: &Stream| !stream.requests.is_closed();
        let mut reading = None;
        if !state.stream.as_ref().is_some_and(is_usable) {
            state.opened += 1;
            let (stream, reader) = Stream::new(wire, state.opened, Arc::downgrade(&self.0));
            state.stream = Some(stream);
            reading = Some(reader);
        }
        let target = state.last_target.checked_add(1).unwrap_or(1);
        state.last_target = target;
        let seen = state.stream.as_mut()?.add(target, document);
        drop(state);
        // Without the mutex: a runtime that is shutting down drops the task here.
        if let Some(reading) = reading {
            tokio::spawn(reading);
        }
        Some(Watched {
            wake_ups: self.clone(),
            target,
            seen,
            reported: 0,
            pause: FIRST_PAUSE,
        })
    }

    /// Ends the stream for good. Callers that wait then poll.
    pub(crate) async fn close(&self, deadline: Instant) {
        let stream = {
            let mut state = self.state();
            state.closed = true;
            state.stream.take()
        };
        if let Some(ended) = stream.map(|stream| stream.ended) {
            // If Firestore does not end its part, the reader ends at its next tick.
            let _ = timeout_at(deadline, ended).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    /// A stream, and the task that opens and reads it.
    fn new(
        wire: &Wire,
        number: u64,
        state: Weak<Mutex<State>>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (requests, receiver) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        let reader = Reader {
            wire: wire.clone(),
            number,
            state,
            heard: false,
            _end: end,
        };
        let stream = Self {
            number,
            requests,
            database: wire.names().database.clone(),
            targets: Targets::default(),
            used: false,
            ended,
        };
        (stream, reader.run(receiver))
    }

    fn add(&mut self, target: i32, document: String) -> watch::Receiver<Seen> {
        self.used = true;
        let documents = vec![document];
        self.send(Change::AddTarget(Target {
            target_id: target,
            target_type: Some(TargetType::Documents(DocumentsTarget { documents })),
            ..Target::default()
        }));
        self.targets.add(target)
    }

    fn remove(&mut self, target: i32) {
        // Firestore may have removed it.
        if self.targets.remove(target) {
            self.send(Change::RemoveTarget(target));
        }
    }

    fn send(&self, change: Change) {
        // If the stream has ended, its reader drops all targets.
        let _ = self.requests.send(ListenRequest {
            database: self.database.clone(),
            target_change: Some(change),
            ..ListenRequest::default()
        });
    }

    /// Whether there has been no watch since the last tick.
    fn is_unused(&mut self) -> bool {
        !std::mem::take(&mut self.used) && self.targets.is_empty()
    }
}

/// Reads a stream. When the stream ends, for any reason, all targets are lost.
struct Reader {
    wire: Wire,
    number: u64,
    state: Weak<Mutex<State>>,
    /// Firestore has sent something on the stream.
    heard: bool,
    _end: oneshot::Sender<()>,
}

impl Reader {
    async fn run(mut self, requests: UnboundedReceiver<ListenRequest>) {
        let result = self.read(requests).await;
        let Some(state) = self.state.upgrade() else {
            return;
        };
        let mut state = lock(&state);
        if self.heard {
            return;
        }
        if result.is_err_and(|status| is_refusal(&status)) {
            state.refusals.refused("firestore");
        } else {
            // Otherwise all waiting callers would try, one after the other.
            state.refusals.unreachable();
        }
    }

    async fn read(&mut self, requests: UnboundedReceiver<ListenRequest>) -> Result<(), Status> {
        let opening = timeout(REPLY_TIMEOUT, self.wire.listen(requests));
        let (mut responses, channel) = opening.await.map_err(|_| no_connection())??;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            tokio::select! {
                response = responses.message() => match response? {
                    Some(response) => self.note(response),
                    None => return Ok(()),
                },
                _ = ticks.tick() => {
                    if !self.heard || !self.wire.is_current(channel) || !self.is_needed() {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn note(&mut self, response: ListenResponse) {
        self.heard = true;
        let (Some(state), Some(response)) = (self.state.upgrade(), response.response_type) else {
            return;
        };
        let mut state = lock(&state);
        if let Some(stream) = self.own(&mut state.stream)
            && !stream.targets.note(response)
        {
            state.refusals.refused("firestore");
        }
    }

    /// Whether the stream continues. Ends an unused stream; Firestore then ends its part before the next tick.
    fn is_needed(&self) -> bool {
        let Some(state) = self.state.upgrade() else {
            return false;
        };
        let mut state = lock(&state);
        let Some(stream) = self.own(&mut state.stream) else {
            return false;
        };
        if stream.is_unused() {
            state.stream = None;
        }
        true
    }

    /// The stream that this reads, unless it was closed or replaced.
    fn own<'a>(&self, stream: &'a mut Option<Stream>) -> Option<&'a mut Stream> {
        stream.as_mut().filter(|it| it.number == self.number)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(state) = self.state.upgrade() {
            let mut state = lock(&state);
            if self.own(&mut state.stream).is_some() {
                state.stream = None;
            }
        }
    }
}

/// A lock that a caller waits for.
struct Watched {
    wake_ups: WakeUps,
    target: i32,
    seen: watch::Receiver<Seen>,
    /// The value of [`Seen::freed`] at the last wake-up.
    reported: u64,
    pause: Duration,
}

impl WatchKey for Watched {
    async fn changed(&mut self) -> Result<(), LockError> {
        let reported = self.reported;
        // A woken caller that is refused has found a new lock, which the stream will show. If that lock is
        // released before Firestore's next snapshot, the stream may show neither the lock nor its release.
        let shown = self
            .seen
            .wait_for(|seen| seen.exists || seen.freed != reported);
        if timeout(self.pause, shown).await.is_err() {
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            return Ok(());
        }
        let freed = self.seen.wait_for(|seen| seen.freed != reported).await;
        self.reported = freed.map_err(|_| lost())?.freed;
        self.pause = FIRST_PAUSE;
        Ok(())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.wake_ups.state().stream {
            stream.remove(self.target);
        }
    }
}

fn lost() -> LockError {
    LockError::new(
        ErrorCode::ServiceUnavailable,
        "the stream of changes was lost",
    )
}
