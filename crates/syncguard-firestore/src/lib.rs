//! Firestore backend of the SyncGuard lock.
//!
//! ```no_run
//! use syncguard_core::Locks;
//! use syncguard_firestore::{FirestoreBackend, FirestoreOptions};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
//! let backend = FirestoreBackend::connect("my-project", FirestoreOptions::new()).await?;
//! let locks = Locks::new(backend);
//!
//! let receipt = locks
//!     .lock("payment:42")
//!     .run(async |lease| format!("charged under fence {}", lease.fence()))
//!     .await?;
//! println!("{}", receipt.into_value());
//! # Ok(()) }
//! ```
//!
//! # Compare-and-set, no transaction
//!
//! Every change is one read and one commit, which names the versions that it read. If a document has
//! another version by then, Firestore refuses the commit; the backend reads again and decides by the new
//! state. Between the two, nothing in the database is locked. So clients of different keys do not wait for
//! each other, and a client that dies in between blocks nobody. Without a conflict an operation takes at
//! most two round trips. A contended acquire, `is_locked` and lookups take one.
//!
//! # Documents
//!
//! | collection | id | fields |
//! |---|---|---|
//! | `locks` | the key | `lockId`, `expiresAtMs`, `acquiredAtMs`, `key`, `fence` |
//! | `fence_counters` | `fence:` and the lock's id | `fence`, `keyDebug` |
//!
//! SyncGuard for TypeScript has the same documents, so both can share one database. If Firestore does
//! not accept a key as an id (`a/b`, `.`, `..`, `__x__`), its document has a hash of the key as its
//! id. The next acquire removes fields that an application added to a lock. The backend finds lock
//! ids by Firestore's automatic index on `lockId`, and expired locks by that on `expiresAtMs`: do not
//! exempt these fields from indexing. Never delete a fence counter, and put a time-to-live policy on
//! neither collection. An expired lock stays until the next acquire of its key, or until
//! [`purge_expired`](syncguard_core::Locks::purge_expired) deletes it.
//!
//! # Listing
//!
//! [`Locks::list`](syncguard_core::Locks::list) reads locks in the order of their keys, by Firestore's
//! automatic index on `key`: do not exempt that field if you list. Firestore charges a document read for
//! each document of a page, expired locks included.
//!
//! # Whose clock
//!
//! By default each client counts leases by its own clock: synchronize the clocks of all machines. The
//! backend compares its clock with the server's at every read, reports the skew to observers and logs
//! a warning above 200 ms. It can also [refuse](FirestoreOptions::skew_limit) to acquire, or use the
//! [server's time](FirestoreOptions::server_time) throughout. A lease counts as live until
//! `expires_at_ms + 1000`.
//!
//! A lease counts from the read that found the key free. If a transaction of another client delays
//! the commit, the lease is shorter by that delay. A guard counts from before the request, so it never
//! relies on more than is left; a grant that arrives after its lease has expired is released.
//!
//! # Waiting
//!
//! While a caller of [`lock`](syncguard_core::Locks::lock) waits for another process, the backend and its
//! clones have a `Listen` stream on their connection, with the document of each awaited lock. Firestore
//! reports the release by any client, SyncGuard for TypeScript included. It charges a document read for
//! each awaited lock, and for each change of it during the wait. The stream ends a few seconds after the
//! last wait, and by [`close`](syncguard_core::Locks::close). Where Firestore or a proxy refuses it,
//! callers poll.
//!
//! # Dropped calls
//!
//! A request whose caller drops it runs to its end in the background, at most until its deadline. Dropping
//! it would reset its HTTP/2 stream, and servers close a connection on which many streams are reset, with
//! all calls on it.
//!
//! # TLS and credentials
//!
//! The application chooses both. The features `tls-native-roots` and `tls-webpki-roots` select the
//! trusted roots; without either, TLS trusts Google's own. Cryptography is the rustls `CryptoProvider`
//! that the application installs before it connects, or comes with the feature `default-crypto`.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod cleanup;
mod clock;
mod connect;
mod error;
mod list;
mod names;
mod options;
mod preflight;
mod record;
mod wake_ups;
mod wire;

pub use gcloud_sdk;

pub use crate::backend::FirestoreBackend;
pub use crate::names::{STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE};
pub use crate::options::{
    DEFAULT_FENCE_COLLECTION, DEFAULT_LOCK_COLLECTION, DEFAULT_REQUEST_TIMEOUT,
    DEFAULT_SKEW_WARNING, FirestoreOptions, RECOMMENDED_SKEW_LIMIT,
};
pub use crate::wire::FirestoreApi;

// Applications move these between threads, and into futures that they spawn.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<FirestoreBackend>();
    shared::<FirestoreOptions>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
