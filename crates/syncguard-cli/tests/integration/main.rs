//! The command as its users start it: real processes, on SQLite and on Redis.

#![cfg(all(
    target_os = "linux",
    feature = "firestore",
    feature = "postgres",
    feature = "redis"
))]

mod common;
mod contention;
mod doctor;
mod exit_codes;
mod lost;
mod operations;
mod recipes;
mod signals;
mod terminal;
mod upkeep;
mod waiting;
