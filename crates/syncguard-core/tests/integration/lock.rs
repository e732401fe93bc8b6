//! `lock()`: waiting, giving up, cancelling, and what it returns of the section and the release.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use syncguard_core::observe::{Operation, ReleaseFailure, ReleaseStage};
use syncguard_core::{
    Backoff, CancellationToken, ErrorCode, Jitter, LockError, LockGuard, LockOptions, Locks,
    hash_key,
};
use syncguard_memory::{ManualClock, MemoryBackend};
use tokio::time::Instant;

use crate::common::{Fault, FaultyBackend, until_free};

const MINUTE: Duration = Duration::from_secs(60);

fn quick() -> LockOptions {
    LockOptions::new()
        .retry_delay(Duration::from_millis(1))
        .backoff(Backoff::Fixed)
}

/// Locks whose key `k` is held for a day.
async fn held() -> (Locks, LockGuard) {
    let locks = Locks::new(MemoryBackend::default());
    let holder = locks.try_lock("k").ttl(MINUTE * 60 * 24);
    let holder = holder.await.unwrap().unwrap();
    (locks, holder)
}

/// The error of a wait for `k`.
async fn refused(locks: &Locks, options: &LockOptions) -> LockError {
    let section = locks.lock("k").options(options).run(async |_| ());
    section.await.unwrap_err()
}

#[tokio::test]
async fn runs_the_section_under_the_lock_and_frees_the_key() {
    let locks = Locks::new(MemoryBackend::default());
    let receipt = locks.lock("k").run(async |lease| {
        let info = locks.get_by_key("k").await.unwrap().unwrap();
        assert_eq!(info.fence, lease.fence());
        assert_eq!(
            info.expires_at_ms - info.acquired_at_ms,
            30_000,
            "the default TTL"
        );
        "done"
    });
    let receipt = receipt.await.unwrap();
    assert_eq!((*receipt.value(), receipt.overran()), ("done", false));
    assert!(receipt.release_error().is_none());
    assert!(!locks.is_locked("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn waits_for_the_holder() {
    let (locks, holder) = held().await;
    let releaser = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(700)).await;
        holder.release().await
    });
    let receipt = locks.lock("k").run(async |lease| lease.fence().get()).await;
    assert_eq!(receipt.unwrap().into_value(), 2);
    assert!(releaser.await.unwrap().unwrap().is_released());
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_wait_says_how_often_how_long_and_why() {
    let store = MemoryBackend::default();
    let (locks, elsewhere) = (Locks::new(store.clone()), Locks::new(store));
    let _holder = elsewhere.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
    let (started, timeout) = (Instant::now(), Duration::from_secs(2));
    let options = LockOptions::new().timeout(timeout).max_retries(1_000);
    let error = refused(&locks, &options).await;

    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    let wait = error.wait().unwrap();
    assert!(wait.attempts > 3 && wait.waited <= timeout, "{wait:?}");
    assert!(started.elapsed() <= timeout);
    assert!(
        started.elapsed() > timeout / 2,
        "it gave up early: {:?}",
        started.elapsed()
    );
    let text = error.to_string();
    assert!(
        text.contains(&format!("{} attempts", wait.attempts)),
        "{text}"
    );
    assert!(
        text.contains("the key stayed held until the timeout"),
        "{text}"
    );
    assert!(!error.outcome_unknown());
}

