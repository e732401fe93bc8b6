//! [`Fixture`]: a server, and clients of it.

use syncguard_core::{LockId, Managed, Policy};
use syncguard_testkit::Server as _;

use crate::network::Network;
use crate::{Target, Watched};

/// What clients of the suite are.
pub type Client<T> = Managed<Watched<<T as Target>::Store>>;

/// What a case works with. A server of its own ends with it.
#[derive(Debug)]
pub struct Fixture<T: Target> {
    /// The path of the test, by which its program can be told to run it again.
    test: &'static str,
    server: Option<T::Server>,
    port: u16,
    unique: String,
}

impl<T: Target> Fixture<T> {
    /// On a server that others use too. It may be neither stopped nor paused.
    pub async fn shared(test: &'static str) -> Self {
        if let Some(port) = port_of_parent() {
            return Self::at(test, None, port).await;
        }
        let shared = blocking(T::shared_port).await.expect("a shared server");
        match shared {
            Some(port) => Self::at(test, None, port).await,
            None => Self::own(test).await,
        }
    }

    /// On a server of its own.
    pub async fn own(test: &'static str) -> Self {
        let server = blocking(T::start).await.expect("a server");
        let port = server.port();
        Self::at(test, Some(server), port).await
    }

    async fn at(test: &'static str, server: Option<T::Server>, port: u16) -> Self {
        T::prepare(port).await.expect("a server that answers");
        let unique = LockId::generate().expect("random bytes");
        Self {
            test,
            server,
            port,
            unique: unique.as_str().to_owned(),
        }
    }

    /// The server, in cases that have one of their own.
    pub(crate) fn server(&self) -> &T::Server {
        self.server.as_ref().expect("a case with its own server")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn test(&self) -> &'static str {
        self.test
    }

    /// A way to the server that can fail, and that no other client takes.
    pub(crate) fn network(&self) -> Network<T> {
        Network::to(self.port)
    }

    /// A key that no other case uses.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.unique)
    }

    /// A client that no fault of the network meets.
    pub(crate) async fn direct(&self) -> Client<T> {
        client::<T>(self.port, Policy::new()).await
    }
}

/// Where the server answers, in a test's program that is run again by its test.
pub(crate) const PORT_OF_PARENT: &str = "SYNCGUARD_FAULTS_PORT";

fn port_of_parent() -> Option<u16> {
    let port = std::env::var(PORT_OF_PARENT).ok()?;
    Some(port.parse().expect("a port"))
}

/// A client at a port, its calls watched.
pub(crate) async fn client<T: Target>(port: u16, policy: Policy) -> Client<T> {
    let store = Box::pin(T::connect(port)).await.expect("a connection");
    Managed::with_policy(Watched::new(store), policy)
}

async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    tokio::task::spawn_blocking(work).await.expect("it runs")
}
