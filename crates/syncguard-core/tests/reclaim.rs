//! Operations whose outcome their caller does not know: none leaves a lock behind.

mod common;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use common::{Fault, FaultyStore, until_free};
use syncguard_core::{
    AcquireResult, Capabilities, ErrorCode, ExtendResult, Fence, Grant, LockBackend, LockError,
    LockId, LockInfoDebug, LockKey, Lookup, Managed, ManagedBackend as _, Operation, Policy,
    ReleaseResult, Ttl, acquire, get_by_key, release,
};
use syncguard_memory::MemoryStore;

const MINUTE: Duration = Duration::from_secs(60);

/// Polls a future up to `polls` times, then drops it.
async fn drop_after<F: Future>(polls: usize, future: F) {
    let mut future = pin!(future);
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
    let faulty = FaultyStore::default();
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
    let backend = faulty.managed_with(Policy::new().with_operation_timeout(timeout));
    let id = LockId::generate().unwrap();
    let started = tokio::time::Instant::now();
    let errors = [
        acquire(&backend, "k", MINUTE).await.unwrap_err(),
        release(&backend, id).await.unwrap_err(),
        syncguard_core::extend(&backend, id, MINUTE)
            .await
            .unwrap_err(),
        syncguard_core::is_locked(&backend, "k").await.unwrap_err(),
        get_by_key(&backend, "k").await.unwrap_err(),
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
async fn an_acquire_whose_reply_is_lost_is_given_back() {
    let faulty = FaultyStore::default();
    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    let error = acquire(&faulty.managed(), "k", MINUTE).await.unwrap_err();
    assert!(error.outcome_unknown());
    assert_eq!(error.key().unwrap().as_str(), "k");
    assert!(error.lock_id().is_some(), "the id to settle it by");
    until_free(&faulty.store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_was_refused_needs_no_giving_back() {
    let faulty = FaultyStore::default();
    faulty.plan(Operation::Acquire, [Fault::Refuse(ErrorCode::RateLimited)]);
    let backend = faulty.managed();
    let error = acquire(&backend, "k", MINUTE).await.unwrap_err();
    assert!(!error.outcome_unknown());
    backend.drain(MINUTE).await.unwrap();
    assert_eq!(faulty.calls(Operation::Release), 0);
}

#[tokio::test(start_paused = true)]
async fn giving_back_goes_on_while_the_store_is_away() {
    let faulty = FaultyStore::default();
    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    let away = [Fault::Refuse(ErrorCode::ServiceUnavailable); 6];
    faulty.plan(Operation::Release, [Fault::Hang].into_iter().chain(away));
    let backend = faulty.managed_with(Policy::new().with_operation_timeout(MINUTE / 60));
    assert!(acquire(&backend, "k", MINUTE).await.is_err());
    until_free(&faulty.store, "k").await;
    assert!(faulty.calls(Operation::Release) >= 8);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_overtaken_by_its_own_release_is_given_back_too() {
    let faulty = FaultyStore::default();
    let (key, id) = (LockKey::new("k").unwrap(), LockId::generate().unwrap());
    faulty.plan(Operation::Acquire, [Fault::Hang]);
    let backend = faulty.managed_with(Policy::new().with_operation_timeout(MINUTE / 600));
    let ttl = MINUTE.try_into().unwrap();
    assert!(backend.acquire(&key, &id, ttl).await.is_err());
    // The first release has found nothing; only now the request arrives.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(faulty.calls(Operation::Release) >= 1);
    assert!(
        faulty
            .store
            .acquire(&key, &id, ttl)
            .await
            .unwrap()
            .granted()
            .is_some()
    );
    until_free(&faulty.store, "k").await;
}

#[tokio::test]
async fn a_grant_that_arrives_after_its_ttl_is_an_error_and_given_back() {
    let faulty = FaultyStore::default();
    faulty.plan(
        Operation::Acquire,
        [Fault::DelayReply(Duration::from_millis(60))],
    );
    let backend = faulty.managed();
    let error = acquire(&backend, "k", Duration::from_millis(30))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(error.outcome_unknown());
    // Not by expiry: the memory store honours the tolerance of a second.
    let freed = tokio::time::timeout(Duration::from_millis(800), until_free(&faulty.store, "k"));
    freed.await.expect("given back before it expires");
}

#[tokio::test]
async fn an_acquire_dropped_at_any_poll_leaves_no_lock() {
    let faulty = FaultyStore::default();
    let backend = faulty.managed();
    let key = LockKey::new("k").unwrap();
    for (polls, delay) in (1..6).flat_map(|polls| [(polls, 0), (polls, 200)]) {
        // It is at the store at the first poll, and answered long after the last.
        faulty.plan(Operation::Acquire, [Fault::DelayReply(MINUTE)]);
        drop_after(polls, acquire(&backend, "k", MINUTE)).await;
        assert!(
            faulty.store.is_locked(&key).await.unwrap(),
            "the request was never applied"
        );
        until_free(&faulty.store, "k").await;
        faulty.plan(
            Operation::Acquire,
            [Fault::DelayRequest(Duration::from_micros(delay))],
        );
        drop_after(polls, acquire(&backend, "k", MINUTE)).await;
        until_free(&faulty.store, "k").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_outlasts_a_long_outage() {
    let faulty = FaultyStore::default();
    let backend = faulty.managed();
    let guard = acquire(&backend, "k", MINUTE * 30).await.unwrap().unwrap();
    let away = Fault::Refuse(ErrorCode::ServiceUnavailable);
    faulty.plan(Operation::Release, std::iter::repeat_n(away, 100));
    let started = tokio::time::Instant::now();
    assert!(guard.release().await.is_err());
    backend.drain(MINUTE * 30).await.unwrap();
    assert!(
        started.elapsed() > MINUTE,
        "an outage of {:?}",
        started.elapsed()
    );
    until_free(&faulty.store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn what_repetition_cannot_mend_is_reported_and_not_repeated() {
    for code in [ErrorCode::AuthFailed, ErrorCode::InvalidArgument] {
        let faulty = FaultyStore::default();
        let reports = Arc::new(AtomicUsize::new(0));
        let policy = Policy::new().with_on_release_error({
            let reports = Arc::clone(&reports);
            move |error| {
                assert_eq!(error.code(), code);
                assert!(error.lock_id().is_some());
                reports.fetch_add(1, Ordering::SeqCst);
            }
        });
        let backend = faulty.managed_with(policy);
        let guard = acquire(&backend, "k", MINUTE).await.unwrap().unwrap();
        faulty.plan(Operation::Release, [Fault::Refuse(code); 100]);
        assert_eq!(guard.release().await.unwrap_err().code(), code);
        backend.drain(MINUTE).await.unwrap();
        assert_eq!(faulty.calls(Operation::Release), 2);
        assert_eq!(reports.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn a_release_dropped_at_any_poll_still_frees_the_key() {
    let faulty = FaultyStore::default();
    let backend = faulty.managed();
    for polls in 0..6 {
        for by_id in [false, true] {
            let guard = acquire(&backend, "k", MINUTE).await.unwrap().unwrap();
            faulty.plan(
                Operation::Release,
                [Fault::DelayRequest(Duration::from_millis(2))],
            );
            if by_id {
                let id = *guard.lock_id();
                let _detached = guard.detach();
                // A release that was never polled was never begun.
                drop_after(polls.max(1), release(&backend, id)).await;
            } else {
                drop_after(polls, guard.release()).await;
            }
            until_free(&faulty.store, "k").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_reply_is_lost_can_be_repeated() {
    let faulty = FaultyStore::default();
    let backend = faulty.managed();
    let lease = acquire(&backend, "k", MINUTE)
        .await
        .unwrap()
        .unwrap()
        .detach();
    faulty.plan(Operation::Release, [Fault::LoseReply]);
    let error = release(&backend, lease.lock_id()).await.unwrap_err();
    assert!(error.outcome_unknown());
    assert!(
        !release(&backend, lease.lock_id())
            .await
            .unwrap()
            .is_released()
    );
    assert!(acquire(&backend, "k", MINUTE).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn giving_back_ends_with_the_ttl_and_leaves_no_task() {
    let faulty = FaultyStore::default();
    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    let away = Fault::Refuse(ErrorCode::ServiceUnavailable);
    faulty.plan(Operation::Release, std::iter::repeat_n(away, 10_000));
    let backend = faulty.managed();
    assert!(acquire(&backend, "k", MINUTE).await.is_err());
    backend.drain(MINUTE / 2).await.unwrap_err();
    assert_eq!(backend.policy().pending(), 1);
    backend.drain(MINUTE).await.unwrap();
    assert!(faulty.calls(Operation::Release) > 30);
    assert_eq!(backend.policy().pending(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_acquires_in_random_timeouts_leave_every_key_free() {
    let faulty = FaultyStore::default();
    let backend = faulty.managed();
    let faults = (0..2_000).map(|n| match n % 4 {
        0 => Fault::Pass,
        1 => Fault::DelayRequest(Duration::from_millis(n % 53)),
        2 => Fault::DelayReply(Duration::from_millis(n % 47)),
        _ => Fault::LoseReply,
    });
    faulty.plan(Operation::Acquire, faults);
    let mut attempts = tokio::task::JoinSet::new();
    for n in 0..2_000_u64 {
        let backend = backend.clone();
        let patience = Duration::from_micros(100 + (n * 7919) % 49_900);
        attempts.spawn(async move {
            let attempt = acquire(&backend, format!("k{}", n % 20), MINUTE * 10);
            drop(tokio::time::timeout(patience, attempt).await);
        });
    }
    attempts.join_all().await;
    backend.drain(MINUTE / 2).await.unwrap();
    free_all(&faulty.store).await;
}

async fn free_all(store: &MemoryStore) {
    for n in 0..20 {
        let key = LockKey::try_from(format!("k{n}")).unwrap();
        assert!(
            !store.is_locked(&key).await.unwrap(),
            "{key:?} is held by nobody"
        );
    }
}

/// Grants a fence that no store should.
#[derive(Debug, Clone)]
struct Exhausted(MemoryStore);

impl LockBackend for Exhausted {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let grant = self.0.acquire(key, id, ttl).await?.granted();
        let fence = "900000000000001".parse()?;
        Ok(grant.map_or(AcquireResult::Locked, |grant| {
            AcquireResult::Acquired(Grant { fence, ..grant })
        }))
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        self.0.release(id).await
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        self.0.extend(id, ttl).await
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        self.0.is_locked(key).await
    }

    async fn lookup_raw(&self, by: Lookup<'_>) -> Result<Option<LockInfoDebug>, LockError> {
        self.0.lookup_raw(by).await
    }
}

#[tokio::test]
async fn a_fence_beyond_the_end_is_an_error_and_given_back_whatever_the_store_says() {
    let store = MemoryStore::new();
    let backend = Managed::new(Exhausted(store.clone()));
    let error = acquire(&backend, "k", MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    until_free(&store, "k").await;
}