#[tokio::test(start_paused = true)]
async fn the_retries_may_run_out_first() {
    let (locks, _holder) = held().await;
    let error = refused(&locks, &quick().max_retries(3)).await;
    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert_eq!(error.wait().unwrap().attempts, 4);
    assert!(
        error.to_string().contains("after the last retry"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn zero_delay_zero_retries_and_zero_timeout_work() {
    let locks = Locks::new(MemoryBackend::default());
    let zero = LockOptions::new().retry_delay(Duration::ZERO);
    let free = locks
        .lock("free")
        .options(&zero.clone().max_retries(0))
        .run(async |_| 7)
        .await;
    assert_eq!(free.unwrap().into_value(), 7);

    let _holder = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
    for (options, attempts) in [
        (zero.clone().max_retries(0), 1),
        (zero.clone().max_retries(5), 6),
        (zero.clone().jitter(Jitter::Full).max_retries(5), 6),
    ] {
        let error = refused(&locks, &options).await;
        assert_eq!(error.wait().unwrap().attempts, attempts);
    }
    let no_time = LockOptions::new().timeout(Duration::ZERO);
    let error = refused(&locks, &no_time).await;
    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
}

#[tokio::test(start_paused = true)]
async fn delays_never_pass_the_timeout_whatever_the_options() {
    let (locks, _holder) = held().await;
    for retry_delay in [
        Duration::from_micros(10),
        Duration::from_millis(700),
        Duration::MAX,
    ] {
        for backoff in [Backoff::Fixed, Backoff::Exponential] {
            for jitter in [Jitter::None, Jitter::Equal, Jitter::Full] {
                let (started, timeout) = (Instant::now(), Duration::from_secs(1));
                let options = LockOptions::new()
                    .retry_delay(retry_delay)
                    .backoff(backoff)
                    .jitter(jitter)
                    .max_retries(2_000)
                    .timeout(timeout);
                let error = refused(&locks, &options).await;
                assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
                assert!(started.elapsed() <= timeout, "{:?}", started.elapsed());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_timeout_bounds_an_attempt_in_flight_and_what_it_acquired_is_released() {
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::Acquire, [Fault::DelayReply(MINUTE)]);
    let locks = faulty.builder().operation_timeout(MINUTE).build();
    let started = Instant::now();
    let options = LockOptions::new().timeout(Duration::from_millis(500));
    let error = refused(&locks, &options).await;
    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert!(error.outcome_unknown());
    assert!(error.to_string().contains("got no reply"), "{error}");
    assert!(
        started.elapsed() <= Duration::from_millis(510),
        "{:?}",
        started.elapsed()
    );
    until_free(&faulty.store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn only_contention_is_retried() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Acquire,
        [Fault::Refuse(ErrorCode::ServiceUnavailable)],
    );
    let error = refused(&faulty.locks(), &quick()).await;
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert_eq!(error.operation(), Some(Operation::Acquire));
    assert_eq!(faulty.calls(Operation::Acquire), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_that_may_pass_are_waited_through_if_asked() {
    let faulty = FaultyBackend::default();
    let away = Fault::Refuse(ErrorCode::ServiceUnavailable);
    faulty.plan(Operation::Acquire, [away, Fault::LoseReply, away]);
    let locks = faulty.locks();
    let request = || locks.lock("k").retry_failures(true);
    // The second attempt was granted, and no caller knew: it is released in the background.
    let guard = request().timeout(MINUTE).await.unwrap();
    assert!(faulty.calls(Operation::Acquire) >= 4);
    locks.drain(MINUTE).await.unwrap();
    let _ = guard.release().await.unwrap();

    faulty.plan(Operation::Acquire, [away; 100]);
    let started = Instant::now();
    let error = request().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert!(error.to_string().contains("the store failed"), "{error}");
    assert!(std::error::Error::source(&error).is_some());
    assert!(started.elapsed() >= LockOptions::DEFAULT_TIMEOUT);

    let refused = Fault::Refuse(ErrorCode::AuthFailed);
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::Acquire, [refused]);
    let error = faulty.locks().lock("k").retry_failures(true).await;
    assert_eq!(
        error.unwrap_err().code(),
        ErrorCode::AuthFailed,
        "it does not pass"
    );
}

/// The command would otherwise tell an operator that the store is unavailable.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_the_timeout_cuts_short_hides_no_contention() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    for (before, is_failure) in [(Fault::Pass, false), (Fault::Hang, true)] {
        let _held = locks.try_lock("k").await.unwrap();
        faulty.plan(Operation::Acquire, [before, Fault::Hang]);
        let request = locks.lock("k").retry_failures(true);
        let error = request.timeout(Duration::from_secs(6)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
        assert!(error.outcome_unknown(), "{error}");
        let source = std::error::Error::source(&error);
        assert_eq!(source.is_some(), is_failure, "{error}");
    }
}

#[tokio::test]
async fn bad_arguments_are_refused_before_any_call() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    for (key, ttl) in [
        ("", MINUTE),
        ("a\0b", MINUTE),
        ("k", Duration::ZERO),
        ("k", Duration::MAX),
    ] {
        let options = LockOptions::new().ttl(ttl);
        let error = locks
            .lock(key)
            .options(&options)
            .run(async |_| ())
            .await
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(!error.outcome_unknown() && !error.is_retryable());
    }
    assert_eq!(faulty.calls(Operation::Acquire), 0);
}

#[tokio::test(start_paused = true)]
async fn cancelled_before_the_first_attempt_it_does_nothing() {
    let faulty = FaultyBackend::default();
    let token = CancellationToken::new();
    token.cancel();
    let options = quick().cancel_on(&token);
    let error = refused(&faulty.locks(), &options).await;
    assert_eq!(error.code(), ErrorCode::Aborted);
    assert_eq!(faulty.calls(Operation::Acquire), 0);
}

#[tokio::test(start_paused = true)]
async fn cancelled_during_a_long_back_off_it_returns_at_once() {
    let (locks, _holder) = held().await;
    let token = CancellationToken::new();
    let options = LockOptions::new()
        .retry_delay(Duration::from_secs(5))
        .jitter(Jitter::None)
        .timeout(MINUTE)
        .cancel_on(&token);
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move {
            locks
                .lock("k")
                .options(&options)
                .run(async |_| ())
                .await
                .map(|_| Instant::now())
        }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let cancelled = Instant::now();
    token.cancel();
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::Aborted);
    assert!(!error.outcome_unknown());
    assert!(cancelled.elapsed() < Duration::from_millis(20));
}

#[tokio::test(start_paused = true)]
async fn cancelled_during_an_attempt_it_returns_at_once_and_keeps_nothing() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Acquire,
        [Fault::DelayReply(Duration::from_secs(4))],
    );
    let (locks, token) = (faulty.locks(), CancellationToken::new());
    let options = LockOptions::new().cancel_on(&token);
    let attempt = locks.lock("k").options(&options).run(async |_| ());
    let canceller = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        token.cancel();
        Instant::now()
    };
    let (outcome, cancelled) = tokio::join!(attempt, canceller);
    let error = outcome.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Aborted);
    assert!(error.outcome_unknown());
    assert!(cancelled.elapsed() < Duration::from_millis(50));
    until_free(&faulty.store, "k").await;
}

