//! Failing over: by Sentinel, and what asynchronous replication loses.

use std::time::{Duration, Instant};

use syncguard_core::{ErrorCode, Locks};
use syncguard_redis::RedisBackend;
use syncguard_testkit::{FaultProxy, Faults, RedisSentinel, RedisServer};
use tokio::time::timeout;

use crate::common::{Raw, eventually, impatient};

const OPERATION_TIMEOUT: Duration = Duration::from_secs(2);

async fn locks_at(url: &str) -> Locks {
    let backend = RedisBackend::connect(url).await.unwrap();
    impatient(backend, OPERATION_TIMEOUT)
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
    let (holder, other) = (locks_at(&url).await, locks_at(&url).await);
    let ttl = Duration::from_secs(20);
    let begun = Instant::now();
    let dead = holder.try_lock("dead").ttl(ttl).await.unwrap().unwrap();
    let dead = dead.detach();
    let held = holder
        .try_lock("held")
        .ttl(Duration::from_secs(600))
        .await
        .unwrap()
        .unwrap();
    let raw = Raw::connect(&servers.primary().url()).await;
    raw.run::<()>(&["SET", "unrelated", "1"]).await;
    replicated(&raw).await;

    servers.primary_mut().kill();
    // Every attempt meanwhile is answered in time, and never wrongly.
    let mut refused = 0;
    let next = loop {
        let asked = other.try_lock("dead");
        // A machine that stalls delays both timers, and the operation's own is checked first.
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
    // The replica has the lock with its expiry, and its fence counter.
    assert!(begun.elapsed() >= ttl, "it was free before its TTL");
    assert!(next.fence() > dead.fence());
    let info = other.get_by_key("held").await.unwrap().unwrap();
    assert_eq!(info.fence, held.fence());
    // The holder's client finds the new primary, too.
    eventually("the holder releases", async || {
        holder.release(*held.lock_id()).await.is_ok()
    })
    .await;
    assert!(other.get_by_key("held").await.unwrap().is_none());
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
    /// Cuts the replica off. The proxy closes its connection a moment later: until then a write would reach it.
    async fn cut_off(&self) {
        self.between.set(Faults::REFUSE);
        let replicas = async || self.raw.info("replication", "connected_slaves").await;
        eventually("the replica is cut off", async || replicas().await == 0).await;
    }

    /// What a failover does.
    async fn fail_over(&mut self) -> Locks {
        self.primary.kill();
        let replica = Raw::connect(&self.replica.url()).await;
        replica.run::<()>(&["REPLICAOF", "NO", "ONE"]).await;
        locks_at(&self.replica.url()).await
    }
}

/// The documented limit: neither a lock nor its fence survives if no replica had them yet.
#[tokio::test]
async fn a_lock_that_was_not_replicated_is_granted_twice_with_the_same_fence() {
    let mut servers = pair(&[]).await;
    let first = locks_at(&servers.primary.url()).await;
    servers.raw.run::<()>(&["SET", "unrelated", "1"]).await;
    replicated(&servers.raw).await;
    servers.cut_off().await;

    let ttl = Duration::from_secs(600);
    let one = first.try_lock("k").ttl(ttl).await.unwrap().unwrap();
    let second = servers.fail_over().await;
    let two = second.try_lock("k").ttl(ttl).await.unwrap().unwrap();
    assert!(one.is_valid() && two.is_valid(), "both believe to hold it");
    assert_eq!(
        one.fence(),
        two.fence(),
        "and fences do not tell them apart"
    );
    // Neither is released on a server that is gone.
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
    let first = locks_at(&servers.primary.url()).await;
    let ttl = Duration::from_secs(600);
    let held = first.try_lock("held").ttl(ttl).await.unwrap().unwrap();
    servers.raw.run::<()>(&["SET", "unrelated", "1"]).await;
    replicated(&servers.raw).await;
    servers.cut_off().await;

    let good = async || {
        servers
            .raw
            .info("replication", "min_slaves_good_slaves")
            .await
    };
    eventually("the replica is missed", async || good().await == 0).await;
    let keys = servers.raw.keys().await;
    let error = first.try_lock("k").ttl(ttl).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(error.is_retryable() && !error.outcome_unknown());
    assert!(error.message().contains("replicas"), "{error}");
    let error = held.extend(ttl).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert_eq!(servers.raw.keys().await, keys, "nothing was written");

    // So the new primary grants what the old one refused, and nothing else.
    let second = servers.fail_over().await;
    assert!(second.try_lock("held").ttl(ttl).await.unwrap().is_none());
    let two = second.try_lock("k").ttl(ttl).await.unwrap().unwrap();
    assert!(two.release().await.unwrap().is_released());
    let _ = held.detach();
}
