//! SQLite backend of the SyncGuard lock, on [`sqlx`].
//!
//! ```no_run
//! use std::time::Duration;
//! use syncguard_core::{LockError, Locks};
//! use syncguard_sqlite::SqliteBackend;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
//! let locks = Locks::new(SqliteBackend::connect("/var/lib/app/locks.db").await?);
//!
//! if let Some(guard) = locks.try_lock("report:daily").ttl(Duration::from_secs(60)).await? {
//!     println!("working under fence {}", guard.fence());
//!     guard.release().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! One file serves all processes of one machine; there is nothing to install. Processes on other machines
//! need another store.
//!
//! # How it works
//!
//! Locks are rows of one table, fence counters rows of another; [`SqliteBackend::schema_ddl`] prints both.
//! They have the columns of SyncGuard's tables in PostgreSQL. Every operation is one transaction. One that
//! writes begins it with `BEGIN IMMEDIATE`, so it cannot fail in the middle because another process has the
//! write lock. A contended acquire only reads. While a lock is held, no transaction is open for it.
//!
//! SQLite has one writer at a time. An operation that finds the file locked tries again until its own
//! deadline; within this process operations that write take turns.
//!
//! # Time
//!
//! Time is the machine's system time, which SQLite reads after the write lock was granted. A lease counts
//! as live until `expires_at_ms + 1000`: within that second nobody else can acquire the key, and an extend
//! still saves the lease. If somebody sets the clock forward, leases end earlier by as much: a second
//! holder is possible, and only the fence tells them apart. If somebody sets it back, leases last longer by
//! as much. A daemon that slews the clock, as NTP daemons do, changes nothing that matters.
//!
//! # Files
//!
//! Keep the file and its companions `-wal` and `-shm` on a local disk, and never delete, replace or overwrite one of
//! them while a process uses them. [Operations](https://github.com/syncguard/syncguard-rs/blob/main/docs/operations.md#files-of-sqlite)
//! has the rules for file systems, containers and backups. After a `fork`, a child process must make a backend of its
//! own.
//!
//! # Waiting for a key
//!
//! A release wakes callers that wait in the same backend at once. For releases of other processes, the
//! backend checks every 5 ms whether the file was changed, on one more connection, while a caller waits.
//!
//! # Deleting expired locks
//!
//! An expired lock keeps its row until the key is acquired again.
//! [`Locks::purge_expired`](syncguard_core::Locks::purge_expired) deletes the rows of keys that are never
//! used again. Fence counters stay for ever: without them a key could see a fence twice.
//!
//! # The driver
//!
//! This crate builds SQLite itself, and re-exports [`sqlx`], so that a pool for
//! [`SqliteBackend::with_pool`] is of the version that the crate was built with.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod connect;
mod error;
mod names;
mod options;
mod place;
mod preflight;
mod record;
mod schema;
mod wake_ups;
mod wire;

pub use sqlx;

pub use crate::backend::SqliteBackend;
pub use crate::names::{STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE};
pub use crate::options::{SqliteOptions, Synchronous};

// Applications share these between threads, and keep them in futures.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<SqliteBackend>();
    shared::<SqliteOptions>();
    shared::<Synchronous>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
