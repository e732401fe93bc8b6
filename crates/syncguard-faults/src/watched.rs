//! [`Watched`]: notes a client's calls, and lets its extends or releases meet faults that its others
//! do not.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use syncguard_core::{
    AcquireResult, Capabilities, ErrorCode, ExtendResult, LockBackend, LockError, LockId, LockInfo,
    LockInfoDebug, LockKey, Lookup, Operation, ReleaseResult, Ttl,
};
use tokio::sync::watch;

/// A store whose calls are noted. Clones share their notes.
#[derive(Debug, Clone)]
pub struct Watched<S> {
    store: S,
    notes: Arc<Mutex<Notes>>,
    /// Whether releases wait before they are made.
    releases_held: Arc<watch::Sender<bool>>,
}

/// What happens to extends alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExtendFault {
    /// They are made.
    #[default]
    None,
    /// They fail, and are not made.
    Refuse,
    /// They are made this much later.
    DelayRequest(Duration),
    /// They are made, and answered this much later.
    DelayReply(Duration),
}

/// One call of the store.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Which.
    pub operation: Operation,
    /// The lock, of calls that name it by its id.
    pub id: Option<LockId>,
    /// When it was made.
    pub began: Instant,
    /// When and how it ended, if it has.
    pub ended: Option<(Instant, Answer)>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The store did what was asked, or told.
    Done,
    /// The lock is someone else's, or gone.
    Refused,
    /// The store or the way to it failed.
    Failed(ErrorCode),
    /// Nobody waited for the answer any more.
    Dropped,
}

#[derive(Debug, Default)]
struct Notes {
    calls: Vec<Call>,
    on_extend: ExtendFault,
}

impl<S> Watched<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            notes: Arc::default(),
            releases_held: Arc::new(watch::Sender::new(false)),
        }
    }

    /// From now on extends meet this fault, those that are under way already excepted.
    pub fn on_extend(&self, fault: ExtendFault) {
        lock(&self.notes).on_extend = fault;
    }

    /// From now on releases are made no sooner than this is called again with `false`.
    pub(crate) fn hold_releases(&self, hold: bool) {
        self.releases_held.send_replace(hold);
    }

    /// The calls of an operation so far.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> Vec<Call> {
        let notes = lock(&self.notes);
        let calls = notes.calls.iter();
        calls
            .filter(|call| call.operation == operation)
            .copied()
            .collect()
    }

    /// The extends that have been answered like this.
    pub(crate) fn extends(&self, which: impl Fn(Answer) -> bool) -> Vec<Call> {
        let extends = self.calls(Operation::Extend).into_iter();
        extends
            .filter(|call| call.ended.is_some_and(|(_, answer)| which(answer)))
            .collect()
    }

    /// The calls of an operation that have not ended.
    pub(crate) fn in_flight(&self, operation: Operation) -> usize {
        let calls = self.calls(operation);
        calls.iter().filter(|call| call.ended.is_none()).count()
    }

    async fn noted<R>(
        &self,
        operation: Operation,
        id: Option<&LockId>,
        // Boxed, since a test has a small stack, and a driver's futures are large.
        call: Pin<Box<impl Future<Output = Result<R, LockError>>>>,
        refuses: impl Fn(&R) -> bool,
    ) -> Result<R, LockError> {
        let mut noting = Noting::begin(&self.notes, operation, id.copied());
        let answer = call.await;
        noting.answer = match &answer {
            Ok(answer) if refuses(answer) => Answer::Refused,
            Ok(_) => Answer::Done,
            Err(error) => Answer::Failed(error.code()),
        };
        answer
    }
}

/// Notes the end of a call when it is dropped, at the latest.
struct Noting<'a> {
    notes: &'a Mutex<Notes>,
    index: usize,
    answer: Answer,
}

impl<'a> Noting<'a> {
    fn begin(notes: &'a Mutex<Notes>, operation: Operation, id: Option<LockId>) -> Self {
        let mut locked = lock(notes);
        let index = locked.calls.len();
        locked.calls.push(Call {
            operation,
            id,
            began: Instant::now(),
            ended: None,
        });
        Self {
            notes,
            index,
            answer: Answer::Dropped,
        }
    }
}

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        if let Some(call) = lock(self.notes).calls.get_mut(self.index) {
            call.ended = Some((Instant::now(), self.answer));
        }
    }
}

fn lock(notes: &Mutex<Notes>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[deny(clippy::missing_trait_methods)]
impl<S: LockBackend> LockBackend for Watched<S> {
    type Fence = S::Fence;

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn clock_skew_ms(&self) -> Option<i64> {
        self.store.clock_skew_ms()
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult<S::Fence>, LockError> {
        let call = Box::pin(self.store.acquire(key, id, ttl));
        self.noted(Operation::Acquire, Some(id), call, AcquireResult::is_locked)
            .await
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        let mut held = self.releases_held.subscribe();
        let call = Box::pin(async {
            // Fails only without its sender, which `self` has.
            let _ = held.wait_for(|held| !held).await;
            self.store.release(id).await
        });
        self.noted(Operation::Release, Some(id), call, |answer| {
            !answer.is_released()
        })
        .await
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        let fault = lock(&self.notes).on_extend;
        let call = Box::pin(async {
            match fault {
                ExtendFault::None => {}
                ExtendFault::Refuse => {
                    let code = ErrorCode::ServiceUnavailable;
                    return Err(LockError::new(code, "refused by the test"));
                }
                ExtendFault::DelayRequest(by) => tokio::time::sleep(by).await,
                ExtendFault::DelayReply(by) => {
                    let answer = self.store.extend(id, ttl).await;
                    tokio::time::sleep(by).await;
                    return answer;
                }
            }
            self.store.extend(id, ttl).await
        });
        self.noted(Operation::Extend, Some(id), call, |answer| {
            answer.expires_at_ms().is_none()
        })
        .await
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        let call = Box::pin(self.store.is_locked(key));
        self.noted(Operation::IsLocked, None, call, |_| false).await
    }

    async fn lookup_raw(
        &self,
        by: Lookup<'_>,
    ) -> Result<Option<LockInfoDebug<S::Fence>>, LockError> {
        let call = Box::pin(self.store.lookup_raw(by));
        self.noted(Operation::Lookup, None, call, Option::is_none)
            .await
    }

    async fn lookup(&self, by: Lookup<'_>) -> Result<Option<LockInfo<S::Fence>>, LockError> {
        let call = Box::pin(self.store.lookup(by));
        self.noted(Operation::Lookup, None, call, Option::is_none)
            .await
    }
}
