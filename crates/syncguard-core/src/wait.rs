//! Waiting for a key: attempts, pauses, and when to stop.

use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, sleep_until};

use crate::backend::erased::BoxedResult;
use crate::backend::{FenceToken, Watch, WatchRequest};
use crate::call::{Limits, Subject, aborted, after};
use crate::error::{Operation, WaitSummary};
use crate::guard::attempt;
use crate::line::{InLine, Place};
use crate::observe::{WaitEnd, WaitOutcome, WaitStart};
use crate::{
    Attempt, Backoff, ErrorCode, Jitter, LockError, LockGuard, LockKey, LockOptions, Locks, Ttl,
};

/// When the timeout cuts a delay short, this much time is left for one more attempt.
const LAST_ATTEMPT: Duration = Duration::from_millis(50);

/// The shortest pause.
const SHORTEST: Duration = Duration::from_millis(1);

/// How many wake-ups a wait follows at once; beyond that, one per millisecond. Otherwise a store whose
/// watches always resolve at once would be asked without a pause.
const LEAST_WAKE_UPS: u32 = 16;

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
    // An error that keeps the wait from starting.
    let refused = |subject, error| {
        let error = locks.store().refused(subject, error);
        error.with_operation(Operation::Lock)
    };
    let subject = Subject::new(Operation::Acquire);
    let key = key.map_err(|error| refused(subject, error))?;
    let subject = subject.key(&key);
    let ready = || limits.check().and_then(|_| options.ttl.clone());
    let ttl = ready().map_err(|error| refused(subject, error))?;
    let place = locks.lines().enter(&key);
    let (in_line, ahead) = place.wait();
    let mut waiting = Waiting::start(locks, &key, options, ahead);
    let result = waiting.contend(ttl, &limits, &place, &in_line).await;
    drop(in_line);
    waiting.end(&result);
    let mut guard = result?;
    guard.keep(place);
    Ok(guard)
}

/// A wait in progress. However it ends, the observers are notified.
struct Waiting<'a, F: FenceToken> {
    locks: &'a Locks<F>,
    key: &'a LockKey,
    options: &'a LockOptions,
    started: Instant,
    deadline: Instant,
    summary: WaitSummary,
    /// How many pauses in a row ended at the time at which the store had announced a grant.
    expired: u32,
    /// Why the last attempt failed, if the options allow retries of failures.
    failure: Option<LockError>,
    /// The store's last reply was that the key is held.
    is_held: bool,
    outcome: WaitOutcome,
}

/// Why a pause ended.
enum Woken {
    /// A release of this process ended.
    Freed,
    /// The store says that the key may be free. `false` if the watch was lost.
    Changed(bool),
    /// The time has come at which the store had announced a grant.
    Expired,
    /// A delay has passed: time to poll.
    Poll,
    /// The same, but for the callers behind this one, whose options have shorter delays.
    PollForOthers,
}

impl<'a, F: FenceToken> Waiting<'a, F> {
    fn start(
        locks: &'a Locks<F>,
        key: &'a LockKey,
        options: &'a LockOptions,
        ahead: usize,
    ) -> Self {
        let start = WaitStart {
            backend: locks.store().capabilities.backend,
            key,
            ahead,
        };
        let observers = &locks.store().observers;
        observers.notify(|observer| observer.wait_started(&start));
        let started = Instant::now();
        Self {
            locks,
            key,
            options,
            started,
            deadline: after(started, options.timeout),
            summary: WaitSummary::default(),
            expired: 0,
            failure: None,
            is_held: false,
            outcome: WaitOutcome::Abandoned,
        }
    }

