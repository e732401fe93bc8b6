//! The suite on SQLite, and what only SQLite does.

mod abandoned;
mod busy;
mod clock;
mod commit;
mod common;
mod conformance;
mod faults;
mod files;
mod given_pool;
mod harness;
mod list;
mod memory;
#[cfg(unix)]
mod other_process;
mod permissions;
mod preflight;
mod processes;
mod wake_ups;
