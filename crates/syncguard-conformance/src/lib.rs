//! The conformance suite of the **SyncGuard** lock. Every backend runs it.
//!
//! It turns the numbered clauses of the [contract](syncguard_core::backend::LockBackend#contract)
//! into cases that run against a real store, in real time. Clauses about one call drive the
//! [`LockBackend`](syncguard_core::backend::LockBackend) directly, with lock ids of the case's choice
//! and under the suite's own deadline; clauses about policy go through
//! [`Locks`](syncguard_core::Locks) over the same backend.
//!
//! # Running it on a backend
//!
//! **1. Say how to connect.** A [`Harness`] connects new clients to one store. If it can, it also sets a fence
//! counter, counts what is stored, and says how many locks the store must hold at once.
//!
//! **2. Write one line.** In the backend crate's `tests/conformance.rs`:
//!
//! ```
//! # mod tests {
//! use syncguard_conformance::Harness;
//! use syncguard_core::LockError;
//! use syncguard_memory::MemoryBackend;
//!
//! #[derive(Default)]
//! struct MyHarness(MemoryBackend);
//!
//! impl Harness for MyHarness {
//!     type Backend = MemoryBackend;
//!     async fn connect(&self) -> Result<MemoryBackend, LockError> {
//!         Ok(self.0.clone())
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
//! **3. Keep it green.** Each clause stands for a way in which locks have failed. Do not go live
//! before all cases pass.
//!
//! # What it asks of the store
//!
//! - The suite deletes nothing but, by `purge_expired`, locks that expired long ago. Every case uses
//!   keys of a random namespace: the store may be shared, in use, and under several runs at once. Only
//!   the keys `.` and `..` are used as they are, for a moment.
//! - Cases run concurrently. Many sleep through an expiry, so a run takes the time of the longest
//!   rather than the sum: with eight at once, well under a minute on a store nearby. [`run()`] does
//!   that. By default the tests of [`suite!`] run as many at once as the machine has cores:
//!   `cargo test -- --test-threads=8` changes that.
//! - The machine may be slow. A case claims "before the expiry" only of answers that arrived before it
//!   by the local monotonic clock, else it tries again with a longer TTL. It never compares the store's
//!   clock with the client's.
//! - Between expiry and expiry + 1000 ms a backend may count a lease as live or as dead (clause
//!   E3); the suite accepts either.
//!
//! # What a skipped case means
//!
//! A skipped case has not passed. It did not run or could not decide, for the reason that it states:
//!
//! - *the backend has no fences*: its fence type is [`NoFence`](syncguard_core::backend::NoFence). A
//!   resource cannot tell its holders apart; its documentation should say so.
//! - *the harness cannot set a fence counter*: implement [`Harness::set_fence_counter`]. Until then
//!   nothing shows what happens at the end of the counter.
//! - *the harness cannot read the store*: implement [`Harness::stored`]. Until then nothing shows whether the
//!   store grows: no answer shows an orphaned entry.
//! - *the backend cannot list its locks*: it does not implement
//!   [`list`](syncguard_core::backend::LockBackend::list).
//! - *the backend gives no wake-ups*, or does not say when a key is free: callers poll it.
//! - *the store takes too long*: its answers do not come within the second after an expiry, or within the last
//!   milliseconds of a lease. Run it on a store that is nearer, or on a machine that is less busy.
//! - *other calls did not end while a call was halted*: a call of the backend keeps the others out while it runs, the
//!   store takes a second to answer, or a pooler has too few connections. If all clients share one connection, implement
//!   [`Harness::one_call_at_a_time`].
//! - *the expired locks were gone before the purge*, or not after it: other users of the store purge it all the time, or
//!   leave so many expired locks that the purge did not reach its own; or the harness cannot read the store.
//!
//! The tests of [`suite!`] report it on stderr, even if the runner captures output, and pass. Set
//! `SYNCGUARD_CONFORMANCE_SKIPS=deny` to make them fail: if a backend must have every feature, and before a
//! release. Set `SYNCGUARD_CONFORMANCE_SKIPPED` to the path of a file to have them listed there: cargo-nextest hides what
//! a test that passes says.
//!
//! # Publishing a report
//!
//! [`run()`] does the same as [`suite!`] in one call and returns a [`Report`]. Publish its JSON beside a
//! backend's release; its `Display` is for the terminal.
//!
//! ```
//! # mod harness { include!("../tests/integration/harness.rs"); }
//! # use harness::MemoryHarness;
//! use std::sync::Arc;
//! use syncguard_conformance::{RunOptions, run};
//!
//! # #[tokio::main] async fn main() -> Result<(), serde_json::Error> {
//! let options = RunOptions::new()
//!     .filter("release::")
//!     .on_case(|case| eprintln!("{} {}", case.status, case.name));
//! let report = run(Arc::new(MemoryHarness::default()), options).await;
//! println!("{report}");
//! println!("{}", serde_json::to_string_pretty(&report)?);
//! assert!(report.is_success());
//! # Ok(()) }
//! ```
//!
//! ```json
//! {"backend": "memory", "supports_fencing": true, "time_authority": "server",
//!  "suite_version": "0.1.0", "passed": 1, "failed": 0, "skipped": 0,
//!  "proven": ["R2"], "unproven": [], "causes": [],
//!  "mutants": {"known": 376, "caught": 2, "unseen": []},
//!  "cases": [{"name": "release::again_it_is_not_held", "clauses": ["R2"],
//!             "status": "passed", "ms": 3}]}
//! ```
//!
//! A case that failed or was skipped also has a `detail`, and a skipped one lists in `leaves_open` the known
//! faults that it would have detected. One broken clause fails many cases: `causes`
//! groups them by the clause that explains them best, likeliest first. `unproven` lists the clauses that
//! the run does not prove: one of their cases failed, or all were skipped. `mutants` is the strength of the
//! run: of the [faults](mod@mutants) that this version is known to detect, it `caught` those whose case
//! passed; `unseen` names those that only a skipped case would have detected.
//!
//! # What it was tested on
//!
//! The suite runs on the stores of this workspace, which pass, and on backends that are broken on purpose,
//! each in one way. The page [`mutants`](mod@mutants) lists them: which clause each breaks, and which case
//! fails.
//!
//! # What it cannot show
//!
//! What needs access to the store itself. The feature `faults` adds cases for what a broken network and a server
//! that hangs do: see the module `faults`. Restarts and foreign data under a key belong in the backend's own
//! tests.

