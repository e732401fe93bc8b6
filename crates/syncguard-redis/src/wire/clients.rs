//! [`Clients`]: sends commands and scripts through fred.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::ClientLike as _;
use fred::types::config::{Config, Options};
use fred::types::{ClusterHash, CustomCommand, RespVersion, Value};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use syncguard_core::LockError;
use syncguard_core::backend::Throttle;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::error::{CommandError, still_in_flight};
use crate::wire::connection::{Connection, open};
use crate::wire::gather::{Admission, Batch, CALLS_IN_FLIGHT, Gate, Reply, ScriptCall, Sender};
use crate::wire::keep_alive::keep_alive;
use crate::wire::spawn_on_drop::SpawnOnDrop;

/// How long a call may wait for another connection after the wrong server refused it.
const LONGEST_DEPARTURE: Duration = Duration::from_secs(1);
/// The shortest time between two such reconnections.
const DEPARTURE_INTERVAL: Duration = Duration::from_secs(1);

/// One connection or several, shared by the clones of a backend.
#[derive(Clone)]
pub(crate) struct Clients(Arc<Shared>);

struct Shared {
    links: Vec<Link>,
    timeout: Duration,
    /// How commands are sent, regardless of the client's configuration.
    options: Options,
    /// The connection of a client that the backend itself made.
    connection: Option<Connection>,
    /// The runtime that it was made in, which it needs.
    home: Option<Handle>,
    /// Watches that connection.
    watching: Option<Watching>,
    /// Reconnections that leave a server that turned out to be the wrong one.
    departures: Throttle,
    /// Calls in flight. After it is closed, no call can start.
    in_flight: TaskTracker,
}

/// A connection and what waits for it.
struct Link {
    client: Client,
    gate: Arc<Gate>,
}

