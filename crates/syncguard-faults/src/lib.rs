//! One suite of cases that test a lock backend while the network or the server fails. Each case runs
//! on a real server behind a [`FaultProxy`](syncguard_testkit::FaultProxy).
//!
//! The conformance suite runs on any store, so it can neither stop a server nor break a connection.
//! This suite does both, with the means of the testkit.
//!
//! A backend implements [`Target`], which starts a server and connects to it, and writes one line:
//! `syncguard_faults::suite!(Redis);`. It gets one `#[test]` of every case.
//!
//! ```
//! # mod tests {
//! use syncguard_core::LockError;
//! use syncguard_faults::Target;
//! use syncguard_redis::RedisBackend;
//! use syncguard_testkit::RedisServer;
//!
//! struct Redis;
//!
//! impl Target for Redis {
//!     type Backend = RedisBackend;
//!     type Server = RedisServer;
//!
//!     fn start() -> anyhow::Result<RedisServer> {
//!         RedisServer::start()
//!     }
//!
//!     async fn connect(port: u16) -> Result<RedisBackend, LockError> {
//!         RedisBackend::connect(&format!("redis://127.0.0.1:{port}")).await
//!     }
//! }
//!
//! syncguard_faults::suite!(Redis);
//! # }
//! ```
//!
//! For a server that the testkit does not know, use a
//! [`CommandServer`](syncguard_testkit::CommandServer) or implement
//! [`Server`](syncguard_testkit::Server). Clients must reach the store by TCP, and its grants must
//! carry fences.
//!
//! A fault of the network affects all calls of a client. Where a case needs a fault that affects only
//! extends or only releases, a wrapper around the backend causes it. The cases use the backend through
//! [`Locks`](syncguard_core::Locks), as applications do.

#![allow(
    clippy::missing_panics_doc,
    reason = "a case panics where what it proves does not hold"
)]

pub mod cases;
mod client;
mod fixture;
mod network;
mod steps;
mod suite;
mod target;
mod watched;

pub use crate::fixture::Fixture;
#[doc(hidden)]
pub use crate::suite::__run_test;
pub use crate::target::Target;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
