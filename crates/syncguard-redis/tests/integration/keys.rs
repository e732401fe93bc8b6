//! Keys beside internal names, and prefixes on both sides of every limit.

use std::collections::HashSet;
use std::time::Duration;

use syncguard_core::{ErrorCode, LockId, Locks};
use syncguard_redis::{RedisBackend, RedisOptions, STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE};
use syncguard_testkit::RedisServer;

use crate::common::{BareCalls as _, Raw, connected, eventually, fresh, granted, secs};

async fn under(server: &RedisServer, prefix: &str) -> Locks {
    let options = RedisOptions::new().prefix(prefix);
    let backend = RedisBackend::connect_with(&server.url(), options).await;
    Locks::new(backend.unwrap())
}

/// Every operation on one key. Returns its names in Redis.
async fn whole_life(locks: &Locks, raw: &Raw, text: &str) -> HashSet<String> {
    let guard = granted(locks, text).await;
    assert!(locks.try_lock(text).await.unwrap().is_none());
    assert!(locks.is_locked(text).await.unwrap());
    let by_key = locks.get_by_key(text).await.unwrap().unwrap();
    assert_eq!(
        by_key,
        locks.get_by_id(guard.lock_id()).await.unwrap().unwrap()
    );
    assert_eq!(by_key.fence, guard.fence());
    assert!(
        guard
            .extend(Duration::from_secs(90))
            .await
            .unwrap()
            .expires_at_ms()
            .is_some()
    );
    let names = raw.keys().await.into_iter().collect();
    let fence = guard.fence();
    assert!(guard.release().await.unwrap().is_released());
    assert!(!locks.is_locked(text).await.unwrap());
    let next = granted(locks, text).await;
    assert!(next.fence() > fence);
    assert!(next.release().await.unwrap().is_released());
    names
}

#[tokio::test]
async fn keys_that_look_like_internal_names_are_refused_before_any_io_or_harmless() {
    let (_server, locks, raw) = fresh().await;
    let bar = granted(&locks, "bar").await;
    let before = raw.keys().await;
    let commands = raw.commands_run("evalsha").await + raw.commands_run("eval").await;
    for reserved in [
        "fence:syncguard:bar".to_owned(),
        format!("id:{}", bar.lock_id().as_str()),
        format!("id:{}", LockId::generate().unwrap().as_str()),
    ] {
        let error = locks.try_lock(&reserved).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{reserved}");
        assert!(!error.to_string().contains(&reserved));
        let error = locks.is_locked(&reserved).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{reserved}");
        let error = locks.get_by_key(&reserved).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{reserved}");
    }
    assert_eq!(raw.keys().await, before);
    let after = raw.commands_run("evalsha").await + raw.commands_run("eval").await;
    assert_eq!(after, commands, "they were refused before any I/O");

    for harmless in ["syncguard:bar", "fence:bar", "id:bar", "id", "fence"] {
        whole_life(&locks, &raw, harmless).await;
    }
    assert_eq!(bar.fence().get(), 1);
    assert!(bar.release().await.unwrap().is_released());
    let bar = granted(&locks, "bar").await;
    assert_eq!(bar.fence().get(), 2, "no other key used its counter");
}

#[tokio::test]
async fn keys_of_all_kinds_of_characters_work_in_every_operation() {
    let (_server, locks, raw) = fresh().await;
    let long = "\u{1f512}".repeat(128);
    for text in [
        "a:b",
        "{}",
        "{a}{b}",
        "/",
        "a/b/c",
        ".",
        "..",
        "__x__",
        "%2F",
        "%s%d",
        "#",
        "\"",
        "'",
        "\\",
        "a\nb",
        "\u{7f}\u{1}\t",
        "\u{1f512}",
        "e\u{301}",
        "]]--",
        "\"}",
        &long,
        r#"","expiresAtMs":1,"key":""#,
    ] {
        whole_life(&locks, &raw, text).await;
    }
}

