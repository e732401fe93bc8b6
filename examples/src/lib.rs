//! Holds the README's code, so that it is compiled and run with the documentation tests.
//!
//! The examples stand beside this crate's manifest: `cargo run --example quickstart`.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
