//! [`Locks`], the handle of **SyncGuard**, a distributed lock, and the contract behind it.
//!
//! A lock keeps two processes from doing the same work at once. This crate knows no store: add a
//! backend crate, or [implement one](backend::LockBackend#implementing-a-backend).
//!
//! ```
//! use std::time::Duration;
//! use syncguard_core::Locks;
//! use syncguard_memory::MemoryBackend;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
//! let locks = Locks::new(MemoryBackend::default());
//!
//! // Wait for the key, run a section under the lock, release.
//! let receipt = locks
//!     .lock("payment:42")
//!     .run(async |lease| format!("charged under fence {}", lease.fence()))
//!     .await?;
//! println!("{}", receipt.into_value());
//!
//! // Wait for the key and hold it by a guard.
//! let guard = locks.lock("deploy:production").await?;
//! assert!(guard.release().await?.is_released());
//!
//! // One attempt.
//! if let Some(guard) = locks.try_lock("report:daily").ttl(Duration::from_secs(60)).await? {
//!     assert!(guard.release().await?.is_released());
//! }
//! # Ok(()) }
//! ```
//!
//! # What is promised
//!
//! No lease-based lock can stop a holder that is paused past the end of its lease. What can be promised is:
//! at most one live lease per key at the store; [fences](Fence) that strictly increase with every grant, so
//! that a resource that refuses older ones accepts no stale write; a holder that knows by its own clock
//! when its lease has ended; and background releases after operations that timed out, were cancelled or
//! were dropped.
//!
//! # Where things are
//!
//! [`Locks`] has every operation. [`LockOptions`] has the choices of a request. Failures are a
//! [`LockError`]; contention and a lock that is gone are values. The numbered contract is on
//! [`LockBackend`](backend::LockBackend), in the module for authors of [backends](backend). Hooks for
//! telemetry are in [`observe`].

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod backend;
mod backoff;
mod builder;
mod call;
mod clock;
mod error;
mod extend;
mod fence;
mod guard;
mod hash;
mod key;
mod lease;
mod line;
pub mod list;
mod lock_id;
mod lock_request;
mod locks;
mod maintenance;
pub mod observe;
mod options;
mod preflight;
mod reclaim;
mod request;
mod results;
mod section;
mod storage_key;
mod store;
mod time;
mod ttl;
mod wait;

pub use tokio_util::sync::CancellationToken;

pub use crate::backoff::{Backoff, Jitter};
pub use crate::builder::LocksBuilder;
pub use crate::error::{ErrorCode, LockError};
pub use crate::extend::AutoExtend;
pub use crate::fence::Fence;
pub use crate::guard::{Attempt, LockGuard};
pub use crate::hash::{HashId, hash_key};
pub use crate::key::LockKey;
pub use crate::lease::Lease;
pub use crate::lock_id::LockId;
pub use crate::lock_request::{LockRequest, TryLockRequest};
pub use crate::locks::Locks;
pub use crate::options::LockOptions;
pub use crate::preflight::{Finding, Severity};
pub use crate::request::Request;
pub use crate::results::{ExtendResult, LockInfo, LockInfoDebug, ReleaseResult};
pub use crate::section::Receipt;
pub use crate::ttl::Ttl;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
