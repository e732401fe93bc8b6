//! PostgreSQL backend of the SyncGuard lock, on [`sqlx`].
//!
//! ```no_run
//! use std::time::Duration;
//! use syncguard_core::{LockError, Locks};
//! use syncguard_postgres::PostgresBackend;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
//! let backend = PostgresBackend::connect("postgres://app@localhost/app").await?;
//! backend.setup_schema().await?; // once, as a role that may create tables
//! let locks = Locks::new(backend);
//!
//! if let Some(guard) = locks.try_lock("report:daily").ttl(Duration::from_secs(60)).await? {
//!     println!("working under fence {}", guard.fence());
//!     guard.release().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! # How it works
//!
//! Locks are rows of one table, fence counters rows of another; [`PostgresBackend::schema_ddl`] prints
//! both. Every operation is one statement in one round trip, prepared once per connection. An acquire that
//! finds an expired lock, or others that want the same free key, takes a second one. (The backend pings a
//! connection that was idle for a second before it uses it.) A held lock occupies no connection and no
//! transaction, and leaves no state in a session. A contended acquire writes nothing.
//!
//! Sessions that the backend opens itself have `enable_seqscan` and `jit` off. The server plans by the size
//! that a table of locks has at one moment and keeps the plan for longer than that; with these settings the
//! plan always uses the index. The backend does not set them with
//! [`transaction_pooler`](PostgresOptions::transaction_pooler), where no plan is kept, or behind a pooler
//! that refuses such settings.
//!
//! Time is the server's. A lease counts as live until `expires_at_ms + 1000`: within that second
//! nobody else can acquire the key, and an extend still saves the lease.
//!
//! Tables, rows and the order of locking are those of the TypeScript original. Both can serve the
//! same keys at the same time.
//!
//! It needs PostgreSQL 12 or later, and the primary: on a streaming replica every write is
//! `ServiceUnavailable`.
//! [Operations](https://github.com/syncguard/syncguard-rs/blob/main/docs/operations.md#permissions) has the
//! permissions that the role needs.
//!
//! # Keys
//!
//! Every key works. A storage key, which is the key with its prefix, has at most
//! [`STORAGE_KEY_LIMIT`] bytes; a longer one is shortened to a hash. Without a prefix, no key is that
//! long.
//!
//! # Poolers
//!
//! A pooler in session mode needs no option. Behind a pooler in transaction mode (PgBouncer, or what
//! cloud providers call a transaction pooler) set [`PostgresOptions::transaction_pooler`]. Without it,
//! prepared statements arrive at connections that do not have them, or have another statement of that
//! name. The backend recognizes such a reply and reports `InvalidArgument`; it never takes it for a
//! result.
//!
//! # Waiting in the server
//!
//! An acquire of a free key queues for a transaction-level advisory lock, normally for less than a
//! millisecond. If the statement waits in the server for more than half a second, or for longer than the
//! TTL, the server does not grant the lock: the caller may have left. The backend tries three times in all,
//! no longer than the TTL, and then returns `Locked`.
//!
//! # Waiting for a key
//!
//! While a caller waits, the backend keeps one more connection open, and gets notifications of releases on
//! it (`LISTEN`). The first wait opens it, and it closes some seconds after the last wait. It has the
//! connect options of the URL or of the pool; hooks of a pool do not run on it, and it reads no table. A
//! caller that waits holds a shared advisory lock there, of the form `(class, slot)`: the class is a hash
//! of the table names, the slot one of 1,024, by the key. A release notifies only if a caller holds that
//! lock. Backends wake each other if they name their tables alike, with or without a schema.
//!
//! Where this is not possible, callers poll: behind a pooler in transaction mode, without a connection to
//! spare, and without the permission to call `pg_notify` or the advisory-lock functions, which every role
//! has by default.
//!
//! # Deleting expired locks
//!
//! An expired lock keeps its row until the key is acquired again.
//! [`Locks::purge_expired`](syncguard_core::Locks::purge_expired) deletes the rows of keys that are
//! never used again. Fence counters stay for ever, at about 200 bytes each: without them a key could
//! see a fence twice.
//!
//! # The driver
//!
//! This crate re-exports [`sqlx`], so that a pool for [`PostgresBackend::with_pool`] is of the version
//! that the crate was built with.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod cleanup;
mod connect;
mod error;
mod greeting;
mod names;
mod options;
mod preflight;
mod record;
mod schema;
mod wake_ups;
mod wire;

pub use sqlx;

pub use crate::backend::PostgresBackend;
pub use crate::names::{STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE};
pub use crate::options::PostgresOptions;

// Applications share these between threads, and keep them in futures.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<PostgresBackend>();
    shared::<PostgresOptions>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
