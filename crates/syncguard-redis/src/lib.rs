//! Redis backend of SyncGuard, a distributed lock.
//!
//! ```no_run
//! use std::time::Duration;
//! use syncguard_core::Locks;
//! use syncguard_redis::RedisBackend;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
//! let locks = Locks::new(RedisBackend::connect("redis://127.0.0.1:6379").await?);
//!
//! if let Some(guard) = locks.try_lock("report:daily").ttl(Duration::from_secs(60)).await? {
//!     println!("working under fence {}", guard.fence());
//!     if !guard.release().await?.is_released() {
//!         eprintln!("the lease expired during the work");
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! Every operation is one script and one round trip. Only the server's clock decides when a lease ends.
//!
//! # What is stored
//!
//! | key | value | ends |
//! |---|---|---|
//! | `{prefix}:{key}` | JSON: `lockId`, `expiresAtMs`, `acquiredAtMs`, `key`, `fence` | with the TTL |
//! | `{prefix}:id:{lockId}` | the name of the lock's key | with the TTL |
//! | `{prefix}:fence:{prefix}:{key}` | the key's fence counter | never |
//!
//! These are the bytes of the TypeScript implementation: both can share one Redis. A key that is too
//! long is stored under a hash: see [`STORAGE_KEY_LIMIT`]. A stored value that is not a lock is
//! `InvalidArgument`, and no operation changes it.
//!
//! # What Redis needs
//!
//! - **Durability, for the fences.** A counter that is lost restarts at 1.
//!   [Operations](https://github.com/syncguard/syncguard-rs/blob/main/docs/operations.md#persistence-and-eviction-on-redis)
//!   has the settings for persistence and eviction.
//! - **One primary.** Replication is asynchronous: a failover can lose the newest locks and their
//!   fences. If two holders are worse than none, do not fail over automatically.
//! - Version 6.2 or later, or Valkey.
//! - **Permissions.** A user other than the default one needs
//!   [those of Operations](https://github.com/syncguard/syncguard-rs/blob/main/docs/operations.md#permissions).
//!
//! [`Locks::preflight`](syncguard_core::Locks::preflight) compares a server with this list.
//!
//! # Listing
//!
//! [`Locks::list`](syncguard_core::Locks::list) needs one more permission, `+scan`. A page is
//! one script: it scans 100 to 500 entries of the database and reads the locks among them. So a whole
//! listing scans every entry of the database, or of the cluster's node, fence counters included: a million
//! entries take thousands of pages. A prefix makes the pages smaller, not fewer. As with `SCAN` itself, a
//! later page may list a lock again. While a cluster moves the slot, or after a restart or failover between
//! two pages, a listing can miss locks.
//!
//! # After the expiry
//!
//! Redis removes a lock at its expiry, and the key is free. Other backends still count the lock as live for
//! one more second.
//!
//! # Cluster, Sentinel, TLS
//!
//! All three keys of a lock must be on one node: give the prefix a hash tag, as in `{syncguard}`. For anything
//! that a URL cannot express, configure a client and pass it to [`RedisBackend::with_client`].

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod cleanup;
mod connect;
mod error;
mod list;
mod lua;
mod names;
mod options;
mod preflight;
mod record;
mod wake_ups;
mod wire;

pub use fred;

pub use crate::backend::RedisBackend;
pub use crate::names::{STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE};
pub use crate::options::{DEFAULT_PREFIX, DEFAULT_TIMEOUT, RedisOptions};

// Applications move these between threads, and into futures that they spawn.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<RedisBackend>();
    shared::<RedisOptions>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
