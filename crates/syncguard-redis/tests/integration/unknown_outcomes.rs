//! Callers that go away and replies that come too late.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, ExtendRequest, LockBackend, LookupRequest,
    ReleaseRequest,
};
use syncguard_core::{
    ErrorCode, ExtendResult, Fence, LockError, LockId, LockInfoDebug, Locks, ReleaseResult,
};
use syncguard_redis::RedisBackend;
use syncguard_testkit::RedisServer;

use crate::common::{
    BareCalls as _, Raw, connected, eventually, fresh, fresh_backend, millis, secs,
};

/// A network that delays the replies to acquires.
#[derive(Debug)]
struct Slow(RedisBackend, Duration);

impl LockBackend for Slow {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        let answer = self.0.acquire(request).await;
        tokio::time::sleep(self.1).await;
        answer
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        self.0.release(request).await
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        self.0.extend(request).await
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        self.0.lookup_raw(request).await
    }
}

#[tokio::test]
async fn a_reply_past_the_ttl_is_an_error_and_the_lock_is_released() {
    let server = RedisServer::start().unwrap();
    let raw = Raw::connect(&server.url()).await;
    let backend = connected(&server).await;
    let slow = Locks::new(Slow(backend, Duration::from_millis(600)));
    let attempt = tokio::spawn({
        let slow = slow.clone();
        async move {
            slow.try_lock("k")
                .ttl(Duration::from_millis(500))
                .await
                .map(drop)
        }
    });
    // Without a TTL only a release can free the key.
    eventually("the store grants it", async || {
        raw.run::<i64>(&["PERSIST", "syncguard:k"]).await == 1
    })
    .await;
    for index in raw.run::<Vec<String>>(&["KEYS", "syncguard:id:*"]).await {
        raw.run::<i64>(&["PERSIST", &index]).await;
    }
    let error = attempt.await.unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(error.outcome_unknown());
    slow.drain(Duration::from_secs(20)).await.unwrap();
    assert_eq!(raw.keys().await, ["syncguard:fence:syncguard:k"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_abandoned_acquires_leave_every_key_free() {
    let (_server, locks, raw) = fresh().await;
    let mut callers = tokio::task::JoinSet::new();
    for number in 0_u64..2_000 {
        let locks = locks.clone();
        // 0.1 to 50 ms, in an order without a pattern.
        let patience = Duration::from_micros(100 + number * 7_919 % 49_900);
        callers.spawn(async move {
            let text = format!("k{number}");
            let attempt = locks.try_lock(&text).ttl(Duration::from_secs(3_600));
            match tokio::time::timeout(patience, attempt).await {
                Ok(guard) => {
                    assert!(
                        guard
                            .unwrap()
                            .unwrap()
                            .release()
                            .await
                            .unwrap()
                            .is_released()
                    );
                    false
                }
                Err(_) => true,
            }
        });
        if number % 50 == 49 {
            while callers.len() > 200 {
                callers.join_next().await.unwrap().unwrap();
            }
        }
    }
    let _ = callers.join_all().await;
    locks.drain(Duration::from_secs(60)).await.unwrap();
    let keys = raw.keys().await;
    let left = keys
        .iter()
        .filter(|name| !name.starts_with("syncguard:fence:"))
        .count();
    assert_eq!(left, 0, "without waiting for any TTL");
}

#[tokio::test]
async fn a_release_dropped_at_any_poll_still_frees_the_key() {
    let (_server, backend, raw) = fresh_backend().await;
    let locks = Locks::new(backend.clone());
    for polls in 0.. {
        let guard = locks
            .try_lock("k")
            .ttl(Duration::from_secs(3_600))
            .await
            .unwrap()
            .unwrap();
        let done = drop_after(guard.release(), polls).await;
        locks.drain(Duration::from_secs(20)).await.unwrap();
        eventually("the key is free", async || {
            raw.get("syncguard:k").await.is_none()
        })
        .await;

        let id = LockId::generate().unwrap();
        let _ = backend.acquire_for("bare", &id, secs(3_600)).await.unwrap();
        let bare_done = drop_after(locks.release(id), polls).await;
        locks.drain(Duration::from_secs(20)).await.unwrap();
        if polls > 0 {
            let free = async || raw.get("syncguard:bare").await.is_none();
            eventually("a release that was begun is finished", free).await;
        } else {
            assert!(
                locks.release(id).await.unwrap().is_released(),
                "it was never begun"
            );
        }
        if done && bare_done {
            assert!(polls > 1, "it was dropped on the way");
            return;
        }
    }
}

/// Polls a future so many times and drops it. Returns whether it was done by then.
async fn drop_after<T>(future: impl Future<Output = T>, polls: u32) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if future.as_mut().poll(&mut context).is_ready() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

#[tokio::test]
async fn an_overrun_holder_does_not_release_its_successor() {
    let (_server, backend, _raw) = fresh_backend().await;
    let (first, second) = (LockId::generate().unwrap(), LockId::generate().unwrap());
    let _ = backend.acquire_for("k", &first, millis(50)).await.unwrap();
    eventually("it expires", async || {
        matches!(
            backend.acquire_for("k", &second, secs(60)).await.unwrap(),
            AcquireResult::Acquired(_)
        )
    })
    .await;
    assert!(!backend.release_id(&first).await.unwrap().is_released());
    assert!(backend.is_key_locked("k").await.unwrap());
    assert!(backend.release_id(&second).await.unwrap().is_released());
}

#[tokio::test]
async fn a_release_at_the_expiry_is_never_an_error() {
    let (_server, backend, _raw) = fresh_backend().await;
    for step in 0..40_u64 {
        let id = LockId::generate().unwrap();
        let begun = Instant::now();
        let _ = backend.acquire_for("k", &id, millis(20)).await.unwrap();
        let at = Duration::from_micros(15_000 + step * 250);
        tokio::time::sleep(at.saturating_sub(begun.elapsed())).await;
        let _ = backend.release_id(&id).await.unwrap();
        assert!(!backend.release_id(&id).await.unwrap().is_released());
        eventually("the key is free", async || {
            !backend.is_key_locked("k").await.unwrap()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_tasks_on_sixteen_keys_meet_no_error() {
    let (server, locks, raw) = fresh().await;
    let other = Locks::new(connected(&server).await);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0_u32..64 {
        let locks = if task % 2 == 0 {
            locks.clone()
        } else {
            other.clone()
        };
        tasks.spawn(async move {
            let mut granted = 0_u64;
            for cycle in 0..200 {
                let text = format!("k{}", (task + cycle) % 16);
                let attempt = locks.try_lock(&text).await.unwrap();
                if let Some(guard) = attempt {
                    granted += 1;
                    assert!(guard.release().await.unwrap().is_released());
                }
            }
            granted
        });
    }
    let granted: u64 = tasks.join_all().await.into_iter().sum();
    let mut counted = 0;
    for number in 0..16 {
        let counter = raw
            .get(&format!("syncguard:fence:syncguard:k{number}"))
            .await
            .unwrap();
        counted += counter.parse::<u64>().unwrap();
    }
    assert_eq!(
        counted, granted,
        "each grant took one fence, each contended attempt none"
    );
}
