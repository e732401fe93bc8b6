//! Servers that are no Redis, and a runtime that has ended.

use std::time::Duration;

use syncguard_core::{ErrorCode, Locks};
use syncguard_redis::fred::clients::Client;
use syncguard_redis::fred::interfaces::ClientLike as _;
use syncguard_redis::fred::types::config::Config;
use syncguard_redis::{RedisBackend, RedisOptions};
use syncguard_testkit::{RedisSentinel, RedisServer, texts};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::common::connected;

/// The URL of a server that answers each connection's first bytes with these, and closes.
async fn saying(reply: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                if reply.is_empty() {
                    return;
                }
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(reply).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    format!("redis://127.0.0.1:{port}")
}

#[tokio::test]
async fn a_server_that_is_no_redis_is_unavailable_with_what_was_seen() {
    for (reply, seen) in [
        (
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".as_slice(),
            "\"HTTP/1.1 400 Bad Request\"",
        ),
        (
            b"220 mail.example.com ESMTP\r\n",
            "\"220 mail.example.com ESMTP\"",
        ),
        (b"ERROR\r\n", "\"ERROR\""),
        (b"\x00\xff\xfe\x01garbage", r#""\x00\xff\xfe\x01garbage""#),
        (b"*-7\r\n", "\"*-7\""),
        (b"", "connection"),
    ] {
        let url = saying(reply).await;
        let options = RedisOptions::new().timeout(Duration::from_secs(2));
        let error = RedisBackend::connect_with(&url, options).await.unwrap_err();
        let said = String::from_utf8_lossy(reply);
        assert_eq!(
            error.code(),
            ErrorCode::ServiceUnavailable,
            "{said}: {error:?}"
        );
        assert!(!error.outcome_unknown());
        assert!(error.message().contains(seen), "{error}");
    }
}

#[tokio::test]
async fn a_sentinel_at_a_plain_url_is_unavailable() {
    let servers = RedisSentinel::start().unwrap();
    let url = servers.url();
    let (plain, _) = url.split_once('?').unwrap();
    let plain = plain.replace("redis-sentinel://", "redis://");
    let locks = Locks::new(RedisBackend::connect(&plain).await.unwrap());
    let error = locks.try_lock("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(error.message().contains("Sentinel"), "{error}");
    assert!(!error.outcome_unknown());
}

#[test]
fn a_store_whose_runtime_has_ended_fails_at_once_and_says_so() {
    let server = RedisServer::start().unwrap();
    let first = Runtime::new().unwrap();
    let (own, given) = first.block_on(async {
        let client = Client::new(Config::from_url(&server.url()).unwrap(), None, None, None);
        client.init().await.unwrap();
        let given = RedisBackend::with_client(client, RedisOptions::new()).unwrap();
        (connected(&server).await, given)
    });
    drop(first);

    Runtime::new().unwrap().block_on(async {
        for backend in [own, given] {
            let locks = Locks::new(backend);
            for _ in 0..3 {
                let error = locks.try_lock("k").await.unwrap_err();
                assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
                assert!(error.message().contains("runtime"), "{error}");
                assert!(!error.outcome_unknown(), "{error:?}");
            }
            assert_eq!(locks.pending(), 0, "nothing is left to release");
        }
    });
}

/// What the sentinels and the servers that they watch require; the data nodes always require one.
async fn sentinels(password: Option<&str>) -> RedisSentinel {
    let servers = RedisSentinel::start().unwrap();
    for port in sentinel_ports(&servers) {
        let raw = crate::common::Raw::connect(&format!("redis://127.0.0.1:{port}")).await;
        raw.run::<()>(&["SENTINEL", "SET", "locks", "auth-pass", DATA])
            .await;
        if let Some(password) = password {
            raw.run::<()>(&["ACL", "SETUSER", "default", &format!(">{password}")])
                .await;
            raw.run::<()>(&[
                "ACL",
                "SETUSER",
                "default",
                "resetpass",
                &format!(">{password}"),
            ])
            .await;
        }
    }
    for server in [servers.primary(), servers.replica()] {
        let raw = crate::common::Raw::connect(&server.url()).await;
        raw.run::<()>(&["CONFIG", "SET", "masterauth", DATA]).await;
        raw.run::<()>(&["CONFIG", "SET", "requirepass", DATA]).await;
    }
    servers
}

fn sentinel_ports(servers: &RedisSentinel) -> Vec<String> {
    let url = servers.url();
    url.split("127.0.0.1:")
        .skip(1)
        .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect())
        .collect()
}

const DATA: &str = "correct-horse";
const OTHER: &str = "staple";

async fn by_sentinel(servers: &RedisSentinel, user: &str, more: &str) -> Result<(), String> {
    let url = servers.url().replacen("://", &format!("://{user}@"), 1) + more;
    let locks = match RedisBackend::connect(&url).await {
        Ok(backend) => Locks::new(backend),
        Err(error) => {
            assert_eq!(error.code(), ErrorCode::AuthFailed, "{more}: {error:?}");
            let shown = texts(&error);
            assert!(!shown.contains(DATA) && !shown.contains(OTHER), "{shown}");
            return Err(error.message().to_owned());
        }
    };
    let guard = locks.try_lock("k").await.unwrap().expect("the key is free");
    assert!(guard.release().await.unwrap().is_released());
    Ok(())
}

#[tokio::test]
async fn sentinels_have_no_password_the_same_or_another() {
    let (right, wrong) = (format!(":{DATA}"), format!(":{OTHER}"));
    let open = sentinels(None).await;
    by_sentinel(&open, &right, "").await.unwrap();
    by_sentinel(&open, &right, "&sentinelPassword=")
        .await
        .unwrap();
    let refused = by_sentinel(&open, &wrong, "").await.unwrap_err();
    assert!(
        !refused.contains("Sentinel"),
        "it is the primary: {refused}"
    );

    let same = sentinels(Some(DATA)).await;
    by_sentinel(&same, &right, "").await.unwrap();
    let refused = by_sentinel(&same, &wrong, "").await.unwrap_err();
    assert!(refused.contains("Sentinel"), "{refused}");

    let other = sentinels(Some(OTHER)).await;
    let said = format!("&sentinelPassword={OTHER}");
    by_sentinel(&other, &right, &said).await.unwrap();
    let named = format!("&sentinelUsername=default{said}");
    by_sentinel(&other, &right, &named).await.unwrap();
    for more in ["", "&sentinelPassword=", "&sentinelPassword=wrong"] {
        let refused = by_sentinel(&other, &right, more).await.unwrap_err();
        assert!(refused.contains("Sentinel"), "{more}: {refused}");
    }
    let refused = by_sentinel(&other, &wrong, &said).await.unwrap_err();
    assert!(
        !refused.contains("Sentinel"),
        "it is the primary: {refused}"
    );
}
