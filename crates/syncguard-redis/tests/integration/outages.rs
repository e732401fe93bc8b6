//! Servers that stop, vanish, forget their scripts or become read-only.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use syncguard_core::{ErrorCode, Fence, LockId, Locks};
use syncguard_redis::{RedisBackend, RedisOptions};
use syncguard_testkit::{RedisServer, in_time};

use crate::common::{
    BareCalls as _, Raw, connected, eventually, fresh, fresh_backend, granted, impatient, secs,
};

async fn impatient_locks(server: &RedisServer, timeout: Duration) -> Locks {
    impatient(connected(server).await, timeout)
}

async fn no_lock_stays(locks: &Locks, raw: &Raw) {
    locks.drain(Duration::from_secs(20)).await.unwrap();
    eventually("all locks are released", async || {
        let keys = raw.keys().await;
        keys.iter().all(|name| name.starts_with("syncguard:fence:"))
    })
    .await;
}

#[tokio::test]
async fn against_a_stopped_server_everything_ends_in_time_and_no_lock_stays() {
    let server = RedisServer::start().unwrap();
    let timeout = Duration::from_millis(500);
    let locks = impatient_locks(&server, timeout).await;
    let raw = Raw::connect(&server.url()).await;
    let held = locks
        .try_lock("held")
        .ttl(Duration::from_secs(600))
        .await
        .unwrap()
        .unwrap();
    let id = *held.lock_id();

    server.pause().unwrap();
    let mut attempts = tokio::task::JoinSet::new();
    for number in 0..100 {
        let locks = locks.clone();
        attempts.spawn(async move {
            let begun = Instant::now();
            let text = format!("k{number}");
            let attempt = locks.try_lock(&text).ttl(Duration::from_secs(600));
            let mut attempt = pin!(attempt.into_future());
            assert!(attempt.as_mut().now_or_never().is_none());
            // If the machine stalls, both timers of this task are late.
            let late = timeout + Duration::from_millis(100);
            let outcome = tokio::time::timeout(late, attempt).await;
            let outcome = outcome.expect("it outlasts its timeout");
            (outcome.map(drop), begun.elapsed())
        });
    }
    for (outcome, took) in attempts.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NetworkTimeout);
        assert!(error.outcome_unknown());
        assert!(took >= timeout, "{took:?}");
    }
    let calls = async {
        tokio::join!(
            locks.release(id),
            locks.extend(id, secs(60)),
            locks.is_locked("k"),
            locks.get_by_key("k"),
            locks.get_by_id(id),
            locks.try_lock("k").into_future(),
        )
    };
    let (released, extended, locked, by_key, by_id, acquired) =
        in_time(timeout, calls).await.unwrap();
    for error in [
        released.unwrap_err(),
        extended.unwrap_err(),
        locked.unwrap_err(),
        by_key.unwrap_err(),
        by_id.unwrap_err(),
        acquired.unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
    }

    server.resume().unwrap();
    no_lock_stays(&locks, &raw).await;
    for number in 0..100 {
        let text = format!("k{number}");
        let guard = granted(&locks, &text).await;
        assert!(guard.release().await.unwrap().is_released());
    }
    assert!(
        !held.release().await.unwrap().is_released(),
        "released while it hung"
    );
}

