//! In-process backend of the SyncGuard lock.
//!
//! The embedded default, the double for an application's tests, and the
//! [contract](syncguard_core::LockBackend#contract) in its shortest form. Locks live as long as
//! the process: it keeps tasks apart, not machines.
//!
//! ```
//! use std::time::Duration;
//! use syncguard_core::acquire;
//! use syncguard_memory::{ManualClock, MemoryBackend, MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
//! let clock = ManualClock::new();
//! let backend = MemoryBackend::new(MemoryStore::with_clock(clock.clone()));
//!
//! let overrun = acquire(&backend, "job:nightly", Duration::from_secs(30)).await?.unwrap();
//! clock.advance(Duration::from_secs(31));
//! let next = acquire(&backend, "job:nightly", Duration::from_secs(30)).await?.unwrap();
//! assert!(next.fence() > overrun.fence());
//! # Ok(()) }
//! ```
//!
//! A lease counts as live until `expires_at_ms + 1000`, as on PostgreSQL and Firestore.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod clock;
mod store;

use syncguard_core::Managed;

pub use crate::clock::ManualClock;
pub use crate::store::MemoryStore;

/// A [`MemoryStore`] with the policy of [`Managed`]: what callers hold.
///
/// `MemoryBackend::default()` is a new, empty store; its clones share it.
pub type MemoryBackend = Managed<MemoryStore>;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
