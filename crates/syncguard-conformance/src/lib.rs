//! The conformance suite of the **SyncGuard** lock.

mod bench;
mod capture;
pub mod cases;
mod clock;
mod harness;
mod outcome;
mod registry;
mod report;
mod run;

mod polling;
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
