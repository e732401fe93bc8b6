//! The checker on histories with and without a fault, and the workers that record them.

mod bad;
mod good;
mod simulated;
mod support;
mod worker;
