//! What holds when the network or the server fails, as one suite of cases that a backend runs on a
//! real server behind a [`FaultProxy`](syncguard_testkit::FaultProxy).
//!
//! It stands beside the conformance suite, which runs on any store and therefore cannot stop a
//! server or break a connection. The testkit has the means, here are the cases.
//!
//! A backend says how its server is started and reached, by a [`Target`], and writes one line,
//! `syncguard_faults::suite!(Redis);`. A server that the testkit does not know is a
//! [`CommandServer`](syncguard_testkit::CommandServer), or implements
//! [`Server`](syncguard_testkit::Server). The store has to be reached by TCP and to give fences.
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

// What callers hold goes from thread to thread, and into futures that do.
const _: () = {
    const fn shared<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    shared::<Answer>();
    shared::<Call>();
    shared::<ExtendFault>();
    shared::<Watched<()>>();
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
