//! What the examples share, and the code of the README and the guides, compiled and run with the
//! documentation tests.
//!
//! The examples stand beside this crate's manifest: `cargo run --example quickstart`. Each ends by
//! itself, prints what it shows, and has a test.

mod connect;

pub use crate::connect::connect;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

macro_rules! guides {
    ($($name:ident: $page:literal),+ $(,)?) => {
        $(#[cfg(doctest)] #[doc = include_str!($page)] struct $name;)+
    };
}

guides! {
    Concepts: "../../docs/concepts.md",
    Errors: "../../docs/errors.md",
    Fencing: "../../docs/fencing.md",
    GettingStarted: "../../docs/getting-started.md",
    Operations: "../../docs/operations.md",
    Retry: "../../docs/retry-and-cancellation.md",
    Testing: "../../docs/testing.md",
    Ttl: "../../docs/ttl-and-auto-extension.md",
}
