//! Callers that go away and replies that come too late.

use std::time::Duration;

use syncguard_core::{ErrorCode, Locks};
use syncguard_redis::RedisBackend;
use syncguard_testkit::{FaultProxy, Faults, Flow, RedisServer};

use crate::common::{Raw, connected, eventually, fresh};

#[tokio::test]
async fn a_reply_past_the_ttl_is_an_error_and_the_lock_is_released() {
    let server = RedisServer::start().unwrap();
    let raw = Raw::connect(&server.url()).await;
    let proxy = FaultProxy::start(server.port()).unwrap();
    let url = format!("redis://{}", proxy.address());
    let slow = Locks::new(RedisBackend::connect(&url).await.unwrap());
    // From now on the server knows the scripts.
    let guard = slow.lock("k").await.unwrap();
    assert!(guard.release().await.unwrap().is_released());
    proxy.set(Faults {
        replies: Flow::Delay(Duration::from_millis(600)),
        ..Faults::NONE
    });
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
