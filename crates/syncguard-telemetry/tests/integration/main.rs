//! Events, traces and metrics.

mod common;
mod events;
mod isolation;
mod metrics;
mod privacy;