/// The task that watches a connection. It ends with this value.
struct Watching(JoinHandle<()>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Clients {
    /// `slot` is where a cluster keeps all of the backend's keys.
    pub(crate) fn new(
        clients: Vec<Client>,
        connection: Option<Connection>,
        slot: Option<u16>,
        timeout: Duration,
    ) -> Self {
        // fred counts a redirection as another attempt.
        let redirections = clients
            .iter()
            .filter(|client| client.is_clustered())
            .map(|client| client.connection_config().max_redirections)
            .max();
        let options = Options {
            // Without a connection, fail at once: a queued acquire could acquire a lock long after its
            // caller has left.
            fail_fast: true,
            max_attempts: Some(1 + redirections.unwrap_or(0)),
            cluster_hash: slot.map(ClusterHash::Custom),
            ..Options::default()
        };
        let watching = connection.as_ref().and(clients.first()).map(|client| {
            Watching(tokio::spawn(keep_alive(
                client.clone(),
                options.clone(),
                timeout,
            )))
        });
        let link = |client| Link {
            client,
            gate: Arc::default(),
        };
        Self(Arc::new(Shared {
            links: clients.into_iter().map(link).collect(),
            timeout,
            options,
            home: connection.as_ref().and(Handle::try_current().ok()),
            connection,
            watching,
            departures: Throttle::new(DEPARTURE_INTERVAL),
            in_flight: TaskTracker::new(),
        }))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.links.len()
    }

    pub(crate) fn are_clustered(&self) -> bool {
        self.0.links.iter().any(|link| link.client.is_clustered())
    }

    /// Whether the application passed the client in.
    pub(crate) fn are_given(&self) -> bool {
        self.0.connection.is_none()
    }

    /// The deadline of a command that nobody waits for.
    pub(crate) fn own_deadline(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.0.timeout)
            .unwrap_or(now + Duration::from_secs(60))
    }

    /// Runs a script, and loads it first if the server does not have it.
    ///
    /// Calls with the same `affinity` use the same connection and arrive in the order in which they were
    /// sent. So a release cannot overtake the acquire of its id.
    pub(crate) async fn run(&self, affinity: &str, call: ScriptCall) -> Result<Value, LockError> {
        let writes = call.script.writes;
        let reply = self.evaluate(affinity, call).await;
        let reply = self.fairly(reply).await;
        reply.map_err(|error| match writes {
            true => error.of_write(),
            false => error.of_read(),
        })
    }

    async fn evaluate(&self, affinity: &str, call: ScriptCall) -> Reply {
        let _in_flight = self.admit()?;
        let index = self.index(affinity)?;
        let link = self.link(index)?;
        if call.script.part.is_none() {
            return self.send_script(&link.client, call).await;
        }
        match link.gate.admit(call) {
            Admission::Direct(call, _direct) => self.send_script(&link.client, call).await,
            Admission::Gathered { pending, sender } => {
                if let Some(sender) = sender {
                    let runtime = self.driving_runtime()?;
                    drop(runtime.spawn(self.clone().send_gathered(index, sender)));
                }
                pending.reply().await
            }
        }
    }

    /// The runtime of senders. A caller's runtime would not do: a sender would stop while no thread runs
    /// that runtime.
    fn driving_runtime(&self) -> Result<Handle, CommandError> {
        match &self.0.home {
            Some(home) => Ok(home.clone()),
            None => Handle::try_current().map_err(|_| CommandError::NO_RUNTIME),
        }
    }

    /// Sends the operations that wait at a gate, until there are none.
    async fn send_gathered(self, index: usize, mut sender: Sender) {
        let Ok(link) = self.link(index) else {
            return;
        };
        // Sent in the order in which they are pushed.
        let mut calls = FuturesUnordered::new();
        loop {
            // A reply wakes several callers: their next operations can share a call, too.
            tokio::task::yield_now().await;
            while calls.len() < CALLS_IN_FLIGHT
                && let Some(batch) = sender.next(calls.len())
            {
                calls.push(self.send_batch(&link.client, batch));
            }
            if sender.is_done() {
                return;
            }
            tokio::select! {
                _ = calls.next() => {}
                () = sender.arrival(), if calls.len() < CALLS_IN_FLIGHT => {}
            }
        }
    }

    async fn send_batch(&self, client: &Client, mut batch: Batch) {
        let Some(deadline) = batch.last_deadline() else {
            return;
        };
        let values = batch.values(|script| script.digest.clone());
        let mut reply = self.send(client, "EVALSHA", values, deadline).await;
        if reply.as_ref().is_err_and(CommandError::is_noscript) {
            // By now the release of a dropped caller may be ahead.
            batch.keep_awaited();
            let Some(deadline) = batch.last_deadline() else {
                return;
            };
            let values = batch.values(|script| script.source.clone());
            reply = self.send(client, "EVAL", values, deadline).await;
        }
        let replies = batch.split(reply);
        // The call succeeds even if an operation in it fails.
        if let Some(deadline) = batch.first_deadline() {
            for reply in &replies {
                self.leave_if_wrong(client, reply, deadline).await;
            }
        }
        batch.answer(replies);
    }

    async fn send_script(&self, client: &Client, call: ScriptCall) -> Reply {
        let deadline = call.deadline;
        let values = call.values.clone();
        let mut reply = self.send(client, "EVALSHA", values, deadline).await;
        if reply.as_ref().is_err_and(CommandError::is_noscript) {
            // EVAL also loads the script, on the node that needs it, with no further permission and
            // no further round trip.
            let values = call.values_by(|script| script.source.clone());
            reply = self.send(client, "EVAL", values, deadline).await;
        }
        self.leave_if_wrong(client, &reply, deadline).await;
        reply
    }

    /// Sends one command that belongs to no lock. On a cluster it goes to the node that has all of
    /// the backend's keys.
    pub(crate) async fn ask(
        &self,
        command: &'static str,
        arguments: Vec<Value>,
        deadline: Instant,
    ) -> Result<Value, CommandError> {
        let asking = async {
            let _in_flight = self.admit()?;
            let client = self.client("")?;
            let reply = self.send(client, command, arguments, deadline).await;
            self.leave_if_wrong(client, &reply, deadline).await;
            reply
        };
        let reply = asking.await;
        self.fairly(reply).await
    }

    /// Lets other tasks run after a call that failed at once. The caller may retry at once, and the driver
    /// needs the thread to reconnect.
    async fn fairly(&self, reply: Reply) -> Reply {
        let at_once = reply.as_ref().is_err_and(CommandError::was_not_sent);
        if at_once && Handle::try_current().is_ok() {
            tokio::task::yield_now().await;
        }
        reply
    }

    /// Sends one command, unless the deadline has passed. Once begun, it continues in a task if the
    /// caller drops it: fred drops a queued command only when its timeout fires, and the timeout
    /// fires only while the call is polled.
    async fn send(
        &self,
        client: &Client,
        command: &'static str,
        arguments: Vec<Value>,
        deadline: Instant,
    ) -> Result<Value, CommandError> {
        let runtime = Handle::try_current().map_err(|_| CommandError::NO_RUNTIME)?;
        let left = deadline.saturating_duration_since(Instant::now());
        // fred treats zero as no timeout.
        if left.is_zero() {
            return Err(CommandError::PAST_DEADLINE);
        }
        let options = Options {
            timeout: Some(left.min(self.0.timeout)),
            // The value needs no heap allocation.
            ..self.0.options.clone()
        };
        let calling = client.with_options(&options);
        let command = CustomCommand::new_static(command, ClusterHash::FirstKey, false);
        let in_flight = self.0.in_flight.token();
        let call = async move {
            let reply = calling.custom(command, arguments).await;
            drop(in_flight);
            reply
        };
        let reply = SpawnOnDrop::new(runtime, call).await;
        reply.map_err(CommandError::from)
    }

    /// If the wrong server replied, reconnects: by now the address may lead to the new primary. Waits for
    /// the new connection, but not for long, because the caller already has its result.
    async fn leave_if_wrong(&self, client: &Client, reply: &Reply, deadline: Instant) {
        let wrong = |error: &CommandError| error.is_from_wrong_server(self.are_clustered());
        if reply.as_ref().is_err_and(wrong)
            && self.0.connection.is_some()
            && self.0.departures.is_due()
        {
            let now = Instant::now();
            let patience = deadline.saturating_duration_since(now) / 2;
            let patience = patience.min(LONGEST_DEPARTURE);
            let _ = timeout_at(now + patience, client.force_reconnection()).await;
        }
    }

    /// Counts a call as in flight, unless the backend was closed.
    fn admit(&self) -> Result<TaskTrackerToken, CommandError> {
        let admitted = self.0.in_flight.token();
        if self.0.in_flight.is_closed() {
            return Err(CommandError::BACKEND_CLOSED);
        }
        let connection = self.0.connection.as_ref();
        if connection.is_some_and(|connection| connection.0.is_finished()) {
            return Err(CommandError::CONNECTION_ENDED);
        }
        Ok(admitted)
    }

    fn client(&self, affinity: &str) -> Result<&Client, CommandError> {
        Ok(&self.link(self.index(affinity)?)?.client)
    }

    fn index(&self, affinity: &str) -> Result<usize, CommandError> {
        let mixed = affinity.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        let index = mixed.checked_rem(self.0.links.len());
        index.ok_or(CommandError::EMPTY_POOL)
    }

    fn link(&self, index: usize) -> Result<&Link, CommandError> {
        self.0.links.get(index).ok_or(CommandError::EMPTY_POOL)
    }

    /// One more connection, with the same configuration except for the protocol.
    pub(crate) async fn another(&self, deadline: Instant) -> Result<(Client, Self), LockError> {
        let _in_flight = self.admit().map_err(|error| error.of_read())?;
        let client = self.client("").map_err(|error| error.of_read())?;
        let config = Config {
            version: RespVersion::RESP3,
            ..client.client_config()
        };
        let opened = timeout_at(deadline, open(config, self.0.timeout)).await;
        let (another, connection) = opened.map_err(|_| CommandError::PAST_DEADLINE.of_read())??;
        let slot = match self.0.options.cluster_hash {
            Some(ClusterHash::Custom(slot)) => Some(slot),
            _ => None,
        };
        let clients = Self::new(
            vec![another.clone()],
            Some(connection),
            slot,
            self.0.timeout,
        );
        Ok((another, clients))
    }

    /// Whether the driver's task still runs, for a client that the backend itself made.
    pub(crate) fn are_alive(&self) -> bool {
        let connection = self.0.connection.as_ref();
        connection.is_some_and(|connection| !connection.0.is_finished())
    }

    /// Refuses further calls, and closes the client that the backend itself made once no call is in
    /// flight. A client that the application passed in stays open.
    pub(crate) async fn close(&self, deadline: Instant) -> Result<(), LockError> {
        self.0.in_flight.close();
        // The caller stops waiting at its deadline: by then the connection is closed.
        let now = Instant::now();
        let deadline = now + deadline.saturating_duration_since(now) * 3 / 4;
        let ended = timeout_at(deadline, self.0.in_flight.wait()).await;
        if let Some(connection) = &self.0.connection {
            let clients = self.0.links.iter().map(|link| &link.client);
            for client in clients.filter(|client| client.is_connected()) {
                // QUIT is a courtesy to the server: the connection ends in any case.
                let _ = timeout_at(deadline, client.quit()).await;
            }
            connection.0.abort();
        }
        if let Some(watching) = &self.0.watching {
            watching.0.abort();
        }
        ended.map_err(|_| still_in_flight())
    }
}
