//! Listings by `SCAN`: what a page costs and needs, and what it leaves out.

use std::collections::BTreeSet;

use syncguard_core::{ErrorCode, LockInfoDebug, Locks};
use syncguard_redis::{RedisBackend, RedisOptions};
use syncguard_testkit::{RedisServer, pages, texts};

use crate::common::{DOCUMENTED_RIGHTS, Raw, fresh, granted};

fn keys(pages: &[Vec<LockInfoDebug>]) -> Vec<&str> {
    let locks = pages.iter().flatten();
    locks.map(|lock| lock.key.as_str()).collect()
}

#[tokio::test]
async fn a_page_is_one_script_that_looks_at_few_entries() {
    let (_server, locks, raw) = fresh().await;
    let guards = [granted(&locks, "a:1").await, granted(&locks, "a:2").await];
    // Counters of 5,000 keys, as a year leaves them.
    let counters =
        "for n = 1, 5000 do redis.call('SET', 'syncguard:fence:syncguard:a:' .. n, n) end";
    raw.run::<()>(&["EVAL", counters, "0"]).await;
    let before = (
        raw.commands_run("evalsha").await,
        raw.commands_run("get").await,
    );
    let pages = pages(&locks, "a:", 10).await.unwrap();
    let mut shown = keys(&pages);
    shown.sort_unstable();
    assert_eq!(shown, ["a:1", "a:2"]);
    let asked = raw.commands_run("evalsha").await - before.0;
    assert_eq!(asked, u64::try_from(pages.len()).unwrap());
    assert!(pages.len() >= 25, "{} pages", pages.len());
    // Of locks and their indexes; no counter was read.
    let read = raw.commands_run("get").await - before.1;
    assert!((2..=4).contains(&read), "{read} values");
    drop(guards);
}

/// `SCAN` may find more names than the page has room for.
#[tokio::test]
async fn what_a_page_has_no_room_for_is_on_the_next_ones() {
    let (_server, locks, raw) = fresh().await;
    let mut guards = Vec::new();
    for number in 0..60 {
        guards.push(granted(&locks, &format!("k:{number}")).await);
    }
    for page_size in [1, 7, 59, 60, 61] {
        let pages = pages(&locks, "", page_size).await.unwrap();
        let longest = pages.iter().map(Vec::len).max().unwrap();
        assert!(longest <= usize::try_from(page_size).unwrap());
        let shown: BTreeSet<_> = keys(&pages).into_iter().collect();
        assert_eq!(shown.len(), 60);
    }
    // Released before its page came: it is not shown.
    let page = locks.list_raw().page_size(1).await.unwrap();
    assert!(page.may_repeat);
    for guard in guards {
        assert!(guard.release().await.unwrap().is_released());
    }
    let mut after = page.next;
    while let Some(cursor) = after {
        let page = locks.list_raw().after(cursor).await.unwrap();
        assert_eq!(page.locks, []);
        after = page.next;
    }
    assert!(raw.keys().await.iter().all(|name| name.contains("fence")));
}

/// The table of names grows and shrinks meanwhile, and with it what a cursor means.
#[tokio::test]
async fn a_listing_survives_that_redis_rehashes_its_names() {
    let (_server, locks, raw) = fresh().await;
    let mut guards = Vec::new();
    for number in 0..40 {
        guards.push(granted(&locks, &format!("steady:{number}")).await);
    }
    let (mut shown, mut after, mut round) = (BTreeSet::new(), None, 0);
    loop {
        let page = locks.list_raw().prefix("steady:").page_size(2).after(after);
        let page = page.await.unwrap();
        let keys = page.locks.into_iter().map(|lock| lock.key);
        shown.extend(keys.map(|key| key.as_str().to_owned()));
        after = page.next;
        if after.is_none() {
            break;
        }
        let script = match round % 2 {
            0 => "for n = 1, 3000 do redis.call('SET', 'other:' .. n, n) end",
            _ => "for n = 1, 3000 do redis.call('DEL', 'other:' .. n) end",
        };
        raw.run::<()>(&["EVAL", script, "0"]).await;
        round += 1;
    }
    assert!(round > 1, "{round} pages");
    assert_eq!(shown.len(), 40);
}

