//! Operations whose outcome their caller does not know: none leaves a lock behind.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use syncguard_core::backend::{AcquireRequest, LockBackend as _};
use syncguard_core::observe::{Operation, ReleaseStage};
use syncguard_core::{ErrorCode, LockId, Ttl};
use syncguard_memory::MemoryBackend;
use tokio::time::Instant;

use crate::common::{Fault, FaultyBackend, is_held, until_free};

const MINUTE: Duration = Duration::from_secs(60);

/// Polls a future up to `polls` times, then drops it.
async fn drop_after<F: IntoFuture>(polls: usize, future: F) {
    let mut future = pin!(future.into_future());
    for _ in 0..polls {
        let done = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if done {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_operation_ends_by_its_deadline() {
    let faulty = FaultyBackend::default();
    let all = [
        Operation::Acquire,
        Operation::Release,
        Operation::Extend,
        Operation::IsLocked,
        Operation::Lookup,
    ];
    for operation in all {
        faulty.plan(operation, [Fault::Hang]);
    }
    let timeout = Duration::from_millis(300);
    let locks = faulty.builder().operation_timeout(timeout).build();
    let id = LockId::generate().unwrap();
    let started = Instant::now();
    let errors = [
        locks.try_lock("k").ttl(MINUTE).await.unwrap_err(),
        locks.release(id).await.unwrap_err(),
        locks.extend(id, MINUTE).await.unwrap_err(),
        locks.is_locked("k").await.unwrap_err(),
        locks.get_by_key("k").await.unwrap_err(),
    ];
    assert!(started.elapsed() < timeout * 6);
    for (error, operation) in errors.iter().zip(all) {
        assert_eq!(error.code(), ErrorCode::NetworkTimeout);
        assert_eq!(error.operation(), Some(operation));
        let writes = !matches!(operation, Operation::IsLocked | Operation::Lookup);
        assert_eq!(error.outcome_unknown(), writes, "{error}");
        assert!(error.is_retryable());
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_reply_is_lost_is_released() {
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    let error = faulty.locks().try_lock("k").ttl(MINUTE).await.unwrap_err();
    assert!(error.outcome_unknown());
    assert_eq!(error.key().unwrap().as_str(), "k");
    assert!(error.lock_id().is_some(), "the id to settle it by");
    until_free(&faulty.store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_was_refused_needs_no_giving_back() {
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::Acquire, [Fault::Refuse(ErrorCode::RateLimited)]);
    let locks = faulty.locks();
    let error = locks.try_lock("k").ttl(MINUTE).await.unwrap_err();
    assert!(!error.outcome_unknown());
    locks.drain(MINUTE).await.unwrap();
    assert_eq!(faulty.calls(Operation::Release), 0);
}

#[tokio::test(start_paused = true)]
async fn giving_back_goes_on_while_the_store_is_away() {
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    let away = [Fault::Refuse(ErrorCode::ServiceUnavailable); 6];
    faulty.plan(Operation::Release, [Fault::Hang].into_iter().chain(away));
    let locks = faulty.builder().operation_timeout(MINUTE / 60).build();
    assert!(locks.try_lock("k").ttl(MINUTE).await.is_err());
    until_free(&faulty.store, "k").await;
    assert!(faulty.calls(Operation::Release) >= 8);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_overtaken_by_its_own_release_is_released_too() {
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::Acquire, [Fault::Hang]);
    let locks = faulty.builder().operation_timeout(MINUTE / 600).build();
    let error = locks.try_lock("k").ttl(MINUTE).await.unwrap_err();
    let (key, id) = (error.key().unwrap(), error.lock_id().unwrap());
    // The first release has found nothing; only now the request arrives.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(faulty.calls(Operation::Release) >= 1);
    let (ttl, deadline) = (Ttl::new(MINUTE).unwrap(), Instant::now() + MINUTE);
    let late = AcquireRequest::new(key, id, ttl, deadline);
    let late = faulty.store.acquire(late).await.unwrap();
    assert!(late.granted().is_some());
    until_free(&faulty.store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_arrives_after_its_ttl_is_an_error_and_released() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Acquire,
        [Fault::DelayReply(Duration::from_millis(60))],
    );
    let locks = faulty.locks();
    let error = locks
        .try_lock("k")
        .ttl(Duration::from_millis(30))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(error.outcome_unknown());
    // Not by expiry: the memory store honours the tolerance of a second.
    let freed = tokio::time::timeout(Duration::from_millis(800), until_free(&faulty.store, "k"));
    freed.await.expect("released before it expires");
}

#[tokio::test]
async fn an_acquire_dropped_at_any_poll_leaves_no_lock() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    for (polls, delay) in (1..6).flat_map(|polls| [(polls, 0), (polls, 200)]) {
        // It is at the store at the first poll, and answered long after the last.
        faulty.plan(Operation::Acquire, [Fault::DelayReply(MINUTE)]);
        drop_after(polls, locks.try_lock("k").ttl(MINUTE)).await;
        assert!(
            is_held(&faulty.store, "k").await,
            "the request was never applied"
        );
        until_free(&faulty.store, "k").await;
        faulty.plan(
            Operation::Acquire,
            [Fault::DelayRequest(Duration::from_micros(delay))],
        );
        drop_after(polls, locks.try_lock("k").ttl(MINUTE)).await;
        until_free(&faulty.store, "k").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_outlasts_a_long_outage() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    let guard = locks.try_lock("k").ttl(MINUTE * 30).await.unwrap().unwrap();
    let away = Fault::Refuse(ErrorCode::ServiceUnavailable);
    faulty.plan(Operation::Release, std::iter::repeat_n(away, 100));
    let started = Instant::now();
    assert!(guard.release().await.is_err());
    locks.drain(MINUTE * 30).await.unwrap();
    assert!(
        started.elapsed() > MINUTE,
        "an outage of {:?}",
        started.elapsed()
    );
    until_free(&faulty.store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn what_repetition_cannot_mend_is_reported_and_not_repeated() {
    for code in [ErrorCode::Internal, ErrorCode::InvalidArgument] {
        let faulty = FaultyBackend::default();
        let reports = Arc::new(AtomicUsize::new(0));
        let locks = faulty.builder().on_release_error({
            let reports = Arc::clone(&reports);
            move |failure| {
                assert_eq!(failure.error().code(), code);
                assert_eq!(failure.stage(), ReleaseStage::Background);
                assert!(failure.lock_id_hash().is_some());
                reports.fetch_add(1, Ordering::SeqCst);
            }
        });
        let locks = locks.build();
        let guard = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
        faulty.plan(Operation::Release, [Fault::Refuse(code); 100]);
        assert_eq!(guard.release().await.unwrap_err().code(), code);
        locks.drain(MINUTE).await.unwrap();
        assert_eq!(faulty.calls(Operation::Release), 2);
        assert_eq!(reports.load(Ordering::SeqCst), 1);
    }
}

/// Credentials are rotated while a process runs.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_denied_for_a_while_is_repeated() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Release,
        [Fault::Refuse(ErrorCode::AuthFailed); 5],
    );
    let guard = faulty.locks().lock("k").ttl(MINUTE).await.unwrap();
    guard.release().await.unwrap_err();
    until_free(&faulty.store, "k").await;
}

/// Thousands of callers give up while the store is away: what is pending stays small, and when the
/// store is back, few releases run at once and all are soon done.
#[tokio::test(start_paused = true)]
async fn after_an_outage_a_few_at_a_time_release_what_thousands_left() {
    const ABANDONED: usize = 3_000;
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::Acquire, [Fault::LoseReply; ABANDONED]);
    let refusal = Fault::Refuse(ErrorCode::ServiceUnavailable);
    faulty.plan(Operation::Release, [refusal; 40]);
    let locks = faulty.locks();
    for key in 0..ABANDONED {
        let acquire = locks.try_lock(format!("k{key}")).ttl(MINUTE * 10);
        acquire.await.unwrap_err();
    }
    assert_eq!(locks.pending(), ABANDONED);
    // One at a time finds out whether the store is back, at growing intervals.
    let answer = Fault::DelayReply(Duration::from_millis(5));
    faulty.plan(Operation::Release, [answer; ABANDONED]);
    while faulty.calls(Operation::Release) < 41 {
        assert!(faulty.in_flight(Operation::Release) <= 16);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let back = Instant::now();
    while locks.pending() > 0 {
        assert!(faulty.in_flight(Operation::Release) <= 16);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(back.elapsed() < Duration::from_secs(10));
    assert!(!is_held(&faulty.store, "k0").await);
}

/// Callers that give up on a held key do not load the store with releases of what they never had.
#[tokio::test(start_paused = true)]
async fn an_abandoned_acquire_of_a_held_key_costs_few_releases() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    let _held = locks.lock("k").ttl(MINUTE).await.unwrap();
    for _ in 0..100 {
        faulty.plan(Operation::Acquire, [Fault::DelayReply(MINUTE)]);
        drop_after(1, locks.try_lock("k").ttl(MINUTE)).await;
    }
    locks.drain(MINUTE).await.unwrap();
    let releases = faulty.calls(Operation::Release);
    assert!(releases <= 600, "{releases} releases for 100 callers");
}

#[tokio::test]
async fn a_release_dropped_at_any_poll_still_frees_the_key() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    for polls in 0..6 {
        for by_id in [false, true] {
            let guard = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
            faulty.plan(
                Operation::Release,
                [Fault::DelayRequest(Duration::from_millis(2))],
            );
            if by_id {
                let id = *guard.lock_id();
                let _detached = guard.detach();
                // A release that was never polled was never begun.
                drop_after(polls.max(1), locks.release(id)).await;
            } else {
                drop_after(polls, guard.release()).await;
            }
            until_free(&faulty.store, "k").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_reply_is_lost_can_be_repeated() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    let lease = locks
        .try_lock("k")
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap()
        .detach();
    faulty.plan(Operation::Release, [Fault::LoseReply]);
    let error = locks.release(lease.lock_id()).await.unwrap_err();
    assert!(error.outcome_unknown());
    assert!(!locks.release(lease.lock_id()).await.unwrap().is_released());
    assert!(locks.try_lock("k").ttl(MINUTE).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn giving_back_ends_with_the_ttl_and_leaves_no_task() {
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    let away = Fault::Refuse(ErrorCode::ServiceUnavailable);
    faulty.plan(Operation::Release, std::iter::repeat_n(away, 10_000));
    let locks = faulty.locks();
    assert!(locks.try_lock("k").ttl(MINUTE).await.is_err());
    locks.drain(MINUTE / 2).await.unwrap_err();
    assert_eq!(locks.pending(), 1);
    locks.drain(MINUTE).await.unwrap();
    assert!(faulty.calls(Operation::Release) > 30);
    assert_eq!(locks.pending(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_acquires_in_random_timeouts_leave_every_key_free() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    let faults = (0..2_000).map(|n| match n % 4 {
        0 => Fault::Pass,
        1 => Fault::DelayRequest(Duration::from_millis(n % 53)),
        2 => Fault::DelayReply(Duration::from_millis(n % 47)),
        _ => Fault::LoseReply,
    });
    faulty.plan(Operation::Acquire, faults);
    let mut attempts = tokio::task::JoinSet::new();
    for n in 0..2_000_u64 {
        let locks = locks.clone();
        let patience = Duration::from_micros(100 + (n * 7919) % 49_900);
        attempts.spawn(async move {
            let attempt = locks.try_lock(format!("k{}", n % 20)).ttl(MINUTE * 10);
            drop(tokio::time::timeout(patience, attempt).await);
        });
    }
    attempts.join_all().await;
    locks.drain(MINUTE / 2).await.unwrap();
    free_all(&faulty.store).await;
}

async fn free_all(store: &MemoryBackend) {
    for n in 0..20 {
        let key = format!("k{n}");
        assert!(!is_held(store, &key).await, "{key} is held by nobody");
    }
}
