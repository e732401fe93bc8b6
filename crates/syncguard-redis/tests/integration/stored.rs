//! What is stored in Redis, byte for byte, and with how few commands.

use std::time::Duration;

use syncguard_core::backend::AcquireResult;
use syncguard_core::{ExtendResult, LockId, Locks, ReleaseResult};

use crate::common::{BareCalls as _, Raw, fresh, fresh_backend, granted, millis, secs};

const KEY: &str = "pay\"ment:42/\u{e9}\n";

#[tokio::test]
async fn three_keys_hold_what_the_specification_says() {
    let (_server, locks, raw) = fresh().await;
    let guard = granted(&locks, KEY).await;
    let lock = format!("syncguard:{KEY}");
    let index = format!("syncguard:id:{}", guard.lock_id().as_str());
    let fence = format!("syncguard:fence:syncguard:{KEY}");
    let mut expected = vec![lock.clone(), index.clone(), fence.clone()];
    expected.sort();
    assert_eq!(raw.keys().await, expected);

    let value: serde_json::Value = serde_json::from_str(&raw.get(&lock).await.unwrap()).unwrap();
    let acquired_at_ms = value["acquiredAtMs"].as_i64().unwrap();
    assert_eq!(
        value,
        serde_json::json!({
            "lockId": guard.lock_id().as_str(),
            "expiresAtMs": guard.expires_at_ms(),
            "acquiredAtMs": acquired_at_ms,
            "key": KEY,
            "fence": "000000000000001",
        })
    );
    assert_eq!(guard.expires_at_ms(), acquired_at_ms + 60_000);
    assert_eq!(raw.get(&index).await.unwrap(), lock);
    assert_eq!(raw.get(&fence).await.unwrap(), "1");
    for name in [&lock, &index, &fence] {
        assert_eq!(raw.run::<String>(&["TYPE", name]).await, "string");
    }
    assert_same_expiry(&raw, &lock, &index).await;
    assert_eq!(
        raw.run::<i64>(&["PTTL", &fence]).await,
        -1,
        "a counter never ends"
    );

    let _ = guard.extend(Duration::from_secs(5)).await.unwrap();
    assert_same_expiry(&raw, &lock, &index).await;
    let extended: serde_json::Value = serde_json::from_str(&raw.get(&lock).await.unwrap()).unwrap();
    let mut renewed = value.clone();
    renewed["expiresAtMs"] = guard.expires_at_ms().into();
    assert_eq!(extended, renewed, "nothing but the expiry changes");

    assert!(guard.release().await.unwrap().is_released());
    assert_eq!(raw.keys().await, [fence.as_str()], "the counter stays");
    assert_eq!(raw.get(&fence).await.unwrap(), "1");
}

/// By the time of expiry that Redis reports, to the millisecond.
async fn assert_same_expiry(raw: &Raw, lock: &str, index: &str) {
    let of_lock: i64 = raw.expires_at_ms(lock).await;
    let of_index: i64 = raw.expires_at_ms(index).await;
    assert_eq!(of_lock, of_index);
    let value: serde_json::Value = serde_json::from_str(&raw.get(lock).await.unwrap()).unwrap();
    let stored = value["expiresAtMs"].as_i64().unwrap();
    assert_eq!(stored, of_lock);
}

#[tokio::test]
async fn each_grant_has_its_own_ttl() {
    let (_server, backend, raw) = fresh_backend().await;
    for ttl in [60_000, 1_234, 10 * 365 * 24 * 60 * 60 * 1000, 45_678] {
        let id = LockId::generate().unwrap();
        let answer = backend.acquire_for("k", &id, millis(ttl)).await.unwrap();
        let expires_at_ms = answer.granted().unwrap().expires_at_ms;
        let value: serde_json::Value =
            serde_json::from_str(&raw.get("syncguard:k").await.unwrap()).unwrap();
        let acquired_at_ms = value["acquiredAtMs"].as_i64().unwrap();
        assert_eq!(expires_at_ms - acquired_at_ms, i64::try_from(ttl).unwrap());
        assert_same_expiry(
            &raw,
            "syncguard:k",
            &format!("syncguard:id:{}", id.as_str()),
        )
        .await;
        assert!(backend.release_id(&id).await.unwrap().is_released());
    }
}

