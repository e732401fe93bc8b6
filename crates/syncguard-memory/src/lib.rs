//! In-process backend of the SyncGuard lock.
//!
//! For single processes, for an application's tests, and as the shortest implementation of the
//! [contract](syncguard_core::backend::LockBackend#contract). The locks end with the process: they keep
//! tasks apart, not processes or machines.
//!
//! ```
//! use std::time::Duration;
//! use syncguard_core::Locks;
//! use syncguard_memory::{ManualClock, MemoryBackend};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
//! let clock = ManualClock::new();
//! let locks = Locks::new(MemoryBackend::with_clock(clock.clone()));
//!
//! let overrun = locks.lock("job:nightly").ttl(Duration::from_secs(30)).await?;
//! clock.advance(Duration::from_secs(31));
//! let next = locks.lock("job:nightly").await?;
//! assert!(next.fence() > overrun.fence());
//! # Ok(()) }
//! ```
//!
//! A lease counts as live until `expires_at_ms + 1000`, as on all stores but Redis.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod clock;

pub use crate::backend::{Kept, MemoryBackend};
pub use crate::clock::ManualClock;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
