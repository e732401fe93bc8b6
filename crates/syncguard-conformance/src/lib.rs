//! The conformance suite of the **SyncGuard** lock: the one suite that every backend runs.
//!
//! It turns the numbered clauses of the [contract](syncguard_core::LockBackend#contract) into
//! cases that run against a real store, in real time. A backend that passes can be put under
//! [`lock()`](syncguard_core::lock()) in production; one that does not, says where.
//!
//! # Running it on a backend
//!
//! **1. Say how to connect.** A [`Harness`] gives out new clients of one store, and, if it can,
//! sets a fence counter.
//!
//! **2. Write one line.** In the backend crate's `tests/conformance.rs`:
//!
//! ```
//! # mod tests {
//! use syncguard_conformance::Harness;
//! use syncguard_core::LockError;
//! use syncguard_memory::{MemoryBackend, MemoryStore};
//!
//! #[derive(Default)]
//! struct MyHarness(MemoryStore);
//!
//! impl Harness for MyHarness {
//!     type Backend = MemoryBackend;
//!     async fn connect(&self) -> Result<MemoryBackend, LockError> {
//!         Ok(MemoryBackend::new(self.0.clone()))
//!     }
//! }
//!
//! syncguard_conformance::suite!(MyHarness::default());
//! # }
//! ```
//!
//! [`suite!`] makes one `#[test]` of every case, on a multi-threaded runtime of its own. A newer
//! version of this crate brings new cases without a change to that line. The page of a case, under
//! [`cases`](mod@cases), says what it proves.
//!
//! **3. Keep it green.** The suite is a condition of going live, not a goal: each clause stands
//! for a way in which locks have failed.
//!
//! # What it asks of the store
//!
//! - Nothing is wiped, and every case uses keys of a random namespace: the store may be shared, in
//!   use, and under several runs at once. Only the keys `.` and `..` are taken bare, for a moment.
//! - Cases run side by side. Many sleep through an expiry, so a run takes the time of the longest
//!   rather than the sum; with eight at once, well under a minute on a store nearby. [`run()`] does that; the tests of
//!   [`suite!`] run as many at once as the machine has cores, unless told:
//!   `cargo test -- --test-threads=8`.
//! - The machine may be slow. "Before the expiry" is claimed only of answers that came in time by
//!   the local monotonic clock, else the case tries again with a longer TTL. The store's clock and
//!   the client's are never compared.
//! - Between expiry and expiry + 1000 ms a backend may count a lease as live or as dead (clause
//!   E3); the suite accepts either.
//!
//! # What a skipped case means
//!
//! Not a pass. The case was not run, for a reason that it states:
//!
//! - *the backend has no fences*: its fence type is [`NoFence`](syncguard_core::NoFence). Holders
//!   of its locks cannot be told apart by a resource; its documentation should say so.
//! - *the harness cannot set a fence counter*: implement [`Harness::set_fence_counter`]. Until
//!   then nobody has shown what happens at the end of the counter.
//!
//! # Publishing a report
//!
//! [`run()`] does the same as [`suite!`] in one call and returns a [`Report`]. Its JSON is what a
//! backend publishes beside its release; its `Display` is for the terminal.
//!
//! ```
//! # mod harness { include!("../tests/support/memory.rs"); }
//! # use harness::MemoryHarness;
//! use std::sync::Arc;
//! use syncguard_conformance::{RunOptions, run};
//!
//! # #[tokio::main] async fn main() -> Result<(), serde_json::Error> {
//! let options = RunOptions::new()
//!     .with_filter("release::")
//!     .with_on_case(|case| eprintln!("{} {}", case.status, case.name));
//! let report = run(Arc::new(MemoryHarness::default()), options).await;
//! println!("{report}");
//! println!("{}", serde_json::to_string_pretty(&report)?);
//! assert!(report.is_success());
//! # Ok(()) }
//! ```
//!
//! ```json
//! {"backend": "memory", "supports_fencing": true, "time_authority": "server",
//!  "suite_version": "0.1.0", "passed": 1, "failed": 0, "skipped": 0, "unproven": [],
//!  "cases": [{"name": "release::again_it_is_not_held", "clauses": ["R2"],
//!             "status": "passed", "ms": 3}]}
//! ```
//!
//! A case that failed or was skipped has a `detail` besides. `unproven` lists the clauses that the
//! run leaves open: one of their cases failed, or all were skipped.
//!
//! # What it was tried on
//!
//! On the four stores of this workspace, which pass, and on backends that are broken on purpose,
//! each in one way. The page [`mutants`](mod@mutants) shows them all: which clause each breaks, and
//! the case that refuses it.
//!
//! # What it cannot show
//!
//! Whatever needs the store's own means: restarts, lost connections, foreign data under a key.
//! Those belong in the backend's own tests.

mod bench;
mod capture;
pub mod cases;
mod clock;
mod harness;
mod keyspace;
#[cfg(doc)]
#[doc = include_str!("mutants.md")]
pub mod mutants {}
mod outcome;
mod polling;
mod registry;
mod report;
mod run;
mod steps;
mod suite;

pub use crate::bench::Bench;
pub use crate::harness::Harness;
pub use crate::outcome::{CaseResult, Failure, Outcome};
pub use crate::registry::{CaseInfo, cases};
pub use crate::report::{CaseReport, Report, Status};
pub use crate::run::{DEFAULT_CASE_TIMEOUT, DEFAULT_CONCURRENCY, RunOptions, run};
#[doc(hidden)]
pub use crate::suite::__run_test;

// What callers hold goes from thread to thread, and into futures that do.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<CaseInfo>();
    shared::<CaseReport>();
    shared::<Failure>();
    shared::<Outcome>();
    shared::<Report>();
    shared::<RunOptions>();
    shared::<Status>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