#[tokio::test]
async fn a_contended_acquire_writes_nothing() {
    let (_server, locks, raw) = fresh().await;
    let guard = granted(&locks, "k").await;
    let before = (
        raw.get("syncguard:k").await,
        raw.expires_at_ms("syncguard:k").await,
        raw.get("syncguard:fence:syncguard:k").await,
        raw.keys().await,
        raw.info("persistence", "rdb_changes_since_last_save").await,
    );
    for _ in 0..20 {
        assert!(locks.try_lock("k").await.unwrap().is_none());
    }
    let after = (
        raw.get("syncguard:k").await,
        raw.expires_at_ms("syncguard:k").await,
        raw.get("syncguard:fence:syncguard:k").await,
        raw.keys().await,
        raw.info("persistence", "rdb_changes_since_last_save").await,
    );
    assert_eq!(before, after);
    assert!(guard.release().await.unwrap().is_released());
}

#[tokio::test]
async fn a_replayed_acquire_is_the_same_grant_and_writes_nothing() {
    let (_server, backend, raw) = fresh_backend().await;
    let id = LockId::generate().unwrap();
    let first = backend.acquire_for("k", &id, secs(60)).await.unwrap();
    let changes = raw.info("persistence", "rdb_changes_since_last_save").await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let again = backend.acquire_for("k", &id, secs(30)).await.unwrap();
    assert!(matches!(first, AcquireResult::Acquired(_)));
    assert_eq!(first, again);
    assert_eq!(
        raw.info("persistence", "rdb_changes_since_last_save").await,
        changes
    );
}

#[tokio::test]
async fn every_operation_is_one_round_trip_once_its_script_is_loaded() {
    let (_server, backend, raw) = fresh_backend().await;
    let id = LockId::generate().unwrap();
    for round in 0..2 {
        // Scripts that were called; the INFO that counts them is none.
        let outside = async || raw.commands_run("evalsha").await + raw.commands_run("eval").await;
        let before = outside().await;
        let _ = backend.acquire_for("k", &id, secs(60)).await.unwrap();
        let _ = backend
            .acquire_for("k", &LockId::generate().unwrap(), secs(60))
            .await
            .unwrap();
        assert!(backend.is_key_locked("k").await.unwrap());
        assert!(backend.lookup_key("k").await.unwrap().is_some());
        assert!(backend.lookup_id(&id).await.unwrap().is_some());
        let _ = backend.extend_id(&id, secs(60)).await.unwrap();
        let _ = backend.release_id(&id).await.unwrap();
        let calls = outside().await - before;
        match round {
            0 => assert_eq!(calls, 7 + 5, "five scripts were loaded"),
            _ => assert_eq!(calls, 7),
        }
    }
    let others: String = raw.run(&["INFO", "commandstats"]).await;
    assert!(!others.contains("cmdstat_script"), "{others}");
}

