//! Servers that stop, vanish, forget their scripts or turn read-only.

use std::time::{Duration, Instant};

use syncguard_core::{
    AcquireResult, ErrorCode, LockBackend, LockId, Lookup, ManagedBackend as _, acquire,
};
use syncguard_redis::{RedisBackend, RedisOptions, RedisStore};
use syncguard_testkit::RedisServer;

use crate::common::{Raw, eventually, fresh, impatient, key, secs};

/// What a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_secs(2);

async fn impatient_backend(server: &RedisServer, timeout: Duration) -> RedisBackend {
    let store = RedisStore::connect(&server.url()).await.unwrap();
    RedisBackend::with_policy(store, impatient(timeout))
}

async fn no_lock_stays(backend: &RedisBackend, raw: &Raw) {
    backend.drain(Duration::from_secs(20)).await.unwrap();
    eventually("all locks are given back", async || {
        let keys = raw.keys().await;
        keys.iter().all(|name| name.starts_with("syncguard:fence:"))
    })
    .await;
}

#[tokio::test]
async fn against_a_stopped_server_everything_ends_in_time_and_no_lock_stays() {
    let server = RedisServer::start().unwrap();
    let timeout = Duration::from_millis(500);
    let backend = impatient_backend(&server, timeout).await;
    let raw = Raw::connect(&server.url()).await;
    let held = acquire(&backend, "held", Duration::from_secs(600))
        .await
        .unwrap()
        .unwrap();
    let id = *held.lock_id();

    server.pause().unwrap();
    let mut attempts = tokio::task::JoinSet::new();
    for number in 0..100 {
        let backend = backend.clone();
        attempts.spawn(async move {
            let begun = Instant::now();
            let text = format!("k{number}");
            let outcome = acquire(&backend, &text, Duration::from_secs(600)).await;
            (outcome.map(drop), begun.elapsed())
        });
    }
    for (outcome, took) in attempts.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NetworkTimeout);
        assert!(error.outcome_unknown());
        assert!(took >= timeout && took < timeout + SLACK, "{took:?}");
    }
    let begun = Instant::now();
    let (k, other) = (key("k"), LockId::generate().unwrap());
    let (released, extended, locked, by_key, by_id, acquired) = tokio::join!(
        backend.release(&id),
        backend.extend(&id, secs(60)),
        backend.is_locked(&k),
        backend.lookup(Lookup::Key(&k)),
        backend.lookup(Lookup::Id(&id)),
        backend.acquire(&k, &other, secs(600)),
    );
    assert!(begun.elapsed() < timeout + SLACK);
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
    no_lock_stays(&backend, &raw).await;
    for number in 0..100 {
        let text = format!("k{number}");
        let guard = acquire(&backend, &text, Duration::from_secs(60))
            .await
            .unwrap()
            .unwrap();
        assert!(guard.release().await.unwrap().is_released());
    }
    assert!(
        !held.release().await.unwrap().is_released(),
        "released while it hung"
    );
}