#[tokio::test]
async fn a_server_that_hangs_for_long_costs_the_connection_and_not_the_backend() {
    let server = RedisServer::start().unwrap();
    let timeout = Duration::from_millis(400);
    let options = RedisOptions::new().timeout(timeout);
    let backend = RedisBackend::connect_with(&server.url(), options)
        .await
        .unwrap();
    let locks = impatient(backend, timeout);
    let raw = Raw::connect(&server.url()).await;
    server.pause().unwrap();
    for number in 0..10 {
        let attempt = locks.try_lock(format!("k{number}")).ttl(secs(600));
        let error = in_time(timeout, attempt).await.unwrap().unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.resume().unwrap();
    no_lock_stays(&locks, &raw).await;
    eventually("it works again", async || {
        locks
            .try_lock("k0")
            .await
            .is_ok_and(|guard| guard.is_some())
    })
    .await;
}

#[tokio::test]
async fn nothing_sent_to_an_absent_server_happens_when_it_is_back() {
    let mut server = RedisServer::start().unwrap();
    let timeout = Duration::from_millis(300);
    let locks = impatient_locks(&server, timeout).await;
    server.kill();
    let until = Instant::now() + Duration::from_secs(2);
    let mut number = 0;
    while Instant::now() < until {
        let attempt = locks.try_lock(format!("k{number}")).ttl(secs(600));
        let error = in_time(timeout, attempt).await.unwrap().unwrap_err();
        assert!(
            matches!(
                error.code(),
                ErrorCode::ServiceUnavailable | ErrorCode::NetworkTimeout
            ),
            "{error:?}"
        );
        number += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(number > 10, "it fails at once while there is no connection");
    server.restart().unwrap();
    let raw = Raw::connect(&server.url()).await;
    eventually("it works again", async || {
        match locks.try_lock("again").await {
            Ok(guard) => guard.unwrap().release().await.unwrap().is_released(),
            Err(_) => false,
        }
    })
    .await;
    no_lock_stays(&locks, &raw).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let keys = raw.keys().await;
    assert!(
        keys.iter().all(|name| name.starts_with("syncguard:fence:")),
        "{keys:?}"
    );
}

/// Every operation in a row, with something done to the server before each.
async fn life_between(backend: &RedisBackend, mut disturb: impl AsyncFnMut()) -> Fence {
    let id = LockId::generate().unwrap();
    disturb().await;
    let answer = backend.acquire_for("k", &id, secs(600)).await.unwrap();
    let grant = answer.granted().unwrap();
    disturb().await;
    let other = LockId::generate().unwrap();
    let answer = backend.acquire_for("k", &other, secs(600)).await.unwrap();
    assert!(answer.is_locked());
    disturb().await;
    assert!(backend.is_key_locked("k").await.unwrap());
    disturb().await;
    let by_key = backend.lookup_key("k").await.unwrap().unwrap();
    assert_eq!(by_key.fence, grant.fence);
    disturb().await;
    let by_id = backend.lookup_id(&id).await.unwrap().unwrap();
    assert_eq!(by_id.fence, grant.fence);
    disturb().await;
    let extended = backend.extend_id(&id, secs(600)).await.unwrap();
    assert!(extended.is_extended());
    disturb().await;
    assert!(backend.release_id(&id).await.unwrap().is_released());
    grant.fence
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_loaded_again() {
    let (_server, backend, raw) = fresh_backend().await;
    for round in 1..=3 {
        let fence = life_between(&backend, async || {
            raw.run::<()>(&["SCRIPT", "FLUSH"]).await;
        })
        .await;
        assert_eq!(fence.get(), round);
    }
}

#[tokio::test]
async fn a_restart_between_operations_changes_no_answer() {
    let mut server = RedisServer::start_durable().unwrap();
    let backend = connected(&server).await;
    let probe = backend.clone();
    let first = life_between(&backend, async || {
        server.restart().unwrap();
        // The driver notices and reconnects by itself; an operation before that is an error.
        eventually("reconnected", async || {
            probe.is_key_locked("probe").await.is_ok()
        })
        .await;
    })
    .await;
    server.kill();
    server.restart().unwrap();
    eventually("reconnected", async || {
        probe.is_key_locked("probe").await.is_ok()
    })
    .await;
    let guard = granted(&Locks::new(backend), "k").await;
    assert!(guard.fence() > first, "fences go on after a restart");
    assert!(guard.release().await.unwrap().is_released());
}

#[tokio::test]
async fn a_replica_refuses_and_the_promoted_server_works() {
    let (_server, locks, raw) = fresh().await;
    let held = locks
        .try_lock("held")
        .ttl(Duration::from_secs(600))
        .await
        .unwrap()
        .unwrap();
    // There is nobody at its primary's address, so the data stays as it is.
    raw.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let refused = [
        locks.try_lock("k").await.map(drop).unwrap_err(),
        held.extend(Duration::from_secs(600)).await.unwrap_err(),
        locks.release(held.lock_id()).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
        assert!(error.is_retryable() && !error.outcome_unknown());
    }
    raw.run::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    let guard = granted(&locks, "k").await;
    assert!(guard.release().await.unwrap().is_released());
    // The background retries the failed release.
    drop(held);
    no_lock_stays(&locks, &raw).await;
}

#[tokio::test]
async fn a_server_without_its_replicas_or_busy_is_unavailable() {
    let (server, locks, raw) = fresh().await;
    raw.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", "3"])
        .await;
    let error = locks.try_lock("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert_eq!(raw.keys().await, [""; 0]);
    raw.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .await;

    // A busy server refuses a client that connects, so all connections are made before.
    let killer = Raw::connect(&server.url()).await;
    raw.run::<()>(&["CONFIG", "SET", "lua-time-limit", "50"])
        .await;
    let script =
        tokio::spawn(async move { raw.try_run::<()>(&["EVAL", "while true do end", "0"]).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let error = locks.try_lock("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(!error.outcome_unknown());
    killer.run::<()>(&["SCRIPT", "KILL"]).await;
    assert!(script.await.unwrap().is_err());
    assert!(locks.try_lock("k").await.unwrap().is_some());
}
