//! The suites on Redis, and what only Redis does.

mod access;
mod cluster;
mod common;
mod conformance;
mod deadlines;
mod deployed;
mod failover;
mod faults;
mod foreign;
mod free_in;
mod gathered;
mod harness;
mod keys;
mod list;
mod network;
mod outages;
mod peers;
mod preflight;
mod stored;
mod storm;
mod tls;
mod unknown_outcomes;
mod wake_ups;
