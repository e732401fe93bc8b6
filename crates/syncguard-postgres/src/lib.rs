//! PostgreSQL backend of the SyncGuard lock, on [`sqlx`].
//!
//! ```no_run
//! use std::time::Duration;
//! use syncguard_core::acquire;
//! use syncguard_postgres::{PostgresBackend, PostgresStore};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
//! let store = PostgresStore::connect("postgres://app@localhost/app").await?;
//! store.setup_schema().await?; // once, by a role that may create tables
//! let backend = PostgresBackend::new(store);
//!
//! if let Some(guard) = acquire(&backend, "report:daily", Duration::from_secs(60)).await? {
//!     println!("working under fence {}", guard.fence());
//!     let _ = guard.release().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! # How it works
//!
//! Locks are rows of one table, fence counters rows of another; [`PostgresStore::schema_ddl`]
//! prints both. Every operation is one statement in one round trip, prepared once per connection
//! (a connection that was idle for a second is tried first). While a lock is held, no connection
//! and no transaction is: nothing is left in the session. A contended acquire writes nothing.
//!
//! Sessions that the store opens itself have `enable_seqscan` and `jit` off: the server keeps a plan
//! for longer than a table of locks keeps its size, and so the plan always goes by the index. Not with
//! [`with_transaction_pooler`](PostgresOptions::with_transaction_pooler), where no plan is kept, nor
//! behind a pooler that refuses such settings.
//!
//! Time is the server's. A lease counts as live until `expires_at_ms + 1000`: within that second
//! others are refused the key, and an extend still saves the lease.
//!
//! Tables, rows and the order of locking are those of the TypeScript original. Both can serve the
//! same keys at the same time.
//!
//! PostgreSQL 12 or later, and its primary: on a streaming replica whatever writes is
//! `ServiceUnavailable`.
//!
//! # Poolers
//!
//! A pooler in session mode needs nothing. Behind one in transaction mode (PgBouncer, or what
//! cloud providers call a transaction pooler) set
//! [`PostgresOptions::with_transaction_pooler`]. Without it prepared statements end up on
//! connections that do not know them, or know another by that name. Such an answer is recognised
//! and reported as `InvalidArgument`; it is never taken for a result.
//!
//! # Waiting in the server
//!
//! An acquire of a free key waits its turn on a transaction-level advisory lock, normally for less
//! than a millisecond. Whatever else keeps it waiting in the server for the length of the TTL, it
//! answers `Locked`: someone has been at the key for that long.
//!
//! # Clearing up
//!
//! A lock that expired leaves its row until the key is acquired again.
//! [`PostgresStore::purge_expired`] deletes rows of keys that are never used again. Fence counters
//! stay for ever, at about 100 bytes each: without them a key could see a fence twice.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod connect;
mod error;
mod options;
mod pool;
mod preflight;
mod query;
mod schema;
mod session;
mod table;

use syncguard_core::Managed;

pub use crate::connect::PostgresStore;
pub use crate::options::PostgresOptions;

/// A [`PostgresStore`] with the policy of [`Managed`]: what callers hold.
pub type PostgresBackend = Managed<PostgresStore>;

// What callers hold goes from thread to thread, and into futures that do.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<PostgresBackend>();
    shared::<PostgresStore>();
    shared::<PostgresOptions>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
