//! Contract, policy and helpers of **SyncGuard**, a distributed lock.
//!
//! A lock keeps two processes from doing the same work at once. This crate knows no store: take a
//! backend crate beside it, or [implement one](LockBackend#implementing-a-backend).
//!
//! ```
//! use std::time::Duration;
//! use syncguard_core::{LockOptions, acquire, lock};
//! use syncguard_memory::MemoryBackend;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
//! let backend = MemoryBackend::default();
//!
//! // Wait for the key, run a section, give the key back.
//! lock(&backend, "payment:42", LockOptions::new(), async |lease| {
//!     println!("charging under fence {}", lease.fence());
//! })
//! .await?;
//!
//! // One attempt, and a guard.
//! if let Some(guard) = acquire(&backend, "report:daily", Duration::from_secs(60)).await? {
//!     let _ = guard.release().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! # What is promised
//!
//! No lock that ends by time can stop a holder that is paused past its end. What can be kept is:
//! at most one live lease per key at the store; [fences](Fence) that strictly increase with every
//! grant, so that a resource that refuses older ones accepts no stale write; a holder that can
//! tell by its own clock when its lease has run out; and no lock left behind by an operation that
//! timed out, was cancelled or was dropped.
//!
//! # Where things are
//!
//! [`lock()`], [`acquire`], [`release`], [`extend`], [`is_locked`] and the lookups take any
//! [`ManagedBackend`]. The numbered contract is on [`LockBackend`]. Failures are a [`LockError`];
//! contention and a lock that is gone are values.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod backoff;
mod cancel;
mod clock;
mod contract;
mod erased;
mod error;
mod extend;
mod fence;
mod guard;
mod hash;
mod key;
mod lease;
mod lock;
mod lock_id;
mod lookup;
mod managed;
mod observer;
mod outcome;
mod policy;
mod preflight;
mod reclaim;
mod storage_key;
mod time;
mod ttl;
mod wait;

pub use tokio_util::sync::CancellationToken;

pub use crate::backend::{Capabilities, LockBackend, Lookup, TimeAuthority};
pub use crate::backoff::{Backoff, Jitter};
pub use crate::cancel::{Answer, Cancellable};
pub use crate::contract::{Clause, clauses};
pub use crate::erased::AnyBackend;
pub use crate::error::{ErrorCode, LockError, Operation, WaitSummary};
pub use crate::extend::AutoExtend;
pub use crate::fence::{
    FENCE_DIGITS, FENCE_MAX, FENCE_WARN, Fence, FenceToken, NoFence, format_fence, has_fence,
};
pub use crate::guard::{LockGuard, acquire};
pub use crate::hash::{HashId, hash_key};
pub use crate::key::{LockKey, MAX_KEY_LENGTH_BYTES, normalize_and_validate_key};
pub use crate::lease::Lease;
pub use crate::lock::{
    DEFAULT_LOCK_TIMEOUT, DEFAULT_MAX_RETRIES, DEFAULT_RETRY_DELAY, LockOptions, Receipt, lock,
};
pub use crate::lock_id::{LOCK_ID_LENGTH, LockId, generate_lock_id, validate_lock_id};
pub use crate::lookup::{
    extend, get_by_id, get_by_id_raw, get_by_key, get_by_key_raw, is_locked, owns, release,
};
pub use crate::managed::Managed;
pub use crate::observer::{Observer, ReclaimResult, WaitEnd};
pub use crate::outcome::{
    AcquireResult, ExtendResult, FailureReason, Grant, LockInfo, LockInfoDebug, ReleaseResult,
};
pub use crate::policy::{DEFAULT_OPERATION_TIMEOUT, ManagedBackend, Policy};
pub use crate::preflight::{Finding, Preflight, Severity};
pub use crate::storage_key::{make_fence_key, make_hashed_storage_key, make_storage_key};
pub use crate::time::{TIME_TOLERANCE_MS, is_live, redis_server_time_ms};
pub use crate::ttl::{DEFAULT_TTL, Ttl};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
