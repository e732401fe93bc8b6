//! [`Clients`]: running a script through fred.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike as _;
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Value};
use syncguard_core::LockError;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::call::Call;
use crate::error::{command_error, is_noscript, no_runtime};
use crate::script::Script;

/// One connection or several, shared by the clones of a store.
#[derive(Clone)]
pub(crate) struct Clients(Arc<Shared>);

struct Shared {
    clients: Vec<Client>,
    /// How commands are sent, whatever the client's own configuration says.
    options: Options,
    /// What is behind a client that belongs to the store.
    connection: Option<Connection>,
}

/// fred's own task, which holds a client and would outlive all others. It ends with this value.
pub(crate) struct Connection(pub(crate) JoinHandle<Result<(), Error>>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Clients {
    /// `slot` is where a cluster keeps all of the store's keys.
    pub(crate) fn new(
        clients: Vec<Client>,
        connection: Option<Connection>,
        slot: Option<u16>,
        timeout: Duration,
    ) -> Self {
        // To follow a redirection counts as another attempt.
        let redirections = clients
            .iter()
            .filter(|client| client.is_clustered())
            .map(|client| client.connection_config().max_redirections)
            .max();
        let options = Options {
            // Without a connection nothing is queued: it could take a lock long after its caller
            // has gone.
            fail_fast: true,
            max_attempts: Some(1 + redirections.unwrap_or(0)),
            timeout: Some(timeout),
            cluster_hash: slot.map(ClusterHash::Custom),
            ..Options::default()
        };
        Self(Arc::new(Shared {
            clients,
            options,
            connection,
        }))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.clients.len()
    }

    pub(crate) fn are_clustered(&self) -> bool {
        self.0.clients.iter().any(Client::is_clustered)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.0.options.timeout.unwrap_or_default()
    }

    /// Runs a script, and loads it first if the server does not know it (any more).
    ///
    /// Calls with one `affinity` use one connection, so they arrive in the order in which they
    /// were sent: a release cannot overtake the acquire of its id.
    pub(crate) async fn run(
        &self,
        affinity: &str,
        script: &Script,
        keys: Vec<String>,
        arguments: impl IntoIterator<Item = Value>,
    ) -> Result<Value, LockError> {
        let client = self.client(affinity).ok_or_else(no_client)?;
        let mut call = Vec::with_capacity(keys.len() + 5);
        call.push(script.digest.clone().into());
        call.push(Value::try_from(keys.len()).map_err(|error| command_error(&error))?);
        call.extend(keys.into_iter().map(Value::from));
        call.extend(arguments);

        match self.send(client, "EVALSHA", call.clone()).await {
            // EVAL also loads the script, on the node that has to have it, with no further right
            // and no further round trip.
            Err(error) if is_noscript(&error) => {
                if let Some(digest) = call.first_mut() {
                    *digest = script.source.clone().into();
                }
                self.send(client, "EVAL", call).await
            }
            answer => answer,
        }
        .map_err(|error| command_error(&error))
    }

    /// Sends one command that belongs to no lock. In a cluster it goes to the node that has all of
    /// the store's keys.
    pub(crate) async fn ask(
        &self,
        command: &'static str,
        arguments: Vec<Value>,
    ) -> Result<Value, Error> {
        let client = self.client("").ok_or_else(empty_pool)?;
        self.send(client, command, arguments).await
    }

    /// Sends one command. Once begun, it goes on also after its caller has gone: fred knows that a
    /// command need not be sent any more by its timeout alone, and only while the call is polled.
    async fn send(
        &self,
        client: &Client,
        command: &'static str,
        arguments: Vec<Value>,
    ) -> Result<Value, Error> {
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        let client = client.with_options(&self.0.options);
        let command = CustomCommand::new_static(command, ClusterHash::FirstKey, false);
        let call = async move { client.custom(command, arguments).await };
        Call::new(runtime, call).await
    }

    fn client(&self, affinity: &str) -> Option<&Client> {
        let clients = &self.0.clients;
        let mixed = affinity.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        clients.get(mixed.checked_rem(clients.len())?)
    }

    /// Ends a client that belongs to the store, after what it is at.
    pub(crate) async fn close(&self) {
        let Some(connection) = &self.0.connection else {
            return;
        };
        for client in &self.0.clients {
            let _ = tokio::time::timeout(self.timeout(), client.quit()).await;
        }
        connection.0.abort();
    }
}

fn no_client() -> LockError {
    command_error(&empty_pool())
}

fn empty_pool() -> Error {
    Error::new(ErrorKind::Config, "The pool has no clients.")
}
