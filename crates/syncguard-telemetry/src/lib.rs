//! Telemetry of the **SyncGuard** lock: an observer of [`Locks`](syncguard_core::Locks).
//!
//! [`with_telemetry`] reports every operation to a callback, to `tracing`, to OpenTelemetry metrics, or to
//! any of them at once. [`Telemetry`] is the same observer as a handle: an application can flush its events
//! and count the dropped ones.
//!
//! ```
//! use std::sync::{Arc, mpsc};
//! use std::time::Duration;
//!
//! use syncguard_core::Locks;
//! use syncguard_memory::MemoryBackend;
//! use syncguard_telemetry::{Telemetry, TelemetryOptions};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
//! let (sender, events) = mpsc::channel();
//! let options = TelemetryOptions::new().on_event(move |event| drop(sender.send(event)));
//! let telemetry = Telemetry::new(options);
//! let locks = Locks::builder(MemoryBackend::default())
//!     .observe(Arc::new(telemetry.clone()))
//!     .build();
//!
//! let guard = locks.try_lock("report:daily").await?;
//! assert!(locks.try_lock("report:daily").await?.is_none());
//! drop(guard);
//!
//! // At shutdown: first the releases of dropped guards, then their events.
//! locks.drain(Duration::from_secs(5)).await?;
//! assert!(telemetry.flush(Duration::from_secs(5)).await);
//!
//! let types: Vec<_> = events.try_iter().map(|event| event.event_type.as_str()).collect();
//! assert_eq!(types, ["acquire", "acquire", "release"]);
//! # Ok(()) }
//! ```
//!
//! # One call, one event
//!
//! Every call of an operation in the table makes exactly one event, when it ends: it returned a result, it
//! failed, or it was [abandoned](LockEvent::abandoned) because its future was dropped. That includes
//!
//! - calls that send nothing to the store: bad arguments, and tokens that were cancelled before;
//! - each attempt of [`lock`](syncguard_core::Locks::lock);
//! - releases of dropped guards and at the end of sections;
//! - renewals of leases, as extends.
//!
//! A request that was never awaited is not a call. Background releases make no event, neither retries nor
//! those after an acquire with an unknown outcome: the metrics count their results. Preflight, purges,
//! `drain` and `close` make no event either.
//!
//! | operation | `ok` | `fail` |
//! |---|---|---|
//! | acquire | granted | [`Locked`](EventReason::Locked) |
//! | release, extend | applied | [`Expired`](EventReason::Expired), [`NotFound`](EventReason::NotFound), or no reason if the store did not know it |
//! | isLocked, lookup, list (one page) | the store replied, with any result | |
//!
//! Any of them also fails with an [error code](LockEvent::error_code), or abandoned. Contention is `fail`
//! without an error code: filter by the code to find errors.
//!
//! # Which hashes an event has
//!
//! | call | [key hash](LockEvent::key_hash) | [lock id hash](LockEvent::lock_id_hash) |
//! |---|---|---|
//! | acquire | yes | yes: each attempt makes a fresh id |
//! | release, extend by a guard or lease | yes | yes |
//! | [`release`](syncguard_core::Locks::release), [`extend`](syncguard_core::Locks::extend), lookup by id | no | yes |
//! | `is_locked`, lookup by key | yes | no |
//! | list | no | no |
//!
//! So the lock id hash identifies one lock from its acquire to its release, in any process. A call that
//! was refused before anything was sent may have neither: a bad key has no hash.
//!
//! # Raw identifiers
//!
//! Events show [display hashes](syncguard_core::hash_key). They contain raw keys and lock ids only by
//! [`include_raw`](TelemetryOptions::include_raw) or [`include_raw_if`](TelemetryOptions::include_raw_if);
//! metrics never do.
//!
//! # No effect on operations
//!
//! The callback runs on its own thread behind a bounded queue. An operation puts a record into the queue
//! without waiting; hashing, the predicate and the callback run on the thread. A callback that panics is
//! called again for the next event. A callback that is slow or blocks fills the queue; events are then
//! dropped and [counted](Telemetry::dropped_events). [`flush`](Telemetry::flush) waits for the queued
//! events. When the last clone of a [`Telemetry`] is dropped, including the clones in `Locks` and their
//! guards, the thread delivers the rest and ends; nothing waits for it.
//!
//! `tracing` subscribers and OpenTelemetry instruments run inside the operation, as both require: events
//! appear in the caller's span. Their panics are caught.
//!
//! # Cost when disabled
//!
//! Without a sink, [`with_telemetry`] returns the given `Locks`: it hashes nothing, allocates nothing,
//! reads no clock and starts no thread.
//!
//! # Features
//!
//! - `tracing`: `TelemetryOptions::tracing`.
//! - `opentelemetry`: `TelemetryOptions::metrics`, which lists the instruments. The crate then re-exports
//!   `opentelemetry`, so that the meter is of the version that the crate was built with.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

#[cfg(any(feature = "tracing", feature = "opentelemetry"))]
mod contained;
mod event;
#[cfg(feature = "opentelemetry")]
mod holdings;
#[cfg(feature = "opentelemetry")]
mod metrics;
mod options;
mod queue;
mod record;
mod telemetry;
#[cfg(feature = "tracing")]
mod trace;

#[cfg(feature = "opentelemetry")]
pub use opentelemetry;

pub use crate::event::{EventReason, EventResult, EventType, LockEvent};
pub use crate::options::{DEFAULT_QUEUE_CAPACITY, TelemetryOptions};
pub use crate::telemetry::{Telemetry, with_telemetry};

// Applications move these between threads, and into futures that they spawn.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    const fn sent<T: Send + Unpin + std::fmt::Debug>() {}
    shared::<Telemetry>();
    shared::<LockEvent>();
    shared::<EventReason>();
    shared::<EventResult>();
    shared::<EventType>();
    // Only one thread calls its callback, which need not be `Sync`.
    sent::<TelemetryOptions>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
