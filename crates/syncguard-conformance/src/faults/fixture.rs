//! [`Fixture`]: a server, and clients of it.

use syncguard_core::LockId;
use syncguard_testkit::Server as _;

use crate::faults::Target;
use crate::faults::client::Client;
use crate::faults::network::Network;
use crate::faults::steps::patiently;

/// What a case works with. A server that only this case uses stops on drop.
#[derive(Debug)]
pub struct Fixture<T: Target> {
    /// The path of the test, with which its program can run it again.
    test: &'static str,
    server: Option<T::Server>,
    port: u16,
    unique: String,
}

impl<T: Target> Fixture<T> {
    /// On a server that other tests use too. The case must neither stop nor pause it.
    pub async fn shared(test: &'static str) -> Self {
        if let Some(port) = port_of_parent() {
            return Self::at(test, None, port).await;
        }
        let shared = blocking(T::shared_port).await;
        match shared.expect("the shared server does not start") {
            Some(port) => Self::at(test, None, port).await,
            None => Self::own(test).await,
        }
    }

    /// On a store that the case changes by its clients alone.
    pub async fn local(test: &'static str) -> Self {
        Self::shared(test).await
    }

    /// On a server that only this case uses.
    pub async fn own(test: &'static str) -> Self {
        let server = blocking(T::start).await;
        let server = server.expect("the server does not start");
        let port = server.port();
        Self::at(test, Some(server), port).await
    }

    async fn at(test: &'static str, server: Option<T::Server>, port: u16) -> Self {
        patiently("the server cannot be prepared", async || {
            T::prepare(port).await
        })
        .await;
        let unique = LockId::generate().expect("no random bytes");
        Self {
            test,
            server,
            port,
            unique: unique.as_str().to_owned(),
        }
    }

    /// The server, in a case that has one of its own.
    pub(crate) fn server(&self) -> &T::Server {
        self.server.as_ref().expect("the case shares its server")
    }

    /// Another server, prepared as the first one.
    pub(crate) async fn another_server(&self) -> T::Server {
        let server = blocking(T::start).await;
        let server = server.expect("the other server does not start");
        let port = server.port();
        patiently("the other server cannot be prepared", async || {
            T::prepare(port).await
        })
        .await;
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn test(&self) -> &'static str {
        self.test
    }

    /// A network path to the server that can fail. It affects only clients that connect through it.
    pub(crate) fn network(&self) -> Network<T> {
        Network::to(self.port)
    }

    /// A key that no other case uses.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.unique)
    }

    /// A client that no fault of the network affects.
    pub(crate) async fn direct(&self) -> Client<T> {
        Client::connect(self.port).await
    }
}

/// The variable with the server's port, for a test that runs itself in another process.
pub(crate) const PORT_OF_PARENT: &str = "SYNCGUARD_FAULTS_PORT";

fn port_of_parent() -> Option<u16> {
    let port = std::env::var(PORT_OF_PARENT).ok()?;
    Some(port.parse().expect("the variable holds no port"))
}

async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let result = tokio::task::spawn_blocking(work).await;
    result.expect("the blocking task panicked")
}