#[tokio::test]
async fn prefixes_and_keys_on_both_sides_of_every_limit() {
    let (server, _, raw) = fresh().await;
    let (short, long) = ("k".repeat(8), "k".repeat(512));
    assert_eq!((STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE), (1000, 26));
    let longest = STORAGE_KEY_LIMIT - STORAGE_KEY_RESERVE;
    // Prefix, colon, name and 26 bytes in reserve fit into 1000 bytes, or the name is hashed:
    // a long key at 461 | 462, its fence counter at 226 | 227, an index at 948 | 949, a short key
    // at 965 and so never before the shortened form itself no longer fits, at 951 | 952.
    for length in [1, 226, 227, 461, 462, 479, 480, 947, 948, 949, 950, 951] {
        let prefix = "p".repeat(length);
        let locks = under(&server, &prefix).await;
        for text in [&short, &long, &long.replace('k', "l")] {
            raw.run::<()>(&["FLUSHALL"]).await;
            let names = whole_life(&locks, &raw, text).await;
            assert_eq!(
                names.len(),
                3,
                "lock, index and counter are apart at {length}"
            );
            assert!(names.iter().all(|name| name.len() <= longest), "{length}");
            assert!(
                names
                    .iter()
                    .all(|name| name.starts_with(&format!("{prefix}:")))
            );
        }
    }
    let options = RedisOptions::new().prefix("p".repeat(952));
    let error = RedisBackend::connect_with(&server.url(), options)
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn shortened_keys_never_share_a_lock_or_a_counter() {
    let (server, _, _) = fresh().await;
    let locks = under(&server, &"p".repeat(600)).await;
    let mut guards = Vec::new();
    for last in ["a", "b", "c"] {
        let text = "k".repeat(500) + last;
        for _ in 0..2 {
            let guard = granted(&locks, &text).await;
            assert!(guard.release().await.unwrap().is_released());
        }
        guards.push(granted(&locks, &text).await);
    }
    for guard in guards {
        assert_eq!(guard.fence().get(), 3);
        assert!(guard.release().await.unwrap().is_released());
    }
}

#[tokio::test]
async fn prefixes_are_namespaces() {
    let (server, one, raw) = fresh().await;
    let two = under(&server, "other:").await;
    let first = granted(&one, "k").await;
    let second = granted(&two, "k").await;
    assert!(
        raw.get("other:k").await.is_some(),
        "a trailing colon is not doubled"
    );
    let id = first.lock_id();
    assert!(!two.release(id).await.unwrap().is_released());
    assert!(two.get_by_id(id).await.unwrap().is_none());
    assert!(first.release().await.unwrap().is_released());
    assert!(second.release().await.unwrap().is_released());
}

#[tokio::test]
async fn clean_up_removes_what_is_long_expired_and_nothing_else() {
    let (server, _, raw) = fresh().await;
    let options = RedisOptions::new().cleanup_in_is_locked(true);
    let backend = RedisBackend::connect_with(&server.url(), options)
        .await
        .unwrap();
    let id = LockId::generate().unwrap();
    let index = format!("syncguard:id:{}", id.as_str());
    let _ = backend.acquire_for("k", &id, secs(1)).await.unwrap();
    for name in ["syncguard:k", &index] {
        assert_eq!(raw.run::<i64>(&["PERSIST", name]).await, 1);
    }
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    let age = async || {
        let now: Vec<i64> = raw.run(&["TIME"]).await;
        let value: serde_json::Value = serde_json::from_str(&raw.get("syncguard:k").await?).ok()?;
        Some(now[0] * 1000 + now[1] / 1000 - value["expiresAtMs"].as_i64()?)
    };
    assert!(!backend.is_key_locked("k").await.unwrap());
    if age().await.is_some_and(|age| age < 2_000) {
        assert!(
            raw.get("syncguard:k").await.is_some(),
            "it expired, but not long enough ago"
        );
    }
    eventually("the lock is removed", async || {
        assert!(!backend.is_key_locked("k").await.unwrap());
        raw.keys().await == ["syncguard:fence:syncguard:k"]
    })
    .await;
    assert_eq!(raw.get("syncguard:fence:syncguard:k").await.unwrap(), "1");

    // By default `is_locked` only reads.
    let reader = connected(&server).await;
    let stale = r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1795000000000,"acquiredAtMs":1,"key":"k","fence":"000000000000001"}"#;
    let stale = stale.replace("1795000000000", "1000000000000");
    raw.run::<()>(&["SET", "syncguard:k", &stale]).await;
    assert!(!reader.is_key_locked("k").await.unwrap());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(raw.get("syncguard:k").await.unwrap(), stale);
}