#[tokio::test]
async fn a_lock_that_the_other_implementation_stored_works_in_every_operation() {
    let (_server, backend, raw) = fresh_backend().await;
    let locks = Locks::new(backend.clone());
    let id = LockId::generate().unwrap();
    let now_ms: Vec<i64> = raw.run(&["TIME"]).await;
    let now_ms = now_ms[0] * 1000 + now_ms[1] / 1000;
    // As cjson writes it: fields in hash order, slashes escaped.
    let stored = format!(
        r#"{{"fence":"000000000000041","acquiredAtMs":{now_ms},"key":"a\/b","lockId":"{}","expiresAtMs":{}}}"#,
        id.as_str(),
        now_ms + 60_000
    );
    let index = format!("syncguard:id:{}", id.as_str());
    let write = async || {
        raw.run::<()>(&["SET", "syncguard:a/b", &stored, "PX", "60000"])
            .await;
        raw.run::<()>(&["SET", &index, "syncguard:a/b", "PX", "60000"])
            .await;
        raw.run::<()>(&["SET", "syncguard:fence:syncguard:a/b", "41"])
            .await;
    };

    write().await;
    assert!(backend.is_key_locked("a/b").await.unwrap());
    assert!(locks.try_lock("a/b").await.unwrap().is_none());
    let found = locks.get_by_id_raw(id).await.unwrap().unwrap();
    assert_eq!(found, locks.get_by_key_raw("a/b").await.unwrap().unwrap());
    assert_eq!(
        (found.key.as_str(), found.lock_id, found.fence.get()),
        ("a/b", id, 41)
    );

    let extended = backend.extend_id(&id, secs(600)).await.unwrap();
    let expires_at_ms = extended.expires_at_ms().unwrap();
    assert!(expires_at_ms >= now_ms + 600_000);
    assert_same_expiry(&raw, "syncguard:a/b", &index).await;
    let after = locks.get_by_key_raw("a/b").await.unwrap().unwrap();
    assert_eq!(
        (after.expires_at_ms, after.acquired_at_ms, after.fence.get()),
        (expires_at_ms, now_ms, 41)
    );

    assert_eq!(
        backend.release_id(&id).await.unwrap(),
        ReleaseResult::Released
    );
    let next = granted(&locks, "a/b").await;
    assert_eq!(next.fence().get(), 42);
    assert!(next.release().await.unwrap().is_released());

    write().await;
    let replayed = backend
        .acquire_for("a/b", &id, secs(9))
        .await
        .unwrap()
        .granted()
        .unwrap();
    assert_eq!(
        (replayed.expires_at_ms, replayed.fence.get()),
        (now_ms + 60_000, 41)
    );
}

#[tokio::test]
async fn reads_and_acquires_agree_on_numbers_however_they_are_written() {
    let (_server, backend, raw) = fresh_backend().await;
    let id = LockId::generate().unwrap();
    let index = format!("syncguard:id:{}", id.as_str());
    let store = async |expires: &str, acquired: &str| {
        let stored = format!(
            r#"{{"lockId":"{}","expiresAtMs":{expires},"acquiredAtMs":{acquired},"key":"k","fence":"000000000000041"}}"#,
            id.as_str()
        );
        raw.run::<()>(&["SET", "syncguard:k", &stored]).await;
        raw.run::<()>(&["SET", &index, "syncguard:k"]).await;
    };
    for (number, ms) in [
        ("4102444800000", 4_102_444_800_000),
        ("4102444800000.0", 4_102_444_800_000),
        ("4102444800000.75", 4_102_444_800_000),
        ("4.1024448e+12", 4_102_444_800_000),
        ("4.1024448E12", 4_102_444_800_000),
        ("9007199254740992", 1 << 53),
    ] {
        for (expires, acquired) in [(number, "1700000000000"), ("4102444800000", number)] {
            store(expires, acquired).await;
            let other = LockId::generate().unwrap();
            let answer = backend.acquire_for("k", &other, secs(9)).await.unwrap();
            assert!(answer.is_locked(), "{number}");
            assert!(backend.is_key_locked("k").await.unwrap(), "{number}");
            let found = backend.lookup_key("k").await.unwrap().unwrap();
            let expected = if expires == number {
                found.expires_at_ms
            } else {
                found.acquired_at_ms
            };
            assert_eq!(expected, ms, "{number}");
            assert_eq!(backend.lookup_id(&id).await.unwrap(), Some(found));
            assert!(
                backend
                    .extend_id(&id, secs(60))
                    .await
                    .unwrap()
                    .is_extended()
            );
            assert!(backend.lookup_key("k").await.unwrap().is_some());
            assert!(backend.release_id(&id).await.unwrap().is_released());
        }
    }
    // Expired, or no time at all: they agree as well.
    store("1.7e+12", "1.6e+12").await;
    assert!(!backend.is_key_locked("k").await.unwrap());
    for number in ["1e300", "-1e300", "9007199254740994", "true"] {
        store(number, "1700000000000").await;
        let other = LockId::generate().unwrap();
        let acquired = backend.acquire_for("k", &other, secs(9)).await;
        let read = backend.is_key_locked("k").await;
        for error in [acquired.map(drop).unwrap_err(), read.map(drop).unwrap_err()] {
            assert_eq!(
                error.code(),
                syncguard_core::ErrorCode::InvalidArgument,
                "{number}"
            );
        }
    }
}

