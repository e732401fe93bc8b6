//! The core as its users see it, on the memory backend.

mod auto_extend;
mod common;
mod guard;
mod identifiers;
mod line;
mod list;
mod lock;
mod observer;
mod preflight;
mod properties;
mod reclaim;
mod spawn;
mod types;
mod vectors;
