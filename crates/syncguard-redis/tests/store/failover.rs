//! Failing over: by Sentinel, and what asynchronous replication loses.

use std::time::{Duration, Instant};

use syncguard_core::{ErrorCode, acquire, get_by_key, release};
use syncguard_redis::{RedisBackend, RedisStore};
use syncguard_testkit::{FaultProxy, Faults, RedisSentinel, RedisServer};
use tokio::time::timeout;

use crate::common::{Raw, eventually, impatient};

const OPERATION_TIMEOUT: Duration = Duration::from_secs(2);

async fn backend_at(url: &str) -> RedisBackend {
    let store = RedisStore::connect(url).await.unwrap();
    RedisBackend::with_policy(store, impatient(OPERATION_TIMEOUT))
}

/// Waits until replicas have everything that was written on this connection or before it.
async fn replicated(raw: &Raw) {
    let reached: i64 = raw.run(&["WAIT", "1", "10000"]).await;
    assert_eq!(reached, 1);
}

#[tokio::test]
async fn a_failover_by_sentinel_keeps_what_was_replicated_and_nothing_hangs() {
    let mut servers = RedisSentinel::start().unwrap();
    let url = servers.url();
    let (holder, other) = (backend_at(&url).await, backend_at(&url).await);
    let ttl = Duration::from_secs(20);
    let begun = Instant::now();
    let dead = acquire(&holder, "dead", ttl).await.unwrap().unwrap();
    let dead = dead.detach();
    let held = acquire(&holder, "held", Duration::from_secs(600))
        .await
        .unwrap()
        .unwrap();
    let raw = Raw::connect(&servers.primary().url()).await;
    raw.run::<()>(&["SET", "unrelated", "1"]).await;
    replicated(&raw).await;

    servers.primary_mut().kill();
    // Whatever is asked meanwhile is answered in time, and never wrongly.
    let mut refused = 0;
    let next = loop {
        let asked = acquire(&other, "dead", Duration::from_secs(60));
        // A machine that stalls delays both timers, and the operation's own is looked at first.
        let answer = timeout(OPERATION_TIMEOUT + Duration::from_secs(2), asked)
            .await
            .expect("an answer in time");
        match answer {
            Ok(Some(guard)) => break guard,
            Ok(None) => {}
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                refused += 1;
            }
        }
        assert!(
            begun.elapsed() < ttl + Duration::from_secs(30),
            "nobody got the key after {:?}",
            begun.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(refused > 0, "there was a failover");
    // The lock went over to the replica with its expiry, and its fence counter with it.
    assert!(begun.elapsed() >= ttl, "it was free before its TTL");
    assert!(next.fence() > dead.fence());
    let info = get_by_key(&other, "held").await.unwrap().unwrap();
    assert_eq!(info.fence, held.fence());
    // The holder's client found the new primary, too.
    eventually("the holder releases", async || {
        release(&holder, *held.lock_id()).await.is_ok()
    })
    .await;
    assert!(get_by_key(&other, "held").await.unwrap().is_none());
    let role: String = Raw::connect(&servers.replica().url())
        .await
        .run(&["INFO", "replication"])
        .await;
    assert!(role.contains("role:master"), "{role}");
}

/// A primary and a replica that can be cut off from it.
struct Pair {
    primary: RedisServer,
    replica: RedisServer,
    between: FaultProxy,
    raw: Raw,
}

async fn pair(arguments: &[&str]) -> Pair {
    let at_once = [
        "--repl-diskless-sync-delay",
        "0",
        "--repl-ping-replica-period",
        "1",
    ];
    let primary = RedisServer::start_with(&[&at_once[..], arguments].concat()).unwrap();
    let between = FaultProxy::start(primary.port()).unwrap();
    let port = between.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).unwrap();
    let raw = Raw::connect(&primary.url()).await;
    eventually("the replica follows", async || {
        let info: String = raw.run(&["INFO", "replication"]).await;
        info.contains("state=online")
    })
    .await;
    Pair {
        primary,
        replica,
        between,
        raw,
    }
}

impl Pair {
    /// What a failover does, for better or worse.
    async fn fail_over(&mut self) -> RedisBackend {
        self.primary.kill();
        let replica = Raw::connect(&self.replica.url()).await;
        replica.run::<()>(&["REPLICAOF", "NO", "ONE"]).await;
        backend_at(&self.replica.url()).await
    }
}

/// The documented limit: neither a lock nor its fence survives if no replica had them yet.
#[tokio::test]
async fn a_lock_that_was_not_replicated_is_granted_twice_under_one_fence() {
    let mut servers = pair(&[]).await;
    let first = backend_at(&servers.primary.url()).await;
    servers.raw.run::<()>(&["SET", "unrelated", "1"]).await;
    replicated(&servers.raw).await;
    servers.between.set(Faults::REFUSE);

    let ttl = Duration::from_secs(600);
    let one = acquire(&first, "k", ttl).await.unwrap().unwrap();
    let second = servers.fail_over().await;
    let two = acquire(&second, "k", ttl).await.unwrap().unwrap();
    assert!(one.is_valid() && two.is_valid(), "both believe to hold it");
    assert_eq!(
        one.fence(),
        two.fence(),
        "and fences do not tell them apart"
    );
    // Neither is given back on a server that is gone.
    let _ = (one.detach(), two.detach());
}

#[tokio::test]
async fn min_replicas_to_write_refuses_instead() {
    let required = [
        "--min-replicas-to-write",
        "1",
        "--min-replicas-max-lag",
        "2",
    ];
    let mut servers = pair(&required).await;
    let first = backend_at(&servers.primary.url()).await;
    let ttl = Duration::from_secs(600);
    let held = acquire(&first, "held", ttl).await.unwrap().unwrap();
    servers.raw.run::<()>(&["SET", "unrelated", "1"]).await;
    replicated(&servers.raw).await;
    servers.between.set(Faults::REFUSE);

    let good = async || {
        servers
            .raw
            .info("replication", "min_slaves_good_slaves")
            .await
    };
    eventually("the replica is missed", async || good().await == 0).await;
    let keys = servers.raw.keys().await;
    let error = acquire(&first, "k", ttl).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(error.is_retryable() && !error.outcome_unknown());
    assert!(error.message().contains("replicas"), "{error}");
    let error = held.extend(ttl).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert_eq!(servers.raw.keys().await, keys, "nothing was written");

    // So whoever takes over grants what nobody else was granted.
    let second = servers.fail_over().await;
    assert!(acquire(&second, "held", ttl).await.unwrap().is_none());
    let two = acquire(&second, "k", ttl).await.unwrap().unwrap();
    assert!(two.release().await.unwrap().is_released());
    let _ = held.detach();
}
