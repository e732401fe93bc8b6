//! How long a refusal says that a key stays locked.

use std::time::Duration;

use syncguard_core::LockId;
use syncguard_core::backend::AcquireResult;
use syncguard_redis::RedisBackend;
use tokio::time::Instant;

use crate::common::{BareCalls as _, Raw, fresh_backend, millis, secs};

async fn attempt(backend: &RedisBackend) -> AcquireResult {
    let id = LockId::generate().unwrap();
    backend.acquire_for("k", &id, secs(60)).await.unwrap()
}

/// In how long the key is free, by a refusal.
async fn free_in(backend: &RedisBackend) -> Duration {
    match attempt(backend).await {
        AcquireResult::Locked { free_in, .. } => free_in.expect("Redis knows"),
        AcquireResult::Acquired(grant) => panic!("granted: {grant:?}"),
    }
}

async fn server_ms(raw: &Raw) -> i64 {
    let time: Vec<i64> = raw.run(&["TIME"]).await;
    time[0] * 1000 + time[1] / 1000
}

/// The first attempt after what a refusal said is granted, and none that was answered before the expiry.
async fn assert_granted_when_said(backend: &RedisBackend, raw: &Raw, expires_at_ms: i64) {
    let left = free_in(backend).await;
    let said = Instant::now() + left;
    assert!(left >= Duration::from_millis(1));

    tokio::time::sleep(left / 2).await;
    let early = attempt(backend).await;
    if server_ms(raw).await < expires_at_ms {
        assert!(early.is_locked(), "granted before the expiry: {early:?}");
    }
    // A machine that stalled may have asked after the expiry.
    if early.is_locked() {
        tokio::time::sleep_until(said).await;
        let late = attempt(backend).await;
        assert!(late.granted().is_some(), "still locked after {left:?}");
    }
}

#[tokio::test]
async fn a_key_is_granted_once_the_time_has_passed_and_not_before() {
    let (_server, backend, raw) = fresh_backend().await;
    for ttl in [300, 700, 1_100, 1_500] {
        let id = LockId::generate().unwrap();
        let answer = backend.acquire_for("k", &id, millis(ttl)).await.unwrap();
        let expires_at_ms = answer.granted().unwrap().expires_at_ms;
        assert_granted_when_said(&backend, &raw, expires_at_ms).await;
        raw.run::<()>(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn an_extend_moves_it() {
    let (_server, backend, raw) = fresh_backend().await;
    let id = LockId::generate().unwrap();
    let _ = backend.acquire_for("k", &id, secs(600)).await.unwrap();
    assert!(free_in(&backend).await > secs(500).as_duration());
    let extended = backend.extend_id(&id, millis(1_000)).await.unwrap();
    assert!(free_in(&backend).await < secs(500).as_duration());
    assert_granted_when_said(&backend, &raw, extended.expires_at_ms().unwrap()).await;
}

#[tokio::test]
async fn another_implementations_lock_has_it_too() {
    let (_server, backend, raw) = fresh_backend().await;
    let id = LockId::generate().unwrap();
    // By the TypeScript original, which counts PX from the SET; and with numbers as some tool writes
    // them.
    for decimals in ["", ".0"] {
        let expires_at_ms = server_ms(&raw).await + 1_000;
        let stored = format!(
            r#"{{"lockId":"{}","expiresAtMs":{expires_at_ms}{decimals},"acquiredAtMs":{},"key":"k","fence":"000000000000041"}}"#,
            id.as_str(),
            expires_at_ms - 1_000
        );
        raw.run::<()>(&["SET", "syncguard:k", &stored, "PX", "1000"])
            .await;
        let pxat: i64 = raw.expires_at_ms("syncguard:k").await;
        let late = pxat - expires_at_ms;
        let left = free_in(&backend).await;
        let until = Instant::now() + left + Duration::from_millis(late.max(0).unsigned_abs());
        tokio::time::sleep_until(until).await;
        assert!(attempt(&backend).await.granted().is_some());
        raw.run::<()>(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn a_lock_that_lost_its_ttl_is_free_when_the_tolerance_is_over() {
    let (_server, backend, raw) = fresh_backend().await;
    let id = LockId::generate().unwrap();
    let _ = backend.acquire_for("k", &id, millis(500)).await.unwrap();
    assert_eq!(raw.run::<i64>(&["PERSIST", "syncguard:k"]).await, 1);
    let mut refusals = 0;
    while let AcquireResult::Locked { free_in, .. } = attempt(&backend).await {
        refusals += 1;
        tokio::time::sleep(free_in.unwrap()).await;
    }
    assert!(
        refusals <= 2,
        "{refusals}: one until the expiry, one until the tolerance is over"
    );
}
