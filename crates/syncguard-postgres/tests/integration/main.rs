//! The suites on PostgreSQL, and what only PostgreSQL does.

mod blocked;
mod common;
mod concurrency;
mod conformance;
mod connections;
mod credentials;
mod deployed;
mod faults;
mod free_in;
mod given_pool;
mod harness;
mod keys;
mod list;
mod mixed_fleet;
mod outages;
mod ownership;
mod pooler;
mod preflight;
mod purge;
mod rows;
mod storage;
mod waits;
mod wake_ups;
mod wire;
