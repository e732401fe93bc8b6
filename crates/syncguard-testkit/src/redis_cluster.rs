//! [`RedisCluster`]: a Redis Cluster for one test.

use std::net::Ipv4Addr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::RedisServer;
use crate::install::on_path;
use crate::redis::ask;

const NODES: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Three masters that share the slots, without replicas. They stop on drop.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts the nodes and creates the cluster, which takes some seconds.
    ///
    /// # Errors
    /// If Redis is not installed, or the cluster does not come up.
    pub fn start() -> Result<Self> {
        let nodes: Vec<_> = (0..NODES)
            .map(|_| RedisServer::start_with(&["--cluster-enabled", "yes"]))
            .collect::<Result<_>>()?;
        let cli = on_path("redis-cli").context("install the package redis-tools")?;
        let created = Command::new(cli)
            .args(["--cluster", "create"])
            .args(nodes.iter().map(|node| address(node.port())))
            .arg("--cluster-yes")
            .output()?;
        ensure!(
            created.status.success(),
            "the cluster was not created:\n{}",
            String::from_utf8_lossy(&created.stdout)
        );
        let started = Instant::now();
        while !nodes.iter().all(agrees) {
            ensure!(
                started.elapsed() < TIMEOUT,
                "the cluster was not up within {TIMEOUT:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { nodes })
    }

    /// The URL of its first node: `redis-cluster://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis-cluster://{}", address(self.nodes[0].port()))
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The nodes, to stop and restart them.
    pub fn nodes_mut(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }
}

/// Whether all slots are served, as this node sees it.
fn agrees(node: &RedisServer) -> bool {
    ask(node.port(), "CLUSTER INFO").is_ok_and(|info| info.contains("cluster_state:ok"))
}

fn address(port: u16) -> String {
    format!("{}:{port}", Ipv4Addr::LOCALHOST)
}
