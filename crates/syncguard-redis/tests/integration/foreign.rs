//! Values in Redis that are not ours, used-up counters, and a server without memory.

use std::time::Duration;

use syncguard_core::backend::{FENCE_MAX, FENCE_WARN};
use syncguard_core::{ErrorCode, LockError, LockId, Locks};
use syncguard_redis::RedisBackend;

use crate::common::{BareCalls as _, Raw, fresh, fresh_backend, granted, secs};

async fn assert_untouched<T: std::fmt::Debug>(
    raw: &Raw,
    names: &[&str],
    operation: impl AsyncFnOnce() -> Result<T, LockError>,
) -> LockError {
    let dump = async || {
        let mut all = Vec::new();
        for name in names {
            let dumped: syncguard_redis::fred::types::Value = raw.run(&["DUMP", name]).await;
            all.push((dumped, raw.expires_at_ms(name).await));
        }
        (all, raw.keys().await)
    };
    let before = dump().await;
    let error = operation().await.unwrap_err();
    assert_eq!(dump().await, before);
    error
}

async fn assert_all_operations_refuse(backend: &RedisBackend, raw: &Raw, id: &LockId) {
    let index = format!("syncguard:id:{}", id.as_str());
    let names = ["syncguard:k", &index, "syncguard:fence:syncguard:k"];
    let new = LockId::generate().unwrap();
    let errors = [
        assert_untouched(raw, &names, async || {
            backend.acquire_for("k", &new, secs(9)).await
        })
        .await,
        assert_untouched(raw, &names, async || backend.is_key_locked("k").await).await,
        assert_untouched(raw, &names, async || backend.lookup_key("k").await).await,
        assert_untouched(raw, &names, async || backend.lookup_id(id).await).await,
        assert_untouched(raw, &names, async || backend.extend_id(id, secs(9)).await).await,
        assert_untouched(raw, &names, async || backend.release_id(id).await).await,
    ];
    for error in errors {
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
        assert!(!error.outcome_unknown());
        assert!(!format!("{error} {error:?}").contains("secret"));
    }
}

#[tokio::test]
async fn a_value_that_is_not_a_lock_is_refused_and_left_unchanged() {
    let (_server, backend, raw) = fresh_backend().await;
    let id = LockId::generate().unwrap();
    let index = format!("syncguard:id:{}", id.as_str());
    raw.run::<()>(&["SET", &index, "syncguard:k"]).await;

    let _ = backend.acquire_for("whole", &id, secs(60)).await.unwrap();
    let whole = raw.get("syncguard:whole").await.unwrap();
    assert!(backend.release_id(&id).await.unwrap().is_released());
    raw.run::<()>(&["SET", &index, "syncguard:k"]).await;

    for value in [
        "secret",
        "",
        "1",
        "null",
        "[]",
        "{}",
        "{\"lockId\":\"secret\"}",
        &whole[..whole.len() - 1],
        &whole[..whole.len() - 2],
        &whole[..60],
        // In our own form except for the expiry, which as a text is not in the past.
        &whole.replacen("\"expiresAtMs\":1", "\"expiresAtMs\":x", 1),
        "\u{0}",
    ] {
        raw.run::<()>(&["SET", "syncguard:k", value]).await;
        assert_all_operations_refuse(&backend, &raw, &id).await;
    }
    for write in [
        ["HSET", "syncguard:k", "secret", "1"].as_slice(),
        &["XADD", "syncguard:k", "*", "secret", "1"],
        &["RPUSH", "syncguard:k", "secret"],
        &["SADD", "syncguard:k", "secret"],
        &["ZADD", "syncguard:k", "1", "secret"],
    ] {
        raw.run::<i64>(&["DEL", "syncguard:k"]).await;
        raw.run::<syncguard_redis::fred::types::Value>(write).await;
        assert_all_operations_refuse(&backend, &raw, &id).await;
    }
}