mod bench;
mod capture;
mod case_report;
pub mod cases;
mod client;
mod clock;
mod diagnosis;
mod erased;
#[cfg(feature = "faults")]
pub mod faults;
mod harness;
mod keyspace;
mod known;
mod moment_of_death;
#[cfg(doc)]
#[doc = include_str!("mutants.md")]
pub mod mutants {}
mod outcome;
mod overdue;
mod pages;
mod polling;
mod purge_race;
mod reads;
mod registry;
mod report;
mod run;
mod steps;
mod suite;
mod view;
mod watching;

pub use crate::bench::Bench;
pub use crate::case_report::{CaseReport, Status};
pub use crate::client::Client;
pub use crate::diagnosis::Cause;
pub use crate::harness::{Harness, Stored};
pub use crate::known::Mutants;
pub use crate::outcome::{CaseResult, Failure, Outcome};
pub use crate::registry::{CaseInfo, cases};
pub use crate::report::Report;
pub use crate::run::{DEFAULT_CASE_TIMEOUT, DEFAULT_CONCURRENCY, RunOptions, run};
#[doc(hidden)]
pub use crate::suite::__run_test;

// Applications move these between threads, and into futures that they spawn.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<CaseInfo>();
    shared::<CaseReport>();
    shared::<Cause>();
    shared::<Failure>();
    shared::<Mutants>();
    shared::<Outcome>();
    shared::<Report>();
    shared::<RunOptions>();
    shared::<Status>();
    shared::<Stored>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
