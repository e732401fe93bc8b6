//! One call of the store: its deadline, its cancellation, its context in errors, its observers.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::backend::erased::BoxedResult;
use crate::backend::{AcquireResult, FenceToken, ListPage};
use crate::error::Operation;
use crate::observe::{Observers, OperationEnd, OperationOutcome};
use crate::store::Store;
use crate::{
    ErrorCode, ExtendResult, Finding, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl,
};

/// The deadline if the timeout is too long for the clock to count: longer than any caller waits.
const FAR_AHEAD: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

/// What ends a call early.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    /// The caller's token.
    pub(crate) token: Option<CancellationToken>,
    /// An earlier deadline than that of the operation timeout.
    pub(crate) deadline: Option<Instant>,
}

impl Limits {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.token
            .as_ref()
            .is_some_and(CancellationToken::is_cancelled)
    }

    /// Fails if the call must not start: outside a runtime, or if the token was cancelled before.
    pub(crate) fn check(&self) -> Result<Handle, LockError> {
        let runtime = current_runtime()?;
        match self.is_cancelled() {
            true => Err(aborted()),
            false => Ok(runtime),
        }
    }

    /// Resolves when the token is cancelled.
    pub(crate) async fn cancelled(&self) {
        match &self.token {
            Some(token) => token.cancelled().await,
            None => std::future::pending().await,
        }
    }
}

/// What a call is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    operation: Operation,
    key: Option<&'a LockKey>,
    lock_id: Option<&'a LockId>,
    ttl: Option<Ttl>,
}

impl<'a> Subject<'a> {
    pub(crate) fn new(operation: Operation) -> Self {
        Self {
            operation,
            key: None,
            lock_id: None,
            ttl: None,
        }
    }

    pub(crate) fn key(self, key: impl Into<Option<&'a LockKey>>) -> Self {
        let key = key.into();
        Self { key, ..self }
    }

    pub(crate) fn lock_id(self, lock_id: &'a LockId) -> Self {
        let lock_id = Some(lock_id);
        Self { lock_id, ..self }
    }

    pub(crate) fn ttl(self, ttl: Ttl) -> Self {
        let ttl = Some(ttl);
        Self { ttl, ..self }
    }

    /// Adds the operation, the key and the id to an error.
    pub(crate) fn describe(&self, error: LockError) -> LockError {
        let error = error.with_operation(self.operation);
        let error = match self.key {
            Some(key) => error.with_key(key),
            None => error,
        };
        match self.lock_id {
            Some(lock_id) => error.with_lock_id(lock_id),
            None => error,
        }
    }
}

impl Operation {
    /// Whether the call may change the store. If it is cut short, its outcome is then unknown.
    pub(crate) const fn mutates(self) -> bool {
        matches!(
            self,
            Self::Acquire | Self::Release | Self::Extend | Self::PurgeExpired
        )
    }
}

impl<F: FenceToken> Store<F> {
    /// Makes a call and notifies the observers of its end.
    pub(crate) async fn call<'a, T: HasOutcome>(
        &'a self,
        subject: Subject<'a>,
        limits: &Limits,
        send: impl FnOnce(Instant) -> BoxedResult<'a, T>,
    ) -> Result<T, LockError> {
        let begun = self.begin(subject);
        let result = self.bounded(&subject, limits, send).await;
        begun.end(&result);
        result
    }

    /// Makes a call, and ends it at its deadline or when its token is cancelled.
    pub(crate) async fn bounded<'a, T>(
        &'a self,
        subject: &Subject<'_>,
        limits: &Limits,
        send: impl FnOnce(Instant) -> BoxedResult<'a, T>,
    ) -> Result<T, LockError> {
        let operation = subject.operation;
        // Known to have no effect: nothing was sent, or the call only reads.
        let unknown_if_sent = |error: LockError| match operation.mutates() {
            true => error.with_outcome_unknown(),
            false => error,
        };
        let sent = async {
            // A call that never waits (a store in this process, or a refused call) still lets other tasks run.
            consume_budget().await;
            limits.check()?;
            if operation != Operation::Close && self.closed.is_cancelled() {
                return Err(closed());
            }
            let now = Instant::now();
            let deadline = self.deadline(now, limits);
            let mut answer = send(deadline);
            // A store in this process answers at once, and then needs no timer.
            if let Poll::Ready(answer) = poll_once(&mut answer).await {
                return answer;
            }
            tokio::select! {
                biased;
                () = limits.cancelled(), if limits.token.is_some() => {
                    Err(unknown_if_sent(aborted()))
                }
                answer = timeout_at(deadline, answer) => match answer {
                    Ok(answer) => answer,
                    Err(_) => Err(unknown_if_sent(timed_out(deadline.duration_since(now)))),
                },
            }
        };
        sent.await.map_err(|error| subject.describe(error))
    }

    pub(crate) fn deadline(&self, now: Instant, limits: &Limits) -> Instant {
        let own = after(now, self.settings.operation_timeout);
        limits.deadline.map_or(own, |deadline| deadline.min(own))
    }

    /// Parses an argument, and notifies the observers if it is bad.
    pub(crate) fn admit<T>(
        &self,
        subject: Subject<'_>,
        argument: Result<T, LockError>,
    ) -> Result<T, LockError> {
        argument.map_err(|error| self.refused(subject, error))
    }

    /// The error of a call that was not made. The observers are notified.
    pub(crate) fn refused(&self, subject: Subject<'_>, error: LockError) -> LockError {
        self.begin(subject).fail(&error);
        subject.describe(error)
    }

    /// The call begins.
    pub(crate) fn begin<'a>(&'a self, subject: Subject<'a>) -> Begun<'a> {
        let observers = &self.observers;
        Begun {
            started: (!observers.is_empty()).then(Instant::now),
            backend: self.capabilities.backend,
            observers,
            subject,
        }
    }
}

