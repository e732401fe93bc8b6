//! [`Watched`]: a backend that records its extends and releases, and causes faults of only these.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use syncguard_core::backend::{ExtendRequest, LockBackend, ReleaseRequest};
use syncguard_core::observe::Operation;
use syncguard_core::{ErrorCode, ExtendResult, LockError, LockId, ReleaseResult, forward_calls};
use tokio::sync::watch;

/// A backend whose extends and releases are noted.
#[derive(Debug)]
pub(crate) struct Watched<B> {
    backend: B,
    notes: Mutex<Notes>,
    /// Whether releases wait before they are sent.
    releases_held: watch::Sender<bool>,
}

/// A fault that affects only extends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ExtendFault {
    /// Extends pass.
    #[default]
    None,
    /// Extends fail without being sent.
    Refuse,
    /// Extends are sent this much later.
    DelayRequest(Duration),
    /// Extends are sent at once, and their replies arrive this much later.
    DelayReply(Duration),
}

/// One extend or release.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotedCall {
    operation: Operation,
    /// The lock.
    pub(crate) id: LockId,
    /// When it began.
    pub(crate) began: Instant,
    /// When and how it ended, if it has.
    pub(crate) ended: Option<(Instant, CallEnd)>,
}

/// How an extend or release ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// The store replied that it applied the call.
    Applied,
    /// The store replied that the id holds no lock.
    NotHeld,
    /// The store or the network failed.
    Failed(ErrorCode),
    /// The caller dropped the future.
    Abandoned,
}

#[derive(Debug, Default)]
struct Notes {
    calls: Vec<NotedCall>,
    on_extend: ExtendFault,
}

impl<B> Watched<B> {
    pub(crate) fn new(backend: B) -> Self {
        Self {
            backend,
            notes: Mutex::default(),
            releases_held: watch::Sender::new(false),
        }
    }

    /// Replaces the fault that affects extends. Those in flight are not affected.
    pub(crate) fn on_extend(&self, fault: ExtendFault) {
        lock(&self.notes).on_extend = fault;
    }

    /// Holds releases until it is called with `false`.
    pub(crate) fn hold_releases(&self, hold: bool) {
        self.releases_held.send_replace(hold);
    }

    /// All extends so far.
    pub(crate) fn extends(&self) -> Vec<NotedCall> {
        self.calls(Operation::Extend)
    }

    /// The extends that ended like this.
    pub(crate) fn ended_extends(&self, how: impl Fn(CallEnd) -> bool) -> Vec<NotedCall> {
        let extends = self.extends().into_iter();
        extends
            .filter(|call| call.ended.is_some_and(|(_, end)| how(end)))
            .collect()
    }

    /// How many extends have not ended.
    pub(crate) fn extends_in_flight(&self) -> usize {
        let extends = self.extends();
        extends.iter().filter(|call| call.ended.is_none()).count()
    }

    /// All releases so far.
    pub(crate) fn releases(&self) -> Vec<NotedCall> {
        self.calls(Operation::Release)
    }

    fn calls(&self, operation: Operation) -> Vec<NotedCall> {
        let notes = lock(&self.notes);
        let calls = notes.calls.iter();
        calls
            .filter(|call| call.operation == operation)
            .copied()
            .collect()
    }

    async fn noted<R>(
        &self,
        operation: Operation,
        id: &LockId,
        // Boxed: a test has a small stack, and a driver's futures are large.
        call: Pin<Box<impl Future<Output = Result<R, LockError>>>>,
        is_applied: impl Fn(&R) -> bool,
    ) -> Result<R, LockError> {
        let mut note = OpenNote::begin(&self.notes, operation, *id);
        let answer = call.await;
        note.end = match &answer {
            Ok(answer) if is_applied(answer) => CallEnd::Applied,
            Ok(_) => CallEnd::NotHeld,
            Err(error) => CallEnd::Failed(error.code()),
        };
        answer
    }
}

/// The note of a call in flight. Dropping it notes the end of the call.
struct OpenNote<'a> {
    notes: &'a Mutex<Notes>,
    index: usize,
    end: CallEnd,
}

impl<'a> OpenNote<'a> {
    fn begin(notes: &'a Mutex<Notes>, operation: Operation, id: LockId) -> Self {
        let mut locked = lock(notes);
        let index = locked.calls.len();
        locked.calls.push(NotedCall {
            operation,
            id,
            began: Instant::now(),
            ended: None,
        });
        Self {
            notes,
            index,
            end: CallEnd::Abandoned,
        }
    }
}

impl Drop for OpenNote<'_> {
    fn drop(&mut self) {
        if let Some(call) = lock(self.notes).calls.get_mut(self.index) {
            call.ended = Some((Instant::now(), self.end));
        }
    }
}

fn lock(notes: &Mutex<Notes>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend> LockBackend for Watched<B> {
    type Fence = B::Fence;

    forward_calls! { |watched| &watched.backend =>
        capabilities acquire lookup_raw is_locked watch list attach preflight purge_expired close
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        let mut held = self.releases_held.subscribe();
        let id = request.id;
        let call = Box::pin(async {
            // It fails only without its sender, which `self` has.
            let _ = held.wait_for(|held| !held).await;
            self.backend.release(request).await
        });
        let is_applied = ReleaseResult::is_released;
        self.noted(Operation::Release, id, call, is_applied).await
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        let fault = lock(&self.notes).on_extend;
        let id = request.id;
        let call = Box::pin(async {
            match fault {
                ExtendFault::None => {}
                ExtendFault::Refuse => {
                    let code = ErrorCode::ServiceUnavailable;
                    return Err(LockError::new(code, "refused by the test"));
                }
                ExtendFault::DelayRequest(by) => tokio::time::sleep(by).await,
                ExtendFault::DelayReply(by) => {
                    let answer = self.backend.extend(request).await;
                    tokio::time::sleep(by).await;
                    return answer;
                }
            }
            self.backend.extend(request).await
        });
        let is_applied = ExtendResult::is_extended;
        self.noted(Operation::Extend, id, call, is_applied).await
    }
}
