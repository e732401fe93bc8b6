//! Redis backend of the SyncGuard lock.
//!
//! ```no_run
//! use std::time::Duration;
//! use syncguard_core::acquire;
//! use syncguard_redis::{RedisBackend, RedisStore};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
//! let backend = RedisBackend::new(RedisStore::connect("redis://127.0.0.1:6379").await?);
//!
//! if let Some(guard) = acquire(&backend, "report:daily", Duration::from_secs(60)).await? {
//!     println!("fence {}", guard.fence());
//!     let _ = guard.release().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! Every operation is one script and one round trip. Time is the server's alone.
//!
//! # What is stored
//!
//! | key | value | ends |
//! |---|---|---|
//! | `{prefix}:{key}` | JSON: `lockId`, `expiresAtMs`, `acquiredAtMs`, `key`, `fence` | with the TTL |
//! | `{prefix}:id:{lockId}` | the name of the lock's key | with the TTL |
//! | `{prefix}:fence:{prefix}:{key}` | the key's fence counter | never |
//!
//! The same bytes as the TypeScript implementation's: both can share one Redis. Keys that are too
//! long are stored under a hash. A value that is no lock is `InvalidArgument`, and left as it is.
//!
//! # What Redis has to be
//!
//! - **Durable for the fences.** A counter that is lost begins again at 1. Keep append-only
//!   persistence on and never evict: `maxmemory-policy noeviction`. The `volatile-*` policies spare
//!   fence counters, which have no TTL, and throw away live locks.
//! - **One primary.** Replication is asynchronous: a failover can lose the newest locks, and the
//!   fences with them. Where two holders are worse than none, do not fail over automatically.
//! - Version 6.2 or later, or Valkey. Users need the commands `EVAL` and `EVALSHA` and, in the
//!   scripts, `GET`, `SET`, `DEL`, `INCR`, `DECR`, `PEXPIREAT` and `TIME`, all on `{prefix}:*`.
//!   Besides `SELECT` in another database than 0, and `CLUSTER SLOTS` and `CLUSTER INFO` on a
//!   cluster.
//!
//! [`preflight`](syncguard_core::Preflight) compares a server with this list.
//!
//! # After the expiry
//!
//! Redis forgets a lock at its expiry. In the second after it, in which other backends may still
//! count it as live, this one has freed the key.
//!
//! # Cluster, Sentinel, TLS
//!
//! A lock's three keys must be on one node: give the prefix a hash tag, as in `{syncguard}`. For
//! anything that a URL cannot say, configure a client and pass it to [`RedisStore::with_client`].

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod call;
mod cleanup;
mod client;
mod connect;
mod document;
mod error;
mod keys;
mod options;
mod preflight;
mod script;
mod server;

use syncguard_core::Managed;

pub use fred;

pub use crate::backend::RedisStore;
pub use crate::options::{DEFAULT_PREFIX, DEFAULT_TIMEOUT, RedisOptions};

/// A [`RedisStore`] with the policy of [`Managed`]: what callers hold.
pub type RedisBackend = Managed<RedisStore>;

// What callers hold goes from thread to thread, and into futures that do.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<RedisBackend>();
    shared::<RedisStore>();
    shared::<RedisOptions>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
