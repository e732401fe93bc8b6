//! The suites on the Firestore emulator, and what only Firestore does.

mod clocks;
mod common;
mod conformance;
mod connections;
mod deadlines;
mod documents;
mod faults;
mod free_in;
mod harness;
mod list;
mod outages;
mod outcomes;
mod preflight;
mod purge;
mod transactions;
mod wake_ups;
