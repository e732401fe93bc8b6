//! What is Redis's own, on real servers. What every backend does alike is in `conformance.rs`.

mod access;
mod cluster;
mod common;
mod foreign;
mod keys;
mod outages;
mod preflight;
mod stored;
mod unknown_outcomes;
mod waiting;
