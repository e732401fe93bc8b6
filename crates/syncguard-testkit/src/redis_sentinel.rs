//! [`RedisSentinel`]: a primary, a replica, and sentinels that promote the replica.

use std::fs;
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::RedisServer;
use crate::install;
use crate::process::{Process, command};
use crate::redis::ask;
use crate::slot::Slot;

const SENTINELS: usize = 3;
/// The sentinels' name for the primary.
const SERVICE: &str = "locks";
const TIMEOUT: Duration = Duration::from_secs(30);

/// A primary with one replica, monitored by three sentinels. All stop on drop.
#[derive(Debug)]
pub struct RedisSentinel {
    primary: RedisServer,
    replica: RedisServer,
    sentinels: Vec<Sentinel>,
}

#[derive(Debug)]
struct Sentinel {
    _process: Process,
    slot: Slot,
}

impl RedisSentinel {
    /// Starts all five and waits until they know each other, which takes some seconds. The sentinels
    /// replace a primary that is silent for a second.
    ///
    /// # Errors
    /// If Redis is not installed, or the sentinels do not get ready.
    pub fn start() -> Result<Self> {
        let at_once = ["--repl-diskless-sync-delay", "0"];
        let primary = RedisServer::start_with(&at_once)?;
        let port = primary.port().to_string();
        let follow = ["--replicaof", "127.0.0.1", &port];
        let replica = RedisServer::start_with(&[&follow[..], &at_once].concat())?;
        let sentinels: Vec<_> = (0..SENTINELS)
            .map(|_| Sentinel::start(primary.port()))
            .collect::<Result<_>>()?;
        let started = Instant::now();
        while !sentinels.iter().all(Sentinel::is_ready) {
            ensure!(
                started.elapsed() < TIMEOUT,
                "the sentinels were not ready within {TIMEOUT:?}"
            );
            thread::sleep(Duration::from_millis(50));
        }
        Ok(Self {
            primary,
            replica,
            sentinels,
        })
    }

    /// Where the sentinels answer: `redis-sentinel://127.0.0.1:PORT?node=...`.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(Sentinel::address).collect();
        let mut url = format!(
            "redis-sentinel://{}?sentinelServiceName={SERVICE}",
            addresses[0]
        );
        for address in &addresses[1..] {
            url.push_str(&format!("&node={address}"));
        }
        url
    }

    /// The server that was the primary at the start.
    pub fn primary_mut(&mut self) -> &mut RedisServer {
        &mut self.primary
    }

    /// The server that was the primary at the start.
    #[must_use]
    pub fn primary(&self) -> &RedisServer {
        &self.primary
    }

    /// The server that was the replica at the start.
    #[must_use]
    pub fn replica(&self) -> &RedisServer {
        &self.replica
    }
}

impl Sentinel {
    fn start(primary: u16) -> Result<Self> {
        let slot = Slot::claim()?;
        // The sentinel writes what it finds out to this file.
        let file = slot.folder().join("sentinel.conf");
        let host = Ipv4Addr::LOCALHOST;
        fs::write(
            &file,
            format!(
                "bind {host}\nport {}\ndir {}\n\
                 sentinel monitor {SERVICE} {host} {primary} 2\n\
                 sentinel down-after-milliseconds {SERVICE} 1000\n\
                 sentinel failover-timeout {SERVICE} 4000\n",
                slot.port(),
                slot.folder().display()
            ),
        )?;
        let mut command = command(install::REDIS.find()?, None)?;
        command.arg(file).arg("--sentinel");
        let mut process = Process::spawn("redis-sentinel", command, &slot.folder().join("log"))?;
        process.wait_until(TIMEOUT, || {
            ask(slot.port(), "PING").is_ok_and(|reply| reply.starts_with("+PONG"))
        })?;
        Ok(Self {
            _process: process,
            slot,
        })
    }

    fn address(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.slot.port())
    }

    /// Whether it knows a replica, and enough sentinels to agree on a failover.
    fn is_ready(&self) -> bool {
        let says = |command: &str, beginning: &str| {
            ask(self.slot.port(), &format!("SENTINEL {command} {SERVICE}"))
                .is_ok_and(|reply| reply.starts_with(beginning))
        };
        says("CKQUORUM", &format!("+OK {SENTINELS} usable")) && says("REPLICAS", "*1\r\n")
    }
}
