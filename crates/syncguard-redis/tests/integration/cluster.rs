//! The suite on a cluster of three, and a slot that moves to another node.

use std::sync::Arc;
use std::time::Duration;

use syncguard_conformance::{Harness, RunOptions, run};
use syncguard_core::{ErrorCode, LockError, Locks};
use syncguard_redis::{RedisBackend, RedisOptions};
use syncguard_testkit::RedisCluster;

use crate::common::{Raw, eventually, granted};

const PREFIX: &str = "{syncguard}";

pub(crate) struct ClusterHarness {
    cluster: RedisCluster,
    url: String,
}

impl ClusterHarness {
    /// A cluster that is reached by `url` of its own URL.
    pub(crate) fn new(cluster: RedisCluster, url: impl FnOnce(&str) -> String) -> Self {
        let url = url(&cluster.url());
        Self { cluster, url }
    }

    fn start() -> Self {
        Self::new(RedisCluster::start().unwrap(), str::to_owned)
    }
}

impl Harness for ClusterHarness {
    type Backend = RedisBackend;

    async fn connect(&self) -> Result<RedisBackend, LockError> {
        let options = RedisOptions::new().prefix(PREFIX);
        RedisBackend::connect_with(&self.url, options).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_on_a_cluster_of_three() {
    let harness = ClusterHarness::start();
    let report = run(Arc::new(harness), RunOptions::new()).await;
    assert!(report.is_success(), "{report:#?}");
}

#[tokio::test]
async fn locks_go_on_while_nodes_without_any_are_away() {
    let mut cluster = ClusterHarness::start();
    let options = || {
        RedisOptions::new()
            .prefix(PREFIX)
            .timeout(Duration::from_secs(4))
    };
    let connect = async |url: &str| RedisBackend::connect_with(url, options()).await;
    let locks = Locks::new(connect(&cluster.url).await.unwrap());
    let ttl = Duration::from_secs(600);
    let held = locks.try_lock("held").ttl(ttl).await.unwrap().unwrap();
    let (mut others, mut owner) = (Vec::new(), String::new());
    for (index, node) in cluster.cluster.nodes().iter().enumerate() {
        let raw = Raw::connect(&node.url()).await;
        raw.run::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"])
            .await;
        match raw.keys().await.is_empty() {
            true => others.push(index),
            false => owner = node.url().replace("redis://", "redis-cluster://"),
        }
    }
    let [killed, paused] = others[..] else {
        panic!("one of three has the locks, not {others:?}");
    };
    cluster.cluster.nodes_mut()[killed].kill();
    cluster.cluster.nodes()[paused].pause().unwrap();

    // Their connections end when the driver notices; then it connects without them.
    eventually("it works without them", async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        locks.is_locked("held").await.is_ok_and(|locked| locked)
    })
    .await;
    for _ in 0..10 {
        let guard = granted(&locks, "k").await;
        assert!(guard.release().await.unwrap().is_released());
    }
    // A node that is asked first for the others may be one that is away.
    let away = cluster.cluster.nodes()[killed].port();
    let first_away = format!(
        "redis-cluster://127.0.0.1:{away}?node={}",
        owner.trim_start_matches("redis-cluster://")
    );
    for url in [&owner, &first_away] {
        let new = Locks::new(connect(url).await.unwrap());
        assert!(new.is_locked("held").await.unwrap());
    }

    cluster.cluster.nodes()[paused].resume().unwrap();
    cluster.cluster.nodes_mut()[killed].restart().unwrap();
    assert!(held.release().await.unwrap().is_released());
}

#[tokio::test]
async fn a_slot_that_moves_takes_its_locks_along() {
    let cluster = ClusterHarness::start();
    let locks = Locks::new(cluster.connect().await.unwrap());
    let mut nodes = Vec::new();
    for node in cluster.cluster.nodes() {
        nodes.push(Raw::connect(&node.url()).await);
    }
    let held = locks
        .try_lock("held")
        .ttl(Duration::from_secs(600))
        .await
        .unwrap()
        .unwrap();
    let fence = held.fence();

    let slot: i64 = nodes[0].run(&["CLUSTER", "KEYSLOT", PREFIX]).await;
    let slot = slot.to_string();
    let mut owner = None;
    for (index, raw) in nodes.iter().enumerate() {
        let here: i64 = raw.run(&["CLUSTER", "COUNTKEYSINSLOT", &slot]).await;
        if here > 0 {
            assert_eq!(here, 3, "lock, index and counter are on one node");
            assert_eq!(owner.replace(index), None, "and on no other");
        }
    }
    let owner = owner.unwrap();
    let target = (owner + 1) % nodes.len();
    let (from, to) = (&nodes[owner], &nodes[target]);
    let from_id: String = from.run(&["CLUSTER", "MYID"]).await;
    let to_id: String = to.run(&["CLUSTER", "MYID"]).await;
    to.run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id])
        .await;
    from.run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id])
        .await;
    let names: Vec<String> = from.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await;
    let port = cluster.cluster.nodes()[target].port().to_string();
    let (one, others) = names.split_first().unwrap();

    // With half of a lock's keys moved, the cluster can run no script on them.
    from.run::<()>(&["MIGRATE", "127.0.0.1", &port, one, "0", "5000"])
        .await;
    let error = locks.try_lock("held").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(error.is_retryable());

    for name in others {
        from.run::<()>(&["MIGRATE", "127.0.0.1", &port, name, "0", "5000"])
            .await;
    }
    for raw in [to, from] {
        raw.run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id])
            .await;
    }
    eventually("the client follows", async || {
        locks
            .try_lock("held")
            .await
            .is_ok_and(|guard| guard.is_none())
    })
    .await;
    assert!(held.release().await.unwrap().is_released());
    let next = granted(&locks, "held").await;
    assert!(next.fence() > fence);
    assert!(next.release().await.unwrap().is_released());
}
