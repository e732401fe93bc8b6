//! [`Target`]: a backend and its server, as the suite needs them.

use std::future::Future;

use anyhow::Result;
use syncguard_core::{Fence, LockBackend, LockError};
use syncguard_testkit::Server;

/// How a backend's server is started, and how clients reach it.
pub trait Target: 'static {
    /// The bare store: policies are the cases' own.
    type Store: LockBackend<Fence = Fence>;
    /// The server.
    type Server: Server;

    /// Starts a server that is nobody else's. Blocks.
    ///
    /// # Errors
    /// If it does not start.
    fn start() -> Result<Self::Server>;

    /// The loopback port of a server that is shared with other tests, which nobody stops; `None` if
    /// that server is elsewhere, or takes other credentials than [`start`](Self::start)'s. Then, and
    /// by default, each case has a server of its own. Blocks.
    ///
    /// # Errors
    /// If there is none and none can be started.
    fn shared_port() -> Result<Option<u16>> {
        Ok(None)
    }

    /// Makes ready what must exist before clients come, and has a cold server warm up. By default
    /// nothing.
    #[must_use]
    fn prepare(port: u16) -> impl Future<Output = Result<(), LockError>> + Send {
        let _ = port;
        std::future::ready(Ok(()))
    }

    /// Connects a new client to the server, or to a proxy before it, at a loopback port.
    fn connect(port: u16) -> impl Future<Output = Result<Self::Store, LockError>> + Send;
}
