//! The conformance suite of the **SyncGuard** lock.

mod bench;
pub mod cases;
mod harness;
mod outcome;
mod registry;
mod report;
mod run;
#[allow(dead_code, reason = "steps of cases to come")]
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
