//! What only Redis does, on real servers. What every backend does alike is in `conformance.rs`.

#[path = "../support/redis.rs"]
mod harness;

mod access;
mod cluster;
mod common;
mod deadlines;
mod deployed;
mod failover;
mod foreign;
mod free_in;
mod gathered;
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
mod waiting;
mod wake_ups;
