//! Lock calls under faults: workers that record them, and the checker of their history.
//!
//! A [`History`] holds every call that independent clients made, with its invocation and return on
//! one monotonic clock, and its outcome with the store's own times. [`check`] decides, key by key,
//! whether a *legal* history explains what the clients saw: an order of the calls that agrees with
//! real time and in which
//!
//! - a key is granted only when no other lease on it is live, by the store's times; a lease may end
//!   anywhere in the tolerance that follows its expiry, and stays ended;
//! - only the id that holds a lock releases and extends it, and an extension brings nothing back;
//! - fences strictly increase from grant to grant;
//! - every lookup shows what is held;
//! - a call of unknown outcome was applied at any time after it was made, or never.
//!
//! Where there is none, it gives the smallest set of calls, within the smallest span of time, that
//! has no explanation either: see [`Violation`].
//!
//! ```
//! use syncguard_chaos::{Call, History, Invocation, Response, check};
//!
//! let granted = |client, invoked_us, fence| Call {
//!     client,
//!     invoked_us,
//!     returned_us: Some(invoked_us + 900),
//!     key: "job".into(),
//!     invocation: Invocation::Acquire { id: format!("id-{client}"), ttl_ms: 1_000 },
//!     response: Response::Granted { fence, expires_at_ms: invoked_us / 1_000 + 1_000 },
//! };
//! let history = History { calls: vec![granted(1, 5_000, 1), granted(2, 9_000, 2)], ..History::default() };
//! let violations = check(&history);
//! assert_eq!(violations.len(), 1);
//! println!("{}", violations[0]);
//! ```

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod checker;
mod clock;
mod facts;
mod history;
mod model;
mod mutant;
mod reason;
mod record;
mod recording;
mod rng;
mod schedule;
mod search;
mod shrink;
mod timeline;
mod worker;

pub use crate::checker::{Violation, check, check_ended};
pub use crate::clock::{now_us, wall_clock_offset_us};
pub use crate::history::{Call, History, Invocation, Response};
pub use crate::mutant::{Broken, Mutant};
pub use crate::record::{Recorder, read_calls};
pub use crate::recording::seen;
pub use crate::rng::Rng;
pub use crate::schedule::{Fault, Strike, schedule};
pub use crate::worker::{Work, work};

// Applications move these between threads, and into futures that they spawn.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<Call>();
    shared::<Fault>();
    shared::<History>();
    shared::<Mutant>();
    shared::<Invocation>();
    shared::<Response>();
    shared::<Recorder>();
    shared::<Rng>();
    shared::<Strike>();
    shared::<Violation>();
    shared::<Work>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
