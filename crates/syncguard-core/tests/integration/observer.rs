//! What an observer hears: operations, waits, background releases and clock skew.

use std::future::{IntoFuture, pending};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::backend::FailureReason;
use syncguard_core::observe::{
    ClockSkew, Observer, Operation, OperationEnd, OperationOutcome, ReclaimEnd, ReclaimResult,
    WaitEnd, WaitOutcome, WaitStart,
};
use syncguard_core::{
    AutoExtend, Backoff, CancellationToken, ErrorCode, Jitter, LockId, LockKey, LockOptions, Locks,
};
use syncguard_memory::MemoryBackend;

use crate::common::{Fault, FaultyBackend};

const MINUTE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Started,
    Ended(u32, WaitOutcome),
    Reclaimed(Operation, ReclaimResult),
    Skew(i64),
}

use Heard::{Ended, Reclaimed, Skew, Started};

/// An operation, with its key and id where it has them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Done {
    operation: Operation,
    outcome: OperationOutcome,
    key: Option<LockKey>,
    lock_id: Option<LockId>,
}

#[derive(Default)]
struct Notes {
    heard: Mutex<Vec<Heard>>,
    done: Mutex<Vec<Done>>,
    waited: Mutex<Vec<Duration>>,
}

impl Notes {
    fn take(&self) -> Vec<Heard> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }

    fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut self.done.lock().unwrap())
    }

    fn outcomes(&self) -> Vec<(Operation, OperationOutcome)> {
        let done = self.take_done().into_iter();
        done.map(|done| (done.operation, done.outcome)).collect()
    }

    fn note(&self, heard: Heard) {
        self.heard.lock().unwrap().push(heard);
    }
}

impl Observer for Notes {
    fn operation_ended(&self, end: &OperationEnd<'_>) {
        assert_eq!(end.backend, "memory");
        self.done.lock().unwrap().push(Done {
            operation: end.operation,
            outcome: end.outcome,
            key: end.key.cloned(),
            lock_id: end.lock_id.copied(),
        });
    }

    fn wait_started(&self, wait: &WaitStart<'_>) {
        assert_eq!(wait.backend, "memory");
        self.note(Started);
    }

    fn wait_ended(&self, wait: &WaitEnd<'_>) {
        assert!(!wait.key.as_str().is_empty());
        self.waited.lock().unwrap().push(wait.summary.waited);
        self.note(Ended(wait.summary.attempts, wait.outcome));
    }

    fn reclaim_ended(&self, reclaim: &ReclaimEnd<'_>) {
        self.note(Reclaimed(reclaim.after, reclaim.result));
    }

    fn clock_compared(&self, skew: &ClockSkew) {
        self.note(Skew(skew.skew_ms));
    }
}

fn observed(locks: &Locks) -> (Arc<Notes>, Locks) {
    let notes = Arc::<Notes>::default();
    (Arc::clone(&notes), locks.observed_by(notes))
}

fn observed_memory() -> (Arc<Notes>, Locks) {
    observed(&Locks::new(MemoryBackend::default()))
}

/// Polls a future for a moment, then drops it.
async fn abandon(call: impl IntoFuture) {
    drop(tokio::time::timeout(Duration::from_millis(5), call).await);
}

fn failed(code: ErrorCode, outcome_unknown: bool) -> OperationOutcome {
    OperationOutcome::Failed {
        code,
        outcome_unknown,
    }
}