#[tokio::test]
async fn a_server_that_hangs_for_long_costs_the_connection_and_not_the_store() {
    let server = RedisServer::start().unwrap();
    let timeout = Duration::from_millis(400);
    let options = RedisOptions::new().with_timeout(timeout);
    let store = RedisStore::connect_with(&server.url(), options)
        .await
        .unwrap();
    let backend = RedisBackend::with_policy(store, impatient(timeout));
    let raw = Raw::connect(&server.url()).await;
    server.pause().unwrap();
    for number in 0..10 {
        let begun = Instant::now();
        let text = format!("k{number}");
        let error = acquire(&backend, &text, Duration::from_secs(600))
            .await
            .unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        assert!(begun.elapsed() < timeout + SLACK);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.resume().unwrap();
    no_lock_stays(&backend, &raw).await;
    eventually("it works again", async || {
        acquire(&backend, "k0", Duration::from_secs(60))
            .await
            .is_ok_and(|guard| guard.is_some())
    })
    .await;
}

#[tokio::test]
async fn nothing_that_was_asked_of_an_absent_server_happens_when_it_is_back() {
    let mut server = RedisServer::start().unwrap();
    let timeout = Duration::from_millis(300);
    let backend = impatient_backend(&server, timeout).await;
    server.kill();
    let until = Instant::now() + Duration::from_secs(2);
    let mut number = 0;
    while Instant::now() < until {
        let begun = Instant::now();
        let text = format!("k{number}");
        let error = acquire(&backend, &text, Duration::from_secs(600))
            .await
            .unwrap_err();
        assert!(
            matches!(
                error.code(),
                ErrorCode::ServiceUnavailable | ErrorCode::NetworkTimeout
            ),
            "{error:?}"
        );
        assert!(begun.elapsed() < timeout + SLACK);
        number += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(number > 10, "it fails at once while there is no connection");
    server.restart().unwrap();
    let raw = Raw::connect(&server.url()).await;
    eventually("it works again", async || {
        match acquire(&backend, "again", Duration::from_secs(60)).await {
            Ok(guard) => guard.unwrap().release().await.unwrap().is_released(),
            Err(_) => false,
        }
    })
    .await;
    no_lock_stays(&backend, &raw).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let keys = raw.keys().await;
    assert!(
        keys.iter().all(|name| name.starts_with("syncguard:fence:")),
        "{keys:?}"
    );
}

/// Every operation in a row, with something done to the server before each.
async fn life_between(
    backend: &RedisBackend,
    mut disturb: impl AsyncFnMut(),
) -> syncguard_core::Fence {
    let (k, id) = (key("k"), LockId::generate().unwrap());
    disturb().await;
    let granted = backend
        .acquire(&k, &id, secs(600))
        .await
        .unwrap()
        .granted()
        .unwrap();
    disturb().await;
    let other = LockId::generate().unwrap();
    assert_eq!(
        backend.acquire(&k, &other, secs(600)).await.unwrap(),
        AcquireResult::Locked
    );
    disturb().await;
    assert!(backend.is_locked(&k).await.unwrap());
    disturb().await;
    assert_eq!(
        backend
            .lookup(Lookup::Key(&k))
            .await
            .unwrap()
            .unwrap()
            .fence,
        granted.fence
    );
    disturb().await;
    assert_eq!(
        backend
            .lookup(Lookup::Id(&id))
            .await
            .unwrap()
            .unwrap()
            .fence,
        granted.fence
    );
    disturb().await;
    assert!(
        backend
            .extend(&id, secs(600))
            .await
            .unwrap()
            .expires_at_ms()
            .is_some()
    );
    disturb().await;
    assert!(backend.release(&id).await.unwrap().is_released());
    granted.fence
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_loaded_unseen() {
    let (_server, backend, raw) = fresh().await;
    for round in 1..=3 {
        let fence = life_between(&backend, async || {
            raw.run::<()>(&["SCRIPT", "FLUSH"]).await;
        })
        .await;
        assert_eq!(fence.get(), round);
    }
}

#[tokio::test]
async fn a_restart_between_operations_is_unseen() {
    let mut server = RedisServer::start_durable().unwrap();
    let backend = RedisBackend::new(RedisStore::connect(&server.url()).await.unwrap());
    let probe = backend.clone();
    let first = life_between(&backend, async || {
        server.restart().unwrap();
        // The driver notices and returns on its own; an operation before that is an error.
        eventually("reconnected", async || {
            probe.is_locked(&key("probe")).await.is_ok()
        })
        .await;
    })
    .await;
    server.kill();
    server.restart().unwrap();
    eventually("reconnected", async || {
        probe.is_locked(&key("probe")).await.is_ok()
    })
    .await;
    let guard = acquire(&backend, "k", Duration::from_secs(60))
        .await
        .unwrap()
        .unwrap();
    assert!(guard.fence() > first, "fences go on after a restart");
    assert!(guard.release().await.unwrap().is_released());
}

#[tokio::test]
async fn a_replica_refuses_and_the_promoted_server_works() {
    let (_server, backend, raw) = fresh().await;
    let held = acquire(&backend, "held", Duration::from_secs(600))
        .await
        .unwrap()
        .unwrap();
    // Its primary is nobody: the data stays as it is.
    raw.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let refused = [
        acquire(&backend, "k", Duration::from_secs(60))
            .await
            .map(drop)
            .unwrap_err(),
        held.extend(Duration::from_secs(600)).await.unwrap_err(),
        backend.release(held.lock_id()).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
        assert!(error.is_retryable() && !error.outcome_unknown());
    }
    raw.run::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    let guard = acquire(&backend, "k", Duration::from_secs(60))
        .await
        .unwrap()
        .unwrap();
    assert!(guard.release().await.unwrap().is_released());
    // The failed release is being repeated.
    drop(held);
    no_lock_stays(&backend, &raw).await;
}

#[tokio::test]
async fn a_server_without_its_replicas_or_busy_is_unavailable() {
    let (server, backend, raw) = fresh().await;
    raw.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", "3"])
        .await;
    let error = acquire(&backend, "k", Duration::from_secs(60))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert_eq!(raw.keys().await, [""; 0]);
    raw.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .await;

    // A busy server refuses a client that connects, so all connections are made before.
    let killer = Raw::connect(&server.url()).await;
    raw.run::<()>(&["CONFIG", "SET", "busy-reply-threshold", "50"])
        .await;
    let script =
        tokio::spawn(async move { raw.try_run::<()>(&["EVAL", "while true do end", "0"]).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let error = acquire(&backend, "k", Duration::from_secs(60))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(!error.outcome_unknown());
    killer.run::<()>(&["SCRIPT", "KILL"]).await;
    assert!(script.await.unwrap().is_err());
    assert!(
        acquire(&backend, "k", Duration::from_secs(60))
            .await
            .unwrap()
            .is_some()
    );
}