#[tokio::test]
async fn an_acquire_over_an_expired_lock_that_lost_its_ttl_removes_its_index() {
    let (_server, backend, raw) = fresh_backend().await;
    let (old, new) = (LockId::generate().unwrap(), LockId::generate().unwrap());
    let (old_index, new_index) = (
        format!("syncguard:id:{}", old.as_str()),
        format!("syncguard:id:{}", new.as_str()),
    );
    let first = backend.acquire_for("k", &old, millis(1_000)).await.unwrap();
    for name in ["syncguard:k", &old_index] {
        assert_eq!(
            raw.run::<i64>(&["PERSIST", name]).await,
            1,
            "{name} had a TTL"
        );
    }
    // Dead from its expiry and the tolerance on.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert!(!backend.is_key_locked("k").await.unwrap());
    assert!(backend.lookup_id(&old).await.unwrap().is_none());

    let next = backend
        .acquire_for("k", &new, secs(60))
        .await
        .unwrap()
        .granted()
        .unwrap();
    assert!(next.fence > first.granted().unwrap().fence);
    assert_eq!(
        raw.get(&old_index).await,
        None,
        "the old owner's index is gone"
    );
    assert_eq!(raw.get(&new_index).await.unwrap(), "syncguard:k");
    assert!(!backend.release_id(&old).await.unwrap().is_released());
    assert!(backend.is_key_locked("k").await.unwrap());
}

#[tokio::test]
async fn the_owner_is_verified_even_where_an_index_leads_to_the_lock() {
    let (_server, backend, raw) = fresh_backend().await;
    let (stale, owner) = (LockId::generate().unwrap(), LockId::generate().unwrap());
    let _ = backend.acquire_for("k", &owner, secs(60)).await.unwrap();
    raw.run::<()>(&[
        "SET",
        &format!("syncguard:id:{}", stale.as_str()),
        "syncguard:k",
    ])
    .await;
    let before = raw.get("syncguard:k").await;

    assert!(!backend.release_id(&stale).await.unwrap().is_released());
    assert!(matches!(
        backend.extend_id(&stale, secs(9)).await.unwrap(),
        ExtendResult::NotHeld { .. }
    ));
    assert!(backend.lookup_id(&stale).await.unwrap().is_none());
    assert_eq!(raw.get("syncguard:k").await, before);
}

#[tokio::test]
async fn what_is_removed_behind_the_holders_back_is_not_held() {
    let (_server, locks, raw) = fresh().await;
    let guard = granted(&locks, "k").await;
    raw.run::<()>(&["DEL", "syncguard:k"]).await;
    assert!(matches!(
        guard.extend(Duration::from_secs(60)).await.unwrap(),
        ExtendResult::NotHeld { .. }
    ));
    assert!(!guard.is_valid());
    assert!(!guard.release().await.unwrap().is_released());
    locks.drain(Duration::from_secs(5)).await.unwrap();
    assert_eq!(raw.get("syncguard:k").await, None);
}