#[tokio::test]
async fn every_operation_is_heard_with_its_outcome() {
    let (notes, locks) = observed_memory();
    let guard = locks.lock("k").await.unwrap();
    let id = *guard.lock_id();
    assert!(locks.try_lock("k").await.unwrap().is_none());
    assert!(guard.extend(MINUTE).await.unwrap().is_extended());
    assert!(locks.is_locked("k").await.unwrap());
    assert!(locks.get_by_key("k").await.unwrap().is_some());
    assert!(locks.owns(id).await.unwrap());
    assert!(guard.release().await.unwrap().is_released());
    assert!(!locks.release(id).await.unwrap().is_released());
    assert!(!locks.extend(id, MINUTE).await.unwrap().is_extended());

    let (ok, gone) = (
        OperationOutcome::Ok,
        OperationOutcome::NotHeld(Some(FailureReason::NotFound)),
    );
    let done = notes.take_done();
    let seen: Vec<_> = done
        .iter()
        .map(|done| (done.operation, done.outcome))
        .collect();
    assert_eq!(
        seen,
        [
            (Operation::Acquire, ok),
            (Operation::Acquire, OperationOutcome::Locked),
            (Operation::Extend, ok),
            (Operation::IsLocked, ok),
            (Operation::Lookup, ok),
            (Operation::Lookup, ok),
            (Operation::Release, ok),
            (Operation::Release, gone),
            (Operation::Extend, gone),
        ]
    );
    let key = LockKey::new("k").unwrap();
    for (index, done) in done.iter().enumerate() {
        let by_id = [5, 7, 8].contains(&index);
        assert_eq!(done.key.as_ref() == Some(&key), !by_id, "{done:?}");
        let by_key = [1, 3, 4].contains(&index);
        assert_eq!(done.lock_id == Some(id), !by_key, "{done:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn errors_bad_arguments_and_cancellation_are_heard_too() {
    let faulty = FaultyBackend::default();
    let (notes, locks) = observed(&faulty.locks());
    let invalid = failed(ErrorCode::InvalidArgument, false);
    locks.try_lock("").await.unwrap_err();
    locks.lock("k").ttl(Duration::ZERO).await.unwrap_err();
    locks.release("no id").await.unwrap_err();
    locks.extend("no id", MINUTE).await.unwrap_err();
    locks.is_locked("a\0b").await.unwrap_err();
    locks.get_by_id("no id").await.unwrap_err();
    // With the key where that is good.
    let heard = notes.take_done().into_iter();
    let heard: Vec<_> = heard
        .map(|done| (done.operation, done.outcome, done.key.is_some()))
        .collect();
    assert_eq!(
        heard,
        [
            (Operation::Acquire, invalid, false),
            (Operation::Acquire, invalid, true),
            (Operation::Release, invalid, false),
            (Operation::Extend, invalid, false),
            (Operation::IsLocked, invalid, false),
            (Operation::Lookup, invalid, false),
        ]
    );

    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    locks.try_lock("k").await.unwrap_err();
    let unknown = failed(ErrorCode::ServiceUnavailable, true);
    assert_eq!(notes.outcomes(), [(Operation::Acquire, unknown)]);
    locks.drain(PATIENCE).await.unwrap();

    let token = CancellationToken::new();
    faulty.plan(Operation::Acquire, [Fault::Hang]);
    let cancelling = async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        token.cancel();
    };
    let (attempt, ()) = tokio::join!(locks.try_lock("k").cancel_on(&token).attempt(), cancelling);
    attempt.unwrap_err();
    locks.lock("k").cancel_on(&token).await.unwrap_err();
    locks.is_locked("k").cancel_on(&token).await.unwrap_err();
    assert_eq!(
        notes.outcomes(),
        [
            (Operation::Acquire, failed(ErrorCode::Aborted, true)),
            (Operation::Acquire, failed(ErrorCode::Aborted, false)),
            (Operation::IsLocked, failed(ErrorCode::Aborted, false)),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn dropped_guards_dropped_calls_and_renewals_are_heard() {
    let faulty = FaultyBackend::default();
    let (notes, locks) = observed(&faulty.locks());
    drop(locks.lock("k").await.unwrap());
    locks.drain(PATIENCE).await.unwrap();
    let ok = OperationOutcome::Ok;
    let pair = [(Operation::Acquire, ok), (Operation::Release, ok)];
    assert_eq!(notes.outcomes(), pair);

    faulty.plan(Operation::Acquire, [Fault::Hang]);
    abandon(locks.try_lock("k")).await;
    faulty.plan(Operation::IsLocked, [Fault::Hang]);
    abandon(locks.is_locked("k")).await;
    // What was never polled is no call.
    drop(locks.is_locked("k"));
    let abandoned = |outcome_unknown| OperationOutcome::Abandoned { outcome_unknown };
    assert_eq!(
        notes.outcomes(),
        [
            (Operation::Acquire, abandoned(true)),
            (Operation::IsLocked, abandoned(false)),
        ]
    );
    locks.drain(PATIENCE).await.unwrap();

    let guard = locks.lock("k").await.unwrap();
    faulty.plan(Operation::Extend, [Fault::Hang]);
    let in_flight = abandon(guard.extend(MINUTE));
    let in_turn = abandon(guard.extend(MINUTE));
    tokio::join!(in_flight, in_turn);
    let _ = guard.release().await.unwrap();
    assert_eq!(
        notes.outcomes(),
        [
            (Operation::Acquire, ok),
            (Operation::Extend, abandoned(true)),
            (Operation::Extend, abandoned(true)),
            (Operation::Release, ok),
        ]
    );

    let renewed = LockOptions::new()
        .ttl(Duration::from_secs(3))
        .auto_extend(AutoExtend::new());
    let section = async |_| tokio::time::sleep(Duration::from_millis(1_500)).await;
    let _ = locks
        .lock("k")
        .options(&renewed)
        .run(section)
        .await
        .unwrap();
    let [acquire, release] = pair;
    assert_eq!(
        notes.outcomes(),
        [acquire, (Operation::Extend, ok), release]
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_heard_with_its_attempts_and_its_time() {
    let (notes, locks) = observed_memory();
    let holder = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
    assert_eq!(notes.take(), [], "a single attempt is no wait");
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(250)).await;
        holder.release().await
    });
    let options = LockOptions::new()
        .backoff(Backoff::Fixed)
        .jitter(Jitter::None);
    let seen = Arc::clone(&notes);
    let section = async |_| {
        // Heard before the section runs. The release of this process is what ended it.
        assert_eq!(seen.take(), [Started, Ended(2, WaitOutcome::Granted)]);
    };
    let _ = locks
        .lock("k")
        .options(&options)
        .run(section)
        .await
        .unwrap();
    assert_eq!(notes.take(), []);
    assert_eq!(*notes.waited.lock().unwrap(), [Duration::from_millis(250)]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_fails_is_heard_with_its_code() {
    let faulty = FaultyBackend::default();
    let (notes, locks) = observed(&faulty.locks());
    let _holder = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
    locks.lock("k").max_retries(2).await.unwrap_err();
    let code = ErrorCode::AcquisitionTimeout;
    assert_eq!(notes.take(), [Started, Ended(3, WaitOutcome::Failed(code))]);

    let code = ErrorCode::RateLimited;
    faulty.plan(Operation::Acquire, [Fault::Pass, Fault::Refuse(code)]);
    locks.lock("k").await.unwrap_err();
    assert_eq!(notes.take(), [Started, Ended(2, WaitOutcome::Failed(code))]);

    let token = CancellationToken::new();
    let options = LockOptions::new().cancel_on(&token);
    let cancelling = async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        token.cancel();
    };
    let waiting = locks.lock("k").options(&options).into_future();
    let (outcome, ()) = tokio::join!(waiting, cancelling);
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::Aborted);
    let code = ErrorCode::Aborted;
    assert_eq!(notes.take(), [Started, Ended(1, WaitOutcome::Failed(code))]);

    // No wait began: the token was cancelled, or an argument was bad.
    locks.lock("k").options(&options).await.unwrap_err();
    locks.lock("").await.unwrap_err();
    locks.lock("k").ttl(Duration::ZERO).await.unwrap_err();
    assert_eq!(notes.take(), []);
}

#[tokio::test]
async fn a_wait_whose_future_is_dropped_ends_too() {
    let (notes, locks) = observed_memory();
    let _holder = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
    abandon(locks.lock("k")).await;
    assert_eq!(notes.take(), [Started, Ended(1, WaitOutcome::Abandoned)]);
    // One that is dropped in its section had ended its wait.
    abandon(locks.lock("free").run(async |_| pending::<()>().await)).await;
    assert_eq!(notes.take(), [Started, Ended(1, WaitOutcome::Granted)]);
}

#[tokio::test]
async fn reclaiming_is_heard_by_what_it_found() {
    let faulty = FaultyBackend::default();
    let (notes, locks) = observed(&faulty.locks());
    let take = async |key: &str| locks.try_lock(key).ttl(MINUTE).await.unwrap().unwrap();

    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    locks.try_lock("taken").await.unwrap_err();
    locks.drain(PATIENCE).await.unwrap();
    let released = Reclaimed(Operation::Acquire, ReclaimResult::Released);
    assert_eq!(notes.take(), [released]);

    faulty.plan(Operation::Acquire, [Fault::Hang]);
    abandon(locks.try_lock("not taken").ttl(Duration::from_millis(20))).await;
    locks.drain(PATIENCE).await.unwrap();
    let not_held = Reclaimed(Operation::Acquire, ReclaimResult::NotHeld);
    assert_eq!(notes.take(), [not_held]);

    let lease = take("released").await.detach();
    let refusal = Fault::Refuse(ErrorCode::ServiceUnavailable);
    faulty.plan(Operation::Release, [refusal]);
    locks.release(lease.lock_id()).await.unwrap_err();
    locks.drain(PATIENCE).await.unwrap();
    let released = Reclaimed(Operation::Release, ReclaimResult::Released);
    assert_eq!(notes.take(), [released]);

    let lease = take("refused").await.detach();
    let refusal = Fault::Refuse(ErrorCode::InvalidArgument);
    faulty.plan(Operation::Release, [refusal, refusal]);
    locks.release(lease.lock_id()).await.unwrap_err();
    locks.drain(PATIENCE).await.unwrap();
    let given_up = Reclaimed(Operation::Release, ReclaimResult::GivenUp);
    assert_eq!(notes.take(), [given_up]);
}

#[tokio::test]
async fn answered_calls_have_nothing_to_reclaim() {
    let (notes, locks) = observed_memory();
    let guard = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
    assert!(locks.try_lock("k").ttl(MINUTE).await.unwrap().is_none());
    drop(guard);
    locks.drain(PATIENCE).await.unwrap();
    assert_eq!(notes.take(), []);
}

#[tokio::test]
async fn all_observers_hear_and_one_that_panics_harms_nobody() {
    struct Panics;
    impl Observer for Panics {
        fn operation_ended(&self, _: &OperationEnd<'_>) {
            panic!("an observer's own fault");
        }
        fn wait_started(&self, _: &WaitStart<'_>) {
            panic!("an observer's own fault");
        }
        fn wait_ended(&self, _: &WaitEnd<'_>) {
            panic!("an observer's own fault");
        }
    }
    let first = Arc::<Notes>::default();
    let plain = Locks::builder(MemoryBackend::default())
        .observe(Arc::new(Panics))
        .observe(first.clone())
        .build();
    let (second, locks) = observed(&plain);
    let receipt = locks.lock("k").run(async |_| 7).await;
    assert_eq!(receipt.unwrap().into_value(), 7);
    let heard = [Started, Ended(1, WaitOutcome::Granted)];
    assert_eq!(
        (first.take(), second.take()),
        (heard.to_vec(), heard.to_vec())
    );
    assert_eq!(second.take_done(), first.take_done());

    // The handle that it was made from is observed as before, and shares its background work.
    let guard = plain.lock("k").await.unwrap();
    assert_eq!((first.take(), second.take()), (heard.to_vec(), vec![]));
    drop(guard);
    locks.drain(PATIENCE).await.unwrap();
    assert!(!plain.is_locked("k").await.unwrap());
}

#[tokio::test]
async fn a_backends_reports_reach_the_observers_of_all_handles_while_there_are_any() {
    let faulty = FaultyBackend::default();
    let plain = faulty.locks();
    let (first, one) = observed(&plain);
    let (second, two) = observed(&plain);
    faulty.report_skew(-7);
    assert_eq!(
        (first.take(), second.take()),
        (vec![Skew(-7)], vec![Skew(-7)])
    );
    let reporter = faulty.reporters().remove(0);
    assert!(reporter.is_attached());
    drop((one, two, plain));
    assert!(!reporter.is_attached());
    faulty.report_skew(8);
    assert_eq!((first.take(), second.take()), (vec![], vec![]));
}