/// A call in flight. However it ends, the observers are notified.
#[derive(Debug)]
pub(crate) struct Begun<'a> {
    observers: &'a Observers,
    backend: &'static str,
    subject: Subject<'a>,
    /// `None` without observers, and after the end was reported.
    started: Option<Instant>,
}

impl Begun<'_> {
    pub(crate) fn end<T: HasOutcome>(mut self, result: &Result<T, LockError>) {
        match result {
            Ok(answer) => self.report(|| answer.outcome()),
            Err(error) => self.fail(error),
        }
    }

    fn fail(mut self, error: &LockError) {
        self.report(|| OperationOutcome::Failed {
            code: error.code(),
            outcome_unknown: error.outcome_unknown(),
        });
    }

    fn report(&mut self, outcome: impl FnOnce() -> OperationOutcome) {
        let Some(started) = self.started.take() else {
            return;
        };
        let Subject {
            operation,
            key,
            lock_id,
            ttl,
        } = self.subject;
        let end = OperationEnd {
            backend: self.backend,
            operation,
            key,
            lock_id,
            ttl,
            outcome: outcome(),
            duration: started.elapsed(),
        };
        self.observers
            .notify(|observer| observer.operation_ended(&end));
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let outcome_unknown = self.subject.operation.mutates();
        self.report(|| OperationOutcome::Abandoned { outcome_unknown });
    }
}

/// What observers learn about a result.
pub(crate) trait HasOutcome {
    fn outcome(&self) -> OperationOutcome {
        OperationOutcome::Ok
    }
}

impl<F> HasOutcome for AcquireResult<F> {
    fn outcome(&self) -> OperationOutcome {
        match self {
            Self::Acquired(_) => OperationOutcome::Ok,
            Self::Locked { .. } => OperationOutcome::Locked,
        }
    }
}

impl HasOutcome for ReleaseResult {
    fn outcome(&self) -> OperationOutcome {
        match self {
            Self::Released => OperationOutcome::Ok,
            Self::NotHeld { reason } => OperationOutcome::NotHeld(*reason),
        }
    }
}

impl HasOutcome for ExtendResult {
    fn outcome(&self) -> OperationOutcome {
        match self {
            Self::Extended { .. } => OperationOutcome::Ok,
            Self::NotHeld { reason } => OperationOutcome::NotHeld(*reason),
        }
    }
}

impl HasOutcome for () {}
impl HasOutcome for bool {}
impl HasOutcome for u64 {}
impl HasOutcome for Vec<Finding> {}
impl<F: FenceToken> HasOutcome for Option<LockInfoDebug<F>> {}
impl<F: FenceToken> HasOutcome for ListPage<F> {}

/// Polls the answer, without a wait for it.
async fn poll_once<T>(answer: &mut BoxedResult<'_, T>) -> Poll<Result<T, LockError>> {
    poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await
}

/// The time after this duration, or the latest that the clock can count.
pub(crate) fn after(now: Instant, timeout: Duration) -> Instant {
    now.checked_add(timeout).unwrap_or_else(|| now + FAR_AHEAD)
}

pub(crate) fn aborted() -> LockError {
    LockError::new(ErrorCode::Aborted, "cancelled by the caller's token")
}

fn closed() -> LockError {
    LockError::new(ErrorCode::ServiceUnavailable, "this `Locks` was closed")
}

fn timed_out(timeout: Duration) -> LockError {
    LockError::new(
        ErrorCode::NetworkTimeout,
        format!("no answer within {timeout:.1?}"),
    )
}

pub(crate) fn current_runtime() -> Result<Handle, LockError> {
    Handle::try_current().map_err(|error| {
        let message = "operations must run inside a Tokio runtime";
        LockError::new(ErrorCode::Internal, message).with_source(error)
    })
}
