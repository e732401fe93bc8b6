//! The suite itself: it refuses broken stores, passes correct ones, and reports both.

mod correct;
mod harness;
mod memory;
mod mutants;
mod registry;
mod report;
mod skips;