#[tokio::test]
async fn a_foreign_index_or_counter_is_refused_and_left_unchanged() {
    let (_server, backend, raw) = fresh_backend().await;
    let id = LockId::generate().unwrap();
    let index = format!("syncguard:id:{}", id.as_str());
    raw.run::<i64>(&["RPUSH", &index, "secret"]).await;
    let error = assert_untouched(&raw, &[&index], async || backend.release_id(&id).await).await;
    assert_eq!(error.code(), ErrorCode::InvalidArgument);

    let fence = "syncguard:fence:syncguard:k";
    for write in [["SET", fence, "secret"], ["RPUSH", fence, "secret"]] {
        raw.run::<i64>(&["DEL", fence]).await;
        raw.run::<syncguard_redis::fred::types::Value>(&write).await;
        let error = assert_untouched(&raw, &[fence], async || {
            backend
                .acquire_for("k", &LockId::generate().unwrap(), secs(9))
                .await
        })
        .await;
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
    }
}

#[tokio::test]
async fn a_used_up_counter_grants_nothing_and_does_not_move() {
    let (_server, locks, raw) = fresh().await;
    let fence = "syncguard:fence:syncguard:k";
    for counter in [FENCE_MAX, FENCE_MAX + 1, u64::MAX / 2 - 1, u64::MAX / 2] {
        raw.run::<()>(&["SET", fence, &counter.to_string()]).await;
        let error = assert_untouched(&raw, &[fence], async || locks.try_lock("k").await).await;
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(!error.outcome_unknown());
    }
    for counter in [FENCE_WARN, FENCE_MAX - 1] {
        raw.run::<()>(&["SET", fence, &counter.to_string()]).await;
        let guard = granted(&locks, "k").await;
        assert_eq!(guard.fence().get(), counter + 1);
        assert_eq!(raw.get(fence).await.unwrap(), (counter + 1).to_string());
        assert!(guard.release().await.unwrap().is_released());
    }
    raw.run::<()>(&["SET", fence, "-7"]).await;
    let error = locks.try_lock("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    assert_eq!(raw.get(fence).await.unwrap(), "-7");
}

#[tokio::test]
async fn without_memory_there_is_an_error_and_never_half_a_lock() {
    let (_server, backend, raw) = fresh_backend().await;
    let locks = Locks::new(backend.clone());
    let held = granted(&locks, "held").await;
    // An expired lock that is still there: the script has an index to delete.
    let old = LockId::generate().unwrap();
    let _ = backend.acquire_for("k", &old, secs(1)).await.unwrap();
    let old_index = format!("syncguard:id:{}", old.as_str());
    for name in ["syncguard:k", &old_index] {
        assert_eq!(raw.run::<i64>(&["PERSIST", name]).await, 1);
    }
    tokio::time::sleep(Duration::from_millis(2_100)).await;

    raw.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for text in ["k", "new"] {
        let error = assert_untouched(&raw, &["syncguard:k", &old_index], async || {
            locks.try_lock(text).await
        })
        .await;
        assert_eq!(error.code(), ErrorCode::RateLimited, "{error:?}");
        assert!(error.is_retryable() && !error.outcome_unknown());
    }
    assert!(locks.try_lock("held").await.unwrap().is_none());
    let before = backend.lookup_id(held.lock_id()).await.unwrap().unwrap();
    assert!(
        held.extend(Duration::from_secs(90))
            .await
            .unwrap()
            .is_extended(),
        "a renewal keeps its lock while memory is full"
    );
    let after = backend.lookup_id(held.lock_id()).await.unwrap().unwrap();
    assert!(after.expires_at_ms > before.expires_at_ms + 20_000);
    let index = format!("syncguard:id:{}", held.lock_id().as_str());
    for name in ["syncguard:held", &index] {
        let ends: i64 = raw.expires_at_ms(name).await;
        assert_eq!(ends, after.expires_at_ms, "{name}");
    }
    assert!(
        held.release().await.unwrap().is_released(),
        "a release needs no memory"
    );

    raw.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    for text in ["k", "new"] {
        let guard = granted(&locks, text).await;
        assert!(guard.release().await.unwrap().is_released());
    }
}
