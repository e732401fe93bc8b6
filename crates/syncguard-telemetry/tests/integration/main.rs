//! Events, traces and metrics, and the suite with all of them on.

mod common;
mod conformance;
mod events;
mod isolation;
mod metrics;
mod privacy;