#[tokio::test]
async fn what_is_no_lock_of_this_prefix_is_left_out_and_unchanged() {
    let (server, locks, raw) = fresh().await;
    let guard = granted(&locks, "k:1").await;
    let value = raw.get("syncguard:k:1").await.unwrap();
    for command in [
        vec!["SET", "syncguard:k:copy", &value],
        vec!["SET", "other:k:1", &value],
        vec!["SET", "syncguard:k:text", "secret"],
        vec!["SET", "syncguard:k:json", r#"{"lockId":"secret"}"#],
        vec!["RPUSH", "syncguard:k:list", "secret"],
        vec!["HSET", "syncguard:k:hash", "lockId", "secret"],
    ] {
        raw.run::<()>(&command).await;
    }
    let bytes = "redis.call('SET', 'syncguard:k:bytes', '\"lockId\"\\255'); \
                 redis.call('SET', 'syncguard:k:\\255', '\"lockId\"')";
    raw.run::<()>(&["EVAL", bytes, "0"]).await;
    let options = RedisOptions::new().prefix("syncguard:k");
    let nested = RedisBackend::connect_with(&server.url(), options).await;
    let nested = Locks::new(nested.unwrap());
    let inner = granted(&nested, "1:inner").await;
    let before = raw.run::<u64>(&["DBSIZE"]).await;
    for prefix in ["", "k", "k:"] {
        let pages = pages(&locks, prefix, 100).await.unwrap();
        assert_eq!(keys(&pages), ["k:1"], "{prefix}");
    }
    assert_eq!(keys(&pages(&nested, "", 100).await.unwrap()), ["1:inner"]);
    assert_eq!(raw.run::<u64>(&["DBSIZE"]).await, before);
    assert!(guard.release().await.unwrap().is_released());
    assert!(inner.release().await.unwrap().is_released());
}

/// It has no TTL any more, so Redis keeps it: it is dead by its own expiry.
#[tokio::test]
async fn an_expired_lock_that_is_still_there_is_not_listed() {
    let (_server, locks, raw) = fresh().await;
    let guard = granted(&locks, "k").await;
    let value = raw.get("syncguard:k").await.unwrap();
    let expires_at_ms = &value[49..62];
    assert!(expires_at_ms.parse::<u64>().is_ok(), "{value}");
    let expired = value.replacen(expires_at_ms, "1000000000000", 1);
    raw.run::<()>(&["SET", "syncguard:k", &expired]).await;
    assert_eq!(keys(&pages(&locks, "", 10).await.unwrap()), [""; 0]);
    drop(guard);
}

#[tokio::test]
async fn listing_needs_a_permission_of_its_own_and_the_error_names_it() {
    let server = RedisServer::start().unwrap();
    let admin = Raw::connect(&server.url()).await;
    for (further, may) in [(None, false), (Some("+scan"), true)] {
        let mut user = vec!["ACL", "SETUSER", "locker", "reset", "on", ">correct-horse"];
        user.extend(DOCUMENTED_RIGHTS.into_iter().chain(further));
        admin.run::<()>(&user).await;
        let url = format!("redis://locker:correct-horse@127.0.0.1:{}", server.port());
        let locks = Locks::new(RedisBackend::connect(&url).await.unwrap());
        let guard = granted(&locks, "customer:secret").await;
        let listed = locks.list().prefix("customer:secret").await;
        if may {
            assert_eq!(listed.unwrap().locks.len(), 1);
        } else {
            let error = listed.unwrap_err();
            assert_eq!(error.code(), ErrorCode::AuthFailed);
            assert!(!error.is_retryable() && !error.outcome_unknown());
            let texts = texts(&error);
            assert!(
                texts.contains("+scan") && !texts.contains("secret"),
                "{texts}"
            );
        }
        assert!(guard.release().await.unwrap().is_released());
    }
    // Permission for other names alone: an error, and no empty page.
    admin
        .run::<()>(&["ACL", "SETUSER", "locker", "resetkeys", "~syncguard:id:*"])
        .await;
    let guard = granted(&Locks::new(crate::common::connected(&server).await), "k").await;
    let url = format!("redis://locker:correct-horse@127.0.0.1:{}", server.port());
    let locks = Locks::new(RedisBackend::connect(&url).await.unwrap());
    let error = locks.list().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AuthFailed, "{error:?}");
    drop(guard);
}