#[tokio::test]
async fn a_token_cancelled_in_the_section_does_not_hinder_the_release() {
    let locks = Locks::new(MemoryBackend::default());
    let token = CancellationToken::new();
    let options = LockOptions::new().cancel_on(&token);
    let receipt = locks.lock("k").options(&options).run(async |_| {
        token.cancel();
        "finished in its own time"
    });
    assert!(receipt.await.unwrap().release_error().is_none());
    assert!(!locks.is_locked("k").await.unwrap());
}

#[tokio::test]
async fn dropped_in_the_section_the_lock_is_released_at_once() {
    let store = MemoryBackend::default();
    let locks = Locks::new(store.clone());
    let entered = Arc::new(tokio::sync::Notify::new());
    let section = tokio::spawn({
        let entered = Arc::clone(&entered);
        async move {
            locks
                .lock("k")
                .run(async |_| {
                    entered.notify_one();
                    pending::<()>().await;
                })
                .await
        }
    });
    entered.notified().await;
    section.abort();
    until_free(&store, "k").await;
}

#[tokio::test]
async fn a_panic_goes_on_and_the_key_is_freed() {
    let store = MemoryBackend::default();
    let locks = Locks::new(store.clone());
    let section = tokio::spawn(async move {
        locks
            .lock("k")
            .run(async |_| panic!("in the section"))
            .await
    });
    let panic = section.await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"in the section"));
    until_free(&store, "k").await;
}

#[tokio::test]
async fn the_sections_error_survives_a_failing_release() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Release,
        [Fault::Refuse(ErrorCode::ServiceUnavailable)],
    );
    let reported = Arc::new(AtomicUsize::new(0));
    let count = |reported: &Arc<AtomicUsize>| {
        let reported = Arc::clone(reported);
        move |failure: &ReleaseFailure| {
            assert_eq!(failure.error().code(), ErrorCode::ServiceUnavailable);
            assert_eq!(failure.stage(), ReleaseStage::SectionEnd);
            assert_eq!(failure.key_hash(), Some(hash_key("k")));
            reported.fetch_add(1, Ordering::SeqCst);
        }
    };
    let section = async |_| Err::<(), _>("the section's own error");
    let locks = faulty.builder().on_release_error(count(&reported)).build();
    let receipt = locks.lock("k").run(section).await.unwrap();
    assert_eq!(
        receipt.release_error().unwrap().code(),
        ErrorCode::ServiceUnavailable
    );
    assert_eq!(receipt.into_value(), Err("the section's own error"));
    assert_eq!(reported.load(Ordering::SeqCst), 1);
    until_free(&faulty.store, "k").await;

    // A request's own handler takes the place of that of the `Locks`.
    let own = Arc::new(AtomicUsize::new(0));
    faulty.plan(
        Operation::Release,
        [Fault::Refuse(ErrorCode::ServiceUnavailable)],
    );
    let request = locks.lock("k").on_release_error(count(&own));
    let _ = request.run(async |_| ()).await.unwrap();
    assert_eq!(own.load(Ordering::SeqCst), 1);
    assert_eq!(reported.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_section_that_outlived_its_lock_keeps_its_value_and_the_receipt_says_so() {
    let clock = ManualClock::new();
    let locks = Locks::new(MemoryBackend::with_clock(clock.clone()));
    let options = LockOptions::new().ttl(Duration::from_secs(1));
    let receipt = locks.lock("k").options(&options).run(async |_| {
        clock.advance(Duration::from_secs(3));
        "late"
    });
    let receipt = receipt.await.unwrap();
    assert!(receipt.overran());
    assert_eq!(receipt.into_value(), "late");
}
