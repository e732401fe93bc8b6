//! [`Target`]: a backend and its server, as the suite needs them.

use std::future::Future;

use anyhow::Result;
use syncguard_core::backend::LockBackend;
use syncguard_core::{Fence, LockError};
use syncguard_testkit::Server;

/// Starts a backend's server and connects clients to it.
pub trait Target: 'static {
    /// The backend. The cases build [`Locks`](syncguard_core::Locks) over it.
    type Backend: LockBackend<Fence = Fence>;
    /// The server.
    type Server: Server;

    /// Starts a server for one case alone. Blocks.
    ///
    /// # Errors
    /// If the server does not start.
    fn start() -> Result<Self::Server>;

    /// The loopback port of a server that cases and other tests share, and that nobody stops. `None`
    /// if that server is elsewhere, or needs other credentials than [`start`](Self::start)'s; then
    /// each case starts a server of its own. Default: `None`. Blocks.
    ///
    /// # Errors
    /// If there is no such server and none can be started.
    fn shared_port() -> Result<Option<u16>> {
        Ok(None)
    }

    /// Prepares the server before clients connect: creates tables, or warms up a cold server.
    /// Default: nothing.
    #[must_use]
    fn prepare(port: u16) -> impl Future<Output = Result<(), LockError>> + Send {
        let _ = port;
        std::future::ready(Ok(()))
    }

    /// Connects a new client to a loopback port, where the server or a proxy in front of it answers.
    fn connect(port: u16) -> impl Future<Output = Result<Self::Backend, LockError>> + Send;
}
