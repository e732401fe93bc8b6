//! The bench runs on every store, and writes its tables.

mod quick;
mod tables;
