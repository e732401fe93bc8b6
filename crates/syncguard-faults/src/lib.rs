//! What holds when the network or the server fails, as one suite of cases that each backend of the
//! workspace runs on a real server behind a [`FaultProxy`](syncguard_testkit::FaultProxy).
//!
//! It stands beside the conformance suite, which third parties run on any store and which
//! therefore cannot stop a server or break a connection. The testkit has the means, here are the
//! cases.
//!
//! A backend says how its server is started and reached, by a [`Target`], and writes one line,
//! `syncguard_faults::suite!(Redis);`.
//!
//! Faults are the network's own wherever they can be. Those that have to strike some calls of a
//! client and spare others are made by [`Watched`], around the real store.

#![allow(
    clippy::missing_panics_doc,
    reason = "a case panics where what it proves does not hold"
)]

pub mod cases;
mod fixture;
mod network;
mod steps;
mod suite;
mod target;
mod watched;

pub use crate::fixture::{Client, Fixture};
#[doc(hidden)]
pub use crate::suite::__run_test;
pub use crate::target::Target;
pub use crate::watched::{Answer, Call, ExtendFault, Watched};
