//! Real servers for tests of distributed locks.
//!
//! Each server gets a loopback port and a folder of its own. It stops when its value is dropped, by a
//! panic too, and when the test process is killed. If a program is missing, the error says what to
//! install; no test is skipped for it.
//!
//! ```no_run
//! use syncguard_testkit::RedisServer;
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut server = RedisServer::start()?;
//! println!("redis-server answers at {}", server.url());
//! server.pause()?; // it hangs, as a store behind a broken network does
//! server.resume()?;
//! server.restart()?; // the same port and data
//! # Ok(()) }
//! ```
//!
//! Starting a server blocks, for 50 ms (Redis) to 8 s (Firestore). A test that needs *any* server uses
//! the shared one ([`shared_redis_url`] and its like); a test that stops, pauses or reconfigures a
//! server starts its own.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod certificates;
mod command_server;
mod contention;
mod faults;
mod files;
mod firestore;
mod in_time;
pub mod install;
mod pages;
mod pgbouncer;
mod postgres;
mod process;
mod proxy;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod resp;
mod server;
mod slot;
mod texts;

use std::sync::OnceLock;

use anyhow::{Result, anyhow};

pub use crate::certificates::PrivateCa;
pub use crate::command_server::CommandServer;
pub use crate::contention::share_a_key;
pub use crate::faults::{Connections, Faults, Flow};
pub use crate::files::folder_for_files;
pub use crate::firestore::{FirestoreEmulator, shared_firestore_host};
pub use crate::in_time::in_time;
pub use crate::pages::pages;
pub use crate::pgbouncer::PgBouncer;
pub use crate::postgres::{PostgresServer, shared_postgres_url};
pub use crate::proxy::{FaultProxy, Struck};
pub use crate::redis::{RedisServer, shared_redis_url};
pub use crate::redis_cluster::RedisCluster;
pub use crate::redis_sentinel::RedisSentinel;
pub use crate::server::Server;
pub use crate::texts::texts;

/// The address in an environment variable, or that of a server started once for this process.
///
/// Nothing drops a static: the server stops when the process ends.
fn shared<S>(
    variable: &str,
    server: &'static OnceLock<Result<S, String>>,
    start: impl FnOnce() -> Result<S>,
    address: impl FnOnce(&S) -> String,
) -> Result<String> {
    if let Some(given) = std::env::var(variable)
        .ok()
        .filter(|given| !given.is_empty())
    {
        return Ok(given);
    }
    server
        .get_or_init(|| start().map_err(|error| format!("{error:#}")))
        .as_ref()
        .map(address)
        .map_err(|error| anyhow!("{error}"))
}

// Applications move these between threads, and into futures that they spawn.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<CommandServer>();
    shared::<Connections>();
    shared::<FaultProxy>();
    shared::<Faults>();
    shared::<FirestoreEmulator>();
    shared::<Flow>();
    shared::<PgBouncer>();
    shared::<PostgresServer>();
    shared::<PrivateCa>();
    shared::<RedisCluster>();
    shared::<RedisSentinel>();
    shared::<RedisServer>();
    shared::<Struck>();
    shared::<install::Tool>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