    /// Waits for its turn, then asks until the options end the wait.
    async fn contend(
        &mut self,
        ttl: Ttl,
        limits: &Limits,
        place: &Place<F>,
        in_line: &InLine<'_, F>,
    ) -> Result<LockGuard<F>, LockError> {
        let turn = in_line.try_turn();
        let mut ask = turn.is_some();
        let _turn = match turn {
            Some(turn) => turn,
            None => self.turn(limits, place, in_line).await?,
        };
        // A caller that comes to an empty line asks at once. A caller behind one that was granted the key
        // waits for that one's release.
        ask = ask || place.held_for().is_none();
        let mut free_in = None;
        let mut hint = Hint::None;
        loop {
            if ask {
                if let Some(pause) = place.stand_back() {
                    self.stand_back(pause, limits).await?;
                }
                let ours = place.held_for().is_some();
                let asked = Instant::now();
                match self.ask(ttl).await? {
                    Some(Attempt::Acquired(guard)) => {
                        place.hold(&guard, Some(asked));
                        return Ok(guard);
                    }
                    Some(Attempt::Locked { free_in: told }) => {
                        free_in = told;
                        if !ours {
                            place.refused(asked.elapsed());
                        }
                    }
                    // A watch would report at once that the key is free.
                    None => (free_in, hint) = (None, Hint::Unavailable),
                }
                if self
                    .options
                    .max_retries
                    .is_some_and(|most| self.summary.polls >= most)
                {
                    return Err(self.timed_out(match self.failure {
                        Some(_) => "the store still failed after the last retry",
                        None => "the key was still held after the last retry",
                    }));
                }
            }
            ask = true;
            // While a guard of this process holds the key, wait only for its release.
            if matches!(hint, Hint::None) && place.held_for().is_none() {
                hint = self.hint();
            }
            match self.pause(limits, place, free_in, &mut hint).await? {
                Woken::Freed => self.summary.hand_overs = self.summary.hand_overs.saturating_add(1),
                Woken::Changed(in_place) => {
                    self.summary.wake_ups = self.summary.wake_ups.saturating_add(1);
                    if !in_place || self.summary.wake_ups >= self.trusted_wake_ups() {
                        hint = Hint::None;
                    }
                }
                Woken::Expired | Woken::PollForOthers => {}
                Woken::Poll => {
                    self.summary.polls = self.summary.polls.saturating_add(1);
                    if matches!(hint, Hint::Unavailable) {
                        hint = Hint::None;
                    }
                }
            }
        }
    }

