//! Callers that go away and answers that come too late.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use syncguard_core::{
    AcquireResult, Capabilities, ErrorCode, ExtendResult, Fence, LockBackend, LockError, LockId,
    LockInfoDebug, LockKey, Lookup, Managed, ManagedBackend as _, ReleaseResult, Ttl, acquire,
};
use syncguard_redis::{RedisBackend, RedisStore};
use syncguard_testkit::RedisServer;

use crate::common::{Raw, eventually, fresh, key, millis, secs};

/// A network that holds back the answers to acquires.
#[derive(Debug, Clone)]
struct Slow(RedisStore, Duration);

impl LockBackend for Slow {
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
        let answer = self.0.acquire(key, id, ttl).await;
        tokio::time::sleep(self.1).await;
        answer
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
async fn an_answer_past_the_ttl_is_an_error_and_the_lock_is_given_back() {
    let server = RedisServer::start().unwrap();
    let raw = Raw::connect(&server.url()).await;
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let slow = Managed::new(Slow(store, Duration::from_millis(600)));
    let attempt = tokio::spawn({
        let slow = slow.clone();
        async move {
            acquire(&slow, "k", Duration::from_millis(500))
                .await
                .map(drop)
        }
    });
    // The TTL is taken away, so that only a release can free the key.
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
    let (_server, backend, raw) = fresh().await;
    let mut callers = tokio::task::JoinSet::new();
    for number in 0_u64..2_000 {
        let backend = backend.clone();
        // 0.1 to 50 ms, in an order without a pattern.
        let patience = Duration::from_micros(100 + number * 7_919 % 49_900);
        callers.spawn(async move {
            let text = format!("k{number}");
            let attempt = acquire(&backend, &text, Duration::from_secs(3_600));
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
    backend.drain(Duration::from_secs(60)).await.unwrap();
    let keys = raw.keys().await;
    let left = keys
        .iter()
        .filter(|name| !name.starts_with("syncguard:fence:"))
        .count();
    assert_eq!(left, 0, "without waiting for any TTL");
}

#[tokio::test]
async fn a_release_dropped_at_any_poll_still_frees_the_key() {
    let (_server, backend, raw) = fresh().await;
    for polls in 0.. {
        let guard = acquire(&backend, "k", Duration::from_secs(3_600))
            .await
            .unwrap()
            .unwrap();
        let done = drop_after(guard.release(), polls).await;
        backend.drain(Duration::from_secs(20)).await.unwrap();
        eventually("the key is free", async || {
            raw.get("syncguard:k").await.is_none()
        })
        .await;

        let id = LockId::generate().unwrap();
        let _ = backend
            .acquire(&key("bare"), &id, secs(3_600))
            .await
            .unwrap();
        let bare_done = drop_after(backend.release(&id), polls).await;
        backend.drain(Duration::from_secs(20)).await.unwrap();
        if polls > 0 {
            let free = async || raw.get("syncguard:bare").await.is_none();
            eventually("a release that was begun is finished", free).await;
        } else {
            assert!(
                backend.release(&id).await.unwrap().is_released(),
                "it was never begun"
            );
        }
        if done && bare_done {
            assert!(polls > 1, "it was dropped on the way");
            return;
        }
    }
}

/// Polls a future so often and drops it. Whether it was done by then.
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
    let (_server, backend, _raw) = fresh().await;
    let (first, second) = (LockId::generate().unwrap(), LockId::generate().unwrap());
    let store = backend.get_ref();
    let _ = store.acquire(&key("k"), &first, millis(50)).await.unwrap();
    eventually("it runs out", async || {
        matches!(
            store.acquire(&key("k"), &second, secs(60)).await.unwrap(),
            AcquireResult::Acquired(_)
        )
    })
    .await;
    assert!(!backend.release(&first).await.unwrap().is_released());
    assert!(backend.is_locked(&key("k")).await.unwrap());
    assert!(backend.release(&second).await.unwrap().is_released());
}

#[tokio::test]
async fn a_release_at_the_expiry_is_never_an_error() {
    let (_server, backend, _raw) = fresh().await;
    let store = backend.get_ref();
    for step in 0..40_u64 {
        let id = LockId::generate().unwrap();
        let begun = Instant::now();
        let _ = store.acquire(&key("k"), &id, millis(20)).await.unwrap();
        let at = Duration::from_micros(15_000 + step * 250);
        tokio::time::sleep(at.saturating_sub(begun.elapsed())).await;
        let _ = store.release(&id).await.unwrap();
        assert!(!store.release(&id).await.unwrap().is_released());
        eventually("the key is free", async || {
            !store.is_locked(&key("k")).await.unwrap()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_tasks_on_sixteen_keys_meet_no_error() {
    let (server, backend, raw) = fresh().await;
    let other = RedisBackend::new(RedisStore::connect(&server.url()).await.unwrap());
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0_u32..64 {
        let backend = if task % 2 == 0 {
            backend.clone()
        } else {
            other.clone()
        };
        tasks.spawn(async move {
            let mut granted = 0_u64;
            for cycle in 0..200 {
                let text = format!("k{}", (task + cycle) % 16);
                let attempt = acquire(&backend, &text, Duration::from_secs(60))
                    .await
                    .unwrap();
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
