//! Telemetry of the **SyncGuard** lock.
//!
//! [`with_telemetry`] wraps a backend in a decorator that is a backend itself and tells of every
//! call: to a callback, to `tracing`, to OpenTelemetry metrics, or to any of them at once.
//!
//! ```
//! use std::sync::mpsc;
//! use std::time::Duration;
//!
//! use syncguard_core::{ManagedBackend as _, acquire};
//! use syncguard_memory::MemoryBackend;
//! use syncguard_telemetry::{EventReason, EventResult, TelemetryOptions, with_telemetry};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
//! let (events, seen) = mpsc::channel();
//! let backend = with_telemetry(
//!     MemoryBackend::default(),
//!     TelemetryOptions::new().with_on_event(move |event| drop(events.send(event))),
//! );
//!
//! let guard = acquire(&backend, "report:daily", Duration::from_secs(60)).await?;
//! assert!(acquire(&backend, "report:daily", Duration::from_secs(60)).await?.is_none());
//! drop(guard);
//!
//! // At shutdown: first the releases of dropped guards, then their events.
//! backend.drain(Duration::from_secs(5)).await?;
//! assert!(backend.flush(Duration::from_secs(5)).await);
//!
//! let told: Vec<_> = seen.try_iter().map(|event| event.event_type.as_str()).collect();
//! assert_eq!(told, ["acquire", "acquire", "release"]);
//! # Ok(()) }
//! ```
//!
//! # One call, one event
//!
//! Every call that reaches the decorator makes exactly one event, when it is over: answered,
//! failed, or [abandoned](LockEvent::abandoned) because its future was dropped. That includes the
//! releases of dropped guards and the renewals of leases, since guards call the backend that they
//! were made over. A future that was never polled is no call. An argument that does not parse is
//! refused before there is one.
//!
//! What happens inside the wrapped backend makes no event: above all the releases by which an
//! abandoned acquire is given back. The metrics count them, and time the waits of
//! [`lock()`](syncguard_core::lock()).
//!
//! | operation | `ok` | `fail` |
//! |---|---|---|
//! | acquire | granted | [`Locked`](EventReason::Locked) |
//! | release, extend | applied | [`Expired`](EventReason::Expired), [`NotFound`](EventReason::NotFound), or no reason where the store could not tell |
//! | isLocked, lookup | answered, whatever the answer | |
//!
//! Any of them also fails with an [error code](LockEvent::error_code), or abandoned.
//!
//! # Nothing raw
//!
//! Events show [display hashes](syncguard_core::hash_key). Raw keys and lock ids are in them only
//! by [`with_include_raw`](TelemetryOptions::with_include_raw) or
//! [`with_include_raw_if`](TelemetryOptions::with_include_raw_if), and in metrics never.
//!
//! # No influence
//!
//! The callback has a thread of its own behind a bounded queue. An operation leaves its record
//! there without waiting; hashing, the predicate and the callback run on the thread. A callback
//! that panics is called again for the next event; one that is slow or blocked fills the queue,
//! and from then on events are dropped and [counted](Telemetry::dropped_events).
//! [`flush`](Telemetry::flush) waits for what is queued. When the last clone of the decorator is
//! gone, the thread delivers the rest and ends; nothing waits for it.
//!
//! `tracing` subscribers and OpenTelemetry instruments are called inside the operation, which is
//! how both are made: events appear in the caller's span. Panics of theirs are contained.
//!
//! # Off is free
//!
//! Without a sink the decorator passes calls on: nothing is hashed, nothing is allocated, no clock
//! is read, no thread is started.
//!
//! # Features
//!
//! - `tracing`: `TelemetryOptions::with_tracing`.
//! - `opentelemetry`: `TelemetryOptions::with_metrics`, which lists the instruments.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod backend;
mod call;
mod event;
#[cfg(feature = "opentelemetry")]
mod holdings;
mod hub;
#[cfg(feature = "opentelemetry")]
mod metrics;
mod options;
mod queue;
#[cfg(feature = "tracing")]
mod trace;

pub use crate::backend::{Telemetry, with_telemetry};
pub use crate::event::{EventReason, EventResult, EventType, LockEvent};
pub use crate::options::{DEFAULT_QUEUE_CAPACITY, TelemetryOptions};

// What callers hold goes from thread to thread, and into futures that do.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    const fn sent<T: Send + Unpin + std::fmt::Debug>() {}
    shared::<Telemetry<syncguard_core::AnyBackend>>();
    shared::<LockEvent>();
    shared::<EventReason>();
    shared::<EventResult>();
    shared::<EventType>();
    // Its callback is called from one thread, and need not be `Sync`.
    sent::<TelemetryOptions>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
