//! `lock()`: waiting, giving up, cancelling, and what it tells of the section and the release.

mod common;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Fault, FaultyStore, until_free};
use syncguard_core::{
    Backoff, CancellationToken, ErrorCode, Jitter, LockOptions, Operation, Policy, acquire,
    get_by_key, is_locked, lock,
};
use syncguard_memory::{ManualClock, MemoryBackend, MemoryStore};
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

fn quick() -> LockOptions {
    LockOptions::new()
        .with_retry_delay(Duration::from_millis(1))
        .with_backoff(Backoff::Fixed)
}

#[tokio::test]
async fn runs_the_section_under_the_lock_and_frees_the_key() {
    let backend = MemoryBackend::default();
    let receipt = lock(&backend, "k", LockOptions::new(), async |lease| {
        let info = get_by_key(&backend, "k").await.unwrap().unwrap();
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
    assert!(!is_locked(&backend, "k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn waits_for_the_holder() {
    let backend = MemoryBackend::default();
    let holder = acquire(&backend, "k", MINUTE).await.unwrap().unwrap();
    let releaser = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(700)).await;
        holder.release().await
    });
    let receipt = lock(&backend, "k", LockOptions::new(), async |lease| {
        lease.fence().get()
    })
    .await;
    assert_eq!(receipt.unwrap().into_value(), 2);
    assert!(releaser.await.unwrap().unwrap().is_released());
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_wait_says_how_often_how_long_and_why() {
    let backend = MemoryBackend::default();
    let _holder = acquire(&backend, "k", MINUTE).await.unwrap().unwrap();
    let (started, timeout) = (Instant::now(), Duration::from_secs(2));
    let options = LockOptions::new()
        .with_timeout(timeout)
        .with_max_retries(1_000);
    let error = lock(&backend, "k", options, async |_| unreachable!())
        .await
        .unwrap_err();

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
    let backend = MemoryBackend::default();
    let _holder = acquire(&backend, "k", MINUTE).await.unwrap().unwrap();
    let error = lock(&backend, "k", quick().with_max_retries(3), async |_| ())
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert_eq!(error.wait().unwrap().attempts, 4);
    assert!(error.to_string().contains("all retries"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn zero_delay_zero_retries_and_zero_timeout_work() {
    let backend = MemoryBackend::default();
    let zero = LockOptions::new().with_retry_delay(Duration::ZERO);
    let free = lock(
        &backend,
        "free",
        zero.clone().with_max_retries(0),
        async |_| 7,
    )
    .await;
    assert_eq!(free.unwrap().into_value(), 7);

    let _holder = acquire(&backend, "k", MINUTE).await.unwrap().unwrap();
    for (options, attempts) in [
        (zero.clone().with_max_retries(0), 1),
        (zero.clone().with_max_retries(5), 6),
        (
            zero.clone().with_jitter(Jitter::Full).with_max_retries(5),
            6,
        ),
    ] {
        let error = lock(&backend, "k", options, async |_| ())
            .await
            .unwrap_err();
        assert_eq!(error.wait().unwrap().attempts, attempts);
    }
    let no_time = LockOptions::new().with_timeout(Duration::ZERO);
    let error = lock(&backend, "k", no_time, async |_| ())
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
}

#[tokio::test(start_paused = true)]
async fn delays_never_pass_the_timeout_whatever_the_options() {
    let backend = MemoryBackend::default();
    let _holder = acquire(&backend, "k", Duration::from_secs(86_400))
        .await
        .unwrap()
        .unwrap();
    for retry_delay in [
        Duration::from_micros(10),
        Duration::from_millis(700),
        Duration::MAX,
    ] {
        for backoff in [Backoff::Fixed, Backoff::Exponential] {
            for jitter in [Jitter::None, Jitter::Equal, Jitter::Full] {
                let (started, timeout) = (Instant::now(), Duration::from_secs(1));
                let options = LockOptions::new()
                    .with_retry_delay(retry_delay)
                    .with_backoff(backoff)
                    .with_jitter(jitter)
                    .with_max_retries(2_000)
                    .with_timeout(timeout);
                let error = lock(&backend, "k", options, async |_| ())
                    .await
                    .unwrap_err();
                assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
                assert!(started.elapsed() <= timeout, "{:?}", started.elapsed());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_timeout_bounds_an_attempt_in_flight_and_what_it_took_is_given_back() {
    let faulty = FaultyStore::default();
    faulty.plan(Operation::Acquire, [Fault::DelayReply(MINUTE)]);
    let backend = faulty.managed_with(Policy::new().with_operation_timeout(MINUTE));
    let started = Instant::now();
    let options = LockOptions::new().with_timeout(Duration::from_millis(500));
    let error = lock(&backend, "k", options, async |_| ())
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert!(error.outcome_unknown());
    assert!(error.to_string().contains("no answer yet"), "{error}");
    assert!(
        started.elapsed() <= Duration::from_millis(510),
        "{:?}",
        started.elapsed()
    );
    until_free(&faulty.store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn only_contention_is_retried() {
    let faulty = FaultyStore::default();
    faulty.plan(
        Operation::Acquire,
        [Fault::Refuse(ErrorCode::ServiceUnavailable)],
    );
    let error = lock(&faulty.managed(), "k", quick(), async |_| ())
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert_eq!(error.operation(), Some(Operation::Acquire));
    assert_eq!(faulty.calls(Operation::Acquire), 1);
}

#[tokio::test]
async fn bad_arguments_are_refused_before_any_call() {
    let faulty = FaultyStore::default();
    let backend = faulty.managed();
    for (key, ttl) in [
        ("", MINUTE),
        ("a\0b", MINUTE),
        ("k", Duration::ZERO),
        ("k", Duration::MAX),
    ] {
        let options = LockOptions::new().with_ttl(ttl);
        let error = lock(&backend, key, options, async |_| ())
            .await
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(!error.outcome_unknown() && !error.is_retryable());
    }
    assert_eq!(faulty.calls(Operation::Acquire), 0);
}

#[tokio::test(start_paused = true)]
async fn cancelled_before_the_first_attempt_it_does_nothing() {
    let faulty = FaultyStore::default();
    let token = CancellationToken::new();
    token.cancel();
    let options = quick().with_cancellation(token);
    let error = lock(&faulty.managed(), "k", options, async |_| ())
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::Aborted);
    assert_eq!(faulty.calls(Operation::Acquire), 0);
}

#[tokio::test(start_paused = true)]
async fn cancelled_during_a_long_back_off_it_returns_at_once() {
    let backend = MemoryBackend::default();
    let _holder = acquire(&backend, "k", MINUTE).await.unwrap().unwrap();
    let token = CancellationToken::new();
    let options = LockOptions::new()
        .with_retry_delay(Duration::from_secs(5))
        .with_jitter(Jitter::None)
        .with_timeout(MINUTE)
        .with_cancellation(token.clone());
    let waiting = tokio::spawn({
        let backend = backend.clone();
        async move {
            lock(&backend, "k", options, async |_| ())
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
    let faulty = FaultyStore::default();
    faulty.plan(
        Operation::Acquire,
        [Fault::DelayReply(Duration::from_secs(4))],
    );
    let (backend, token) = (faulty.managed(), CancellationToken::new());
    let options = LockOptions::new().with_cancellation(token.clone());
    let attempt = lock(&backend, "k", options, async |_| ());
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
    let backend = MemoryBackend::default();
    let token = CancellationToken::new();
    let options = LockOptions::new().with_cancellation(token.clone());
    let receipt = lock(&backend, "k", options, async |_| {
        token.cancel();
        "finished in its own time"
    });
    assert!(receipt.await.unwrap().release_error().is_none());
    assert!(!is_locked(&backend, "k").await.unwrap());
}

#[tokio::test]
async fn dropped_in_the_section_the_lock_is_released_at_once() {
    let store = MemoryStore::new();
    let backend = MemoryBackend::new(store.clone());
    let entered = Arc::new(tokio::sync::Notify::new());
    let section = tokio::spawn({
        let entered = Arc::clone(&entered);
        async move {
            lock(&backend, "k", LockOptions::new(), async |_| {
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
    let store = MemoryStore::new();
    let backend = MemoryBackend::new(store.clone());
    let section = tokio::spawn(async move {
        lock(&backend, "k", LockOptions::new(), async |_| {
            panic!("in the section")
        })
        .await
    });
    let panic = section.await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"in the section"));
    until_free(&store, "k").await;
}

#[tokio::test]
async fn the_sections_error_survives_a_failing_release() {
    let faulty = FaultyStore::default();
    faulty.plan(
        Operation::Release,
        [Fault::Refuse(ErrorCode::ServiceUnavailable)],
    );
    let reported = Arc::new(AtomicUsize::new(0));
    let policy = Policy::new().with_on_release_error({
        let reported = Arc::clone(&reported);
        move |error| {
            assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
            reported.fetch_add(1, Ordering::SeqCst);
        }
    });
    let section = async |_| Err::<(), _>("the section's own error");
    let backend = faulty.managed_with(policy);
    let receipt = lock(&backend, "k", LockOptions::new(), section)
        .await
        .unwrap();
    assert_eq!(
        receipt.release_error().unwrap().code(),
        ErrorCode::ServiceUnavailable
    );
    assert_eq!(receipt.into_value(), Err("the section's own error"));
    assert_eq!(reported.load(Ordering::SeqCst), 1);
    until_free(&faulty.store, "k").await;
}

#[tokio::test]
async fn a_section_that_outlived_its_lock_is_told_and_keeps_its_value() {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new(MemoryStore::with_clock(clock.clone()));
    let options = LockOptions::new().with_ttl(Duration::from_secs(1));
    let receipt = lock(&backend, "k", options, async |_| {
        clock.advance(Duration::from_secs(3));
        "late"
    });
    let receipt = receipt.await.unwrap();
    assert!(receipt.overran());
    assert_eq!(receipt.into_value(), "late");
}
