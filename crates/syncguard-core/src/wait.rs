//! Waiting for a key: attempts, pauses, and when to give up.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::backend::FenceToken;
use crate::call::{Limits, Subject, aborted, after};
use crate::error::{Operation, WaitSummary};
use crate::guard::attempt;
use crate::observe::{WaitEnd, WaitOutcome, WaitStart};
use crate::{ErrorCode, LockError, LockGuard, LockKey, LockOptions, Locks, Ttl};

/// Time kept back from a delay cut short, so that one more attempt fits in before the timeout.
const LAST_ATTEMPT: Duration = Duration::from_millis(50);

/// Waits for a key and acquires it.
pub(crate) async fn wait<F: FenceToken>(
    locks: &Locks<F>,
    key: Result<LockKey, LockError>,
    options: &LockOptions,
) -> Result<LockGuard<F>, LockError> {
    let limits = Limits {
        token: options.token.clone(),
        deadline: None,
    };
    // What keeps it from beginning at all.
    let refused = |subject, error| {
        let error = locks.refused(subject, error);
        error.with_operation(Operation::Lock)
    };
    let subject = Subject::new(Operation::Acquire);
    let key = key.map_err(|error| refused(subject, error))?;
    let subject = subject.key(&key);
    let ready = || limits.check().and_then(|_| options.ttl.clone());
    let ttl = ready().map_err(|error| refused(subject, error))?;
    let mut waiting = Waiting::start(locks, &key);
    let result = waiting.contend(ttl, options, &limits).await;
    waiting.end(&result);
    result
}

/// A wait in progress. Its end is reported to the observers, whatever that is.
struct Waiting<'a, F: FenceToken> {
    locks: &'a Locks<F>,
    key: &'a LockKey,
    started: Instant,
    attempts: u32,
    outcome: WaitOutcome,
}

impl<'a, F: FenceToken> Waiting<'a, F> {
    fn start(locks: &'a Locks<F>, key: &'a LockKey) -> Self {
        let start = WaitStart {
            backend: locks.store().capabilities.backend,
            key,
        };
        locks
            .observers()
            .notify(|observer| observer.wait_started(&start));
        Self {
            locks,
            key,
            started: Instant::now(),
            attempts: 0,
            outcome: WaitOutcome::Abandoned,
        }
    }

    /// Tries until the options say to stop.
    async fn contend(
        &mut self,
        ttl: Ttl,
        options: &LockOptions,
        limits: &Limits,
    ) -> Result<LockGuard<F>, LockError> {
        let deadline = after(self.started, options.timeout);
        let mut retries = 0;
        loop {
            self.attempts = self.attempts.saturating_add(1);
            match attempt(self.locks, self.key, ttl, options, Some(deadline)).await {
                Ok(attempt) => {
                    if let Some(guard) = attempt.acquired() {
                        return Ok(guard);
                    }
                }
                Err(error) if is_timeout(&error) && Instant::now() >= deadline => {
                    return Err(self.unanswered(error));
                }
                Err(error) => return Err(error.with_wait(self.summary())),
            }
            if retries >= options.max_retries {
                return Err(self.timed_out("the key was still held after the last retry"));
            }
            let mut pause = options
                .backoff
                .delay(options.jitter, options.retry_delay, retries);
            let left = deadline.saturating_duration_since(Instant::now());
            if pause >= left {
                // Too long: ask once more a little before the timeout instead.
                pause = left.saturating_sub(LAST_ATTEMPT);
                if pause.is_zero() {
                    return Err(self.timed_out("the key stayed held until the timeout"));
                }
            }
            tokio::select! {
                biased;
                () = limits.cancelled() => {
                    let error = aborted().with_operation(Operation::Lock);
                    return Err(error.with_key(self.key).with_wait(self.summary()));
                }
                () = sleep(pause) => {}
            }
            retries += 1;
        }
    }

    fn summary(&self) -> WaitSummary {
        WaitSummary {
            attempts: self.attempts,
            waited: self.started.elapsed(),
        }
    }

    fn timed_out(&self, cause: &str) -> LockError {
        let summary = self.summary();
        let WaitSummary { attempts, waited } = summary;
        let plural = if attempts == 1 { "" } else { "s" };
        let message = format!("gave up after {attempts} attempt{plural} in {waited:.1?}: {cause}");
        LockError::new(ErrorCode::AcquisitionTimeout, message)
            .with_operation(Operation::Lock)
            .with_key(self.key)
            .with_wait(summary)
    }

    /// The timeout came during an attempt. What is known of that attempt holds for the wait.
    fn unanswered(&self, attempt: LockError) -> LockError {
        let mut error = self.timed_out("the last attempt had no answer");
        if attempt.outcome_unknown() {
            error = error.with_outcome_unknown();
        }
        if let Some(id) = attempt.lock_id() {
            error = error.with_lock_id(id);
        }
        error.with_source(attempt)
    }

    fn end(mut self, result: &Result<LockGuard<F>, LockError>) {
        self.outcome = match result {
            Ok(_) => WaitOutcome::Granted,
            Err(error) => WaitOutcome::Failed(error.code()),
        };
    }
}

impl<F: FenceToken> Drop for Waiting<'_, F> {
    fn drop(&mut self) {
        let observers = self.locks.observers();
        if observers.is_empty() {
            return;
        }
        let end = WaitEnd {
            backend: self.locks.store().capabilities.backend,
            key: self.key,
            summary: self.summary(),
            outcome: self.outcome,
        };
        observers.notify(|observer| observer.wait_ended(&end));
    }
}

fn is_timeout(error: &LockError) -> bool {
    error.code() == ErrorCode::NetworkTimeout
}
