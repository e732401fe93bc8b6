//! Cases that test a backend while the network or the server fails (feature `faults`).
//!
//! The conformance suite runs on any store, so it can neither stop a server nor break a connection. These
//! cases do both, each on a real server behind a [`FaultProxy`](syncguard_testkit::FaultProxy): lost replies,
//! servers that hang, renewals that fail, runtimes that shut down, holders that were paused.
//!
//! A backend implements [`Target`], which starts a server and connects to it, and writes one line:
//! [`fault_suite!`](crate::fault_suite). That makes one `#[test]` of every case.
//!
//! ```
//! # mod tests {
//! # mod my_store {
//! #     pub type MyBackend = syncguard_memory::MemoryBackend;
//! #     pub async fn connect(_: u16) -> Result<MyBackend, syncguard_core::LockError> {
//! #         Ok(MyBackend::default())
//! #     }
//! # }
//! use std::net::TcpStream;
//! use std::time::Duration;
//!
//! use my_store::MyBackend;
//! use syncguard_conformance::faults::Target;
//! use syncguard_core::LockError;
//! use syncguard_testkit::CommandServer;
//!
//! struct MyStore;
//!
//! impl Target for MyStore {
//!     type Backend = MyBackend;
//!     type Server = CommandServer;
//!
//!     fn start() -> anyhow::Result<CommandServer> {
//!         CommandServer::start(
//!             "my-server",
//!             |port, folder| vec![format!("--port={port}").into(), "--dir".into(), folder.into()],
//!             |port| TcpStream::connect(("127.0.0.1", port)).is_ok(),
//!             Duration::from_secs(20),
//!         )
//!     }
//!
//!     async fn connect(port: u16) -> Result<MyBackend, LockError> {
//!         my_store::connect(port).await
//!     }
//! }
//!
//! syncguard_conformance::fault_suite!(MyStore);
//! # }
//! ```
//!
//! [`Target`] has two more methods, with defaults. `shared_port` lets cases share a server with other tests.
//! `prepare` creates what must exist before clients connect, such as tables. If a
//! [`CommandServer`](syncguard_testkit::CommandServer) cannot run your server, implement
//! [`Server`](syncguard_testkit::Server). Clients must reach the store by TCP, and its grants must carry
//! fences.
//!
//! A store without a server, such as a file, runs the cases that break neither network nor server:
//! [`local_fault_suite!`](crate::local_fault_suite).
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

pub use self::fixture::Fixture;
#[doc(hidden)]
pub use self::suite::__run_test;
pub use self::target::Target;