    /// Waits until nobody is ahead of the caller.
    async fn turn<'p>(
        &self,
        limits: &Limits,
        place: &Place<F>,
        in_line: &InLine<'p, F>,
    ) -> Result<SemaphorePermit<'p>, LockError> {
        tokio::select! {
            biased;
            () = limits.cancelled() => Err(self.aborted()),
            turn = in_line.turn() => Ok(turn),
            () = sleep_until(self.deadline) => Err(match place.held_for() {
                Some(_) => self.held_until_the_timeout(place),
                None => self.timed_out("the caller waited behind others of this process until the timeout"),
            }),
        }
    }

    /// Pauses for callers of other processes.
    async fn stand_back(&self, pause: Duration, limits: &Limits) -> Result<(), LockError> {
        tokio::select! {
            biased;
            () = limits.cancelled() => Err(self.aborted()),
            () = sleep_until(self.deadline.min(Instant::now() + pause)) => Ok(()),
        }
    }

    /// Asks once. `None` if the attempt failed and the options allow retries of failures.
    async fn ask(&mut self, ttl: Ttl) -> Result<Option<Attempt<F>>, LockError> {
        self.summary.attempts = self.summary.attempts.saturating_add(1);
        let deadline = Some(self.deadline);
        match attempt(self.locks, self.key, ttl, self.options, deadline).await {
            Ok(attempt) => {
                self.failure = None;
                self.is_held = matches!(attempt, Attempt::Locked { .. });
                Ok(Some(attempt))
            }
            Err(error) if is_timeout(&error) && Instant::now() >= self.deadline => {
                self.failure = Some(error);
                Err(self.timed_out("the last attempt got no reply"))
            }
            Err(error) if self.options.retry_failures && error.is_retryable() => {
                self.is_held = false;
                self.failure = Some(error);
                Ok(None)
            }
            Err(error) => Err(error.with_wait(self.summary())),
        }
    }

    /// Begins to watch the key, if the store can.
    fn hint(&self) -> Hint<'a> {
        let (store, key) = (self.locks.store(), self.key);
        if !store.settings.wake_ups || self.summary.wake_ups >= self.trusted_wake_ups() {
            return Hint::Unavailable;
        }
        let limits = Limits {
            token: None,
            deadline: Some(self.deadline),
        };
        Hint::Placing(Box::pin(async move {
            let subject = Subject::new(Operation::Lock).key(key);
            let send = |deadline| store.backend.watch(WatchRequest::new(key, deadline));
            store.bounded(&subject, &limits, send).await
        }))
    }

    /// Waits until there is a reason to ask again. `free_in` is the store's last estimate.
    async fn pause(
        &mut self,
        limits: &Limits,
        place: &Place<F>,
        free_in: Option<Duration>,
        hint: &mut Hint<'a>,
    ) -> Result<Woken, LockError> {
        let options = self.options;
        let longest = options.max_retry_delay.max(options.retry_delay);
        let pause = match place.held_for() {
            // The guard notifies of its release. But any process may release by id.
            Some(left) => left.min(longest),
            None => {
                let (base, polls) = (options.retry_delay, self.summary.polls);
                options.backoff.delay(options.jitter, base, longest, polls)
            }
        };
        let (mut pause, mut woken) = (pause.max(SHORTEST), Woken::Poll);
        // Clocks differ by a little. If the store's estimates are wrong repeatedly, ask later each time.
        let at_least = Backoff::Exponential.delay(Jitter::None, SHORTEST, longest, self.expired);
        if let Some(free_in) = free_in.map(|free_in| free_in.max(at_least))
            && free_in < pause
        {
            (pause, woken) = (free_in, Woken::Expired);
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        let last = pause >= left && left <= LAST_ATTEMPT;
        if last {
            pause = left;
        } else if pause >= left {
            // The delay is too long: ask once more shortly before the timeout.
            pause = left - LAST_ATTEMPT;
        }
        let ends = after(Instant::now(), pause);
        let woken = loop {
            let slice = ends.min(Instant::now() + LockOptions::DEFAULT_MAX_RETRY_DELAY);
            tokio::select! {
                biased;
                () = limits.cancelled() => return Err(self.aborted()),
                () = place.freed() => break Woken::Freed,
                in_place = hint.changed() => break Woken::Changed(in_place),
                () = sleep_until(slice) => {
                    if slice < ends && !place.others_wait() {
                        // The next poll may be far away. After a failed attempt that alone asks again.
                        if matches!(hint, Hint::Unavailable) && self.failure.is_none() {
                            *hint = self.hint();
                        }
                        continue;
                    }
                    if last {
                        return Err(self.held_until_the_timeout(place));
                    }
                    break if slice < ends { Woken::PollForOthers } else { woken };
                }
            }
        };
        self.expired = match woken {
            Woken::Expired => self.expired.saturating_add(1),
            _ => 0,
        };
        Ok(woken)
    }

    /// How many wake-ups the wait may have followed since it began.
    fn trusted_wake_ups(&self) -> u32 {
        let waited = self.started.elapsed().as_millis();
        LEAST_WAKE_UPS.saturating_add(waited.try_into().unwrap_or(u32::MAX))
    }

    fn summary(&self) -> WaitSummary {
        WaitSummary {
            waited: self.started.elapsed(),
            ..self.summary
        }
    }

    fn aborted(&self) -> LockError {
        aborted()
            .with_operation(Operation::Lock)
            .with_key(self.key)
            .with_wait(self.summary())
    }

    fn held_until_the_timeout(&self, place: &Place<F>) -> LockError {
        self.timed_out(match place.held_for() {
            _ if self.failure.is_some() => "the store failed until the timeout",
            Some(_) => "a guard of this process held the key until the timeout",
            None => "the key stayed held until the timeout",
        })
    }

    /// If the last attempt failed, its key, id and outcome are those of the wait.
    fn timed_out(&self, cause: &str) -> LockError {
        let summary = self.summary();
        let WaitSummary {
            attempts, waited, ..
        } = summary;
        let plural = if attempts == 1 { "" } else { "s" };
        let message = format!("gave up after {attempts} attempt{plural} in {waited:.1?}: {cause}");
        let mut error = LockError::new(ErrorCode::AcquisitionTimeout, message)
            .with_operation(Operation::Lock)
            .with_key(self.key)
            .with_wait(summary);
        let Some(failure) = &self.failure else {
            return error;
        };
        if failure.outcome_unknown() {
            error = error.with_outcome_unknown();
        }
        if let Some(id) = failure.lock_id() {
            error = error.with_lock_id(id);
        }
        match self.is_held {
            // Only the timeout of the wait cut the last attempt short.
            true => error,
            false => error.with_source(failure.clone()),
        }
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
        let observers = &self.locks.store().observers;
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

/// The state of the watch at the store.
enum Hint<'a> {
    None,
    /// The watch is being set up.
    Placing(BoxedResult<'a, Option<Watch>>),
    InPlace(Watch),
    /// The store has no watch for now: until the next poll, or for a second.
    Unavailable,
}

impl Hint<'_> {
    /// Resolves when the key may be free, with whether the watch is still in place.
    async fn changed(&mut self) -> bool {
        if let Self::Placing(placing) = self {
            *self = match placing.await {
                Ok(Some(watch)) => Self::InPlace(watch),
                Ok(None) | Err(_) => Self::Unavailable,
            };
        }
        match self {
            Self::InPlace(watch) => watch.changed().await.is_ok(),
            _ => std::future::pending().await,
        }
    }
}

fn is_timeout(error: &LockError) -> bool {
    error.code() == ErrorCode::NetworkTimeout
}
