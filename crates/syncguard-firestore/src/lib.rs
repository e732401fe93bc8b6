//! Firestore backend of the SyncGuard lock.
//!
//! ```no_run
//! use std::time::Duration;
//! use syncguard_core::{LockOptions, lock};
//! use syncguard_firestore::{FirestoreBackend, FirestoreOptions, FirestoreStore};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
//! let store = FirestoreStore::connect("my-project", FirestoreOptions::new()).await?;
//! let backend = FirestoreBackend::new(store);
//!
//! lock(&backend, "payment:42", LockOptions::new(), async |lease| {
//!     println!("charging under fence {}", lease.fence());
//! })
//! .await?;
//! # Ok(()) }
//! ```
//!
//! # Compare-and-set, no transaction
//!
//! Every change is one read and one commit that names the versions it read. A commit that finds
//! other versions changes nothing; the state is then read again and answered by. Nothing is locked
//! in the database between the two, so clients of different keys do not wait for each other, and a
//! client that dies in between leaves nothing behind. Without a conflict an operation takes at most
//! two round trips; contention, `is_locked` and lookups take one.
//!
//! # Documents
//!
//! | collection | id | fields |
//! |---|---|---|
//! | `locks` | the key | `lockId`, `expiresAtMs`, `acquiredAtMs`, `key`, `fence` |
//! | `fence_counters` | `fence:` and the lock's id | `fence`, `keyDebug` |
//!
//! They are those of SyncGuard for TypeScript, so both can share one database. A key that cannot be
//! a document id (`a/b`, `.`, `..`, `__x__`) goes by its hash. Fields of one's own on a lock do not
//! survive the next acquire. Lock ids are found by Firestore's automatic index on `lockId`, and
//! expired locks by that on `expiresAtMs`: do not exempt these fields. Fence counters must never be
//! deleted; a time-to-live policy belongs on neither collection.
//!
//! # Whose clock
//!
//! Each client's own by default: keep the machines' clocks in step. Every read is compared with the
//! time of the server, which a difference of 200 ms warns of; it can be
//! [refused](FirestoreOptions::with_skew_limit), or
//! [the server's time](FirestoreOptions::with_server_time) be used throughout. A lease counts as
//! live until `expires_at_ms + 1000`.
//!
//! A lease counts from the read that found the key free. Where another client's transaction keeps the
//! commit waiting, that much less of it is left; a guard, which counts from before the request, takes
//! no longer lease for granted, and one that has run out by then is given back.
//!
//! # TLS and credentials
//!
//! Both are the application's choice. `tls-native-roots` or `tls-webpki-roots` say whom to trust;
//! without either it is Google's own roots. Cryptography is that of the rustls `CryptoProvider` which
//! the application has installed before it connects, or comes with the feature `default-crypto`.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod clock;
mod connect;
mod document;
mod error;
mod name;
mod options;
mod preflight;
mod purge;
mod reread;
mod wire;

use syncguard_core::Managed;

pub use gcloud_sdk;

pub use crate::backend::FirestoreStore;
pub use crate::connect::FirestoreApi;
pub use crate::options::{
    DEFAULT_FENCE_COLLECTION, DEFAULT_LOCK_COLLECTION, DEFAULT_REQUEST_TIMEOUT,
    DEFAULT_SKEW_WARNING, FirestoreOptions, RECOMMENDED_SKEW_LIMIT,
};

/// A [`FirestoreStore`] with the policy of [`Managed`]: what callers hold.
pub type FirestoreBackend = Managed<FirestoreStore>;

// What callers hold goes from thread to thread, and into futures that do.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<FirestoreBackend>();
    shared::<FirestoreStore>();
    shared::<FirestoreOptions>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
