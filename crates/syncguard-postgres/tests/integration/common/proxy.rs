//! [`Wire`]: the testkit's proxy, which here understands the messages of PostgreSQL.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use syncguard_postgres::PostgresBackend;
use syncguard_testkit::{FaultProxy, Faults};

use super::{BareCalls as _, key};

/// Its length, and the number that stands in place of a version.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

#[derive(Clone)]
pub(crate) struct Wire {
    proxy: Arc<FaultProxy>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Holds replies from the next statement on.
    hold_at_statement: AtomicBool,
    /// Loses the replies to the next statement, and the connections with them.
    lose_at_statement: AtomicBool,
    /// The kinds of the messages that clients sent: `B` for Bind, `E` for Execute, ...
    sent: Mutex<String>,
}

impl Wire {
    /// Starts a proxy to the server at a URL; answers the URL of the proxy.
    pub(crate) fn to(url: &str) -> (Self, String) {
        let (scheme, _) = url.split_once("127.0.0.1:").expect("a loopback URL");
        let (_, rest) = url.rsplit_once('/').expect("a database");
        let state = Arc::<State>::default();
        let reading = Arc::clone(&state);
        let mut clients = HashMap::<u64, Client>::new();
        let proxy = FaultProxy::start_reading(port_of(url), move |client, bytes| {
            clients.entry(client).or_default().read(bytes, &reading)
        });
        let proxy = Arc::new(proxy.unwrap());
        let url = format!("{scheme}{}/{rest}", proxy.address());
        (Self { proxy, state }, url)
    }

    /// Loses the connections that exist now, as a firewall does: no byte passes, none is closed.
    pub(crate) fn lose_connections(&self) {
        self.proxy.lose_all();
    }

    /// New connections lead to the server at this URL; those that are open stay where they are.
    pub(crate) fn lead_to(&self, url: &str) {
        self.proxy.lead_to(port_of(url));
    }

    /// Makes the backend open so many connections: none of as many reads gets its reply before all have begun.
    pub(crate) async fn open_connections(&self, backend: &PostgresBackend, connections: u32) {
        self.hold_replies(true);
        let reads = (0..connections).map(|_| {
            let backend = backend.clone();
            tokio::spawn(async move { backend.is_locked(&key("warm")).await })
        });
        let reads: Vec<_> = reads.collect();
        // Enough for a busy machine.
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.hold_replies(false);
        for read in reads {
            assert!(!read.await.unwrap().unwrap());
        }
    }

    pub(crate) fn hold_replies(&self, hold: bool) {
        self.proxy.set(match hold {
            true => Faults::HOLD_REPLIES,
            false => Faults::NONE,
        });
    }

    pub(crate) fn hold_replies_at_statement(&self) {
        self.state.hold_at_statement.store(true, Ordering::SeqCst);
    }

    /// Loses the replies to statements, and the connections with them.
    pub(crate) fn lose_replies(&self, lose: bool) {
        self.state.lose_at_statement.store(lose, Ordering::SeqCst);
        if !lose {
            self.proxy.set(Faults::NONE);
        }
    }

    /// What was sent since the last call.
    pub(crate) fn sent(&self) -> String {
        std::mem::take(&mut self.state.sent.lock().unwrap())
    }
}

fn port_of(url: &str) -> u16 {
    let address = url.split('/').nth(2).expect("a host");
    let (_, port) = address.rsplit_once(':').expect("a port");
    port.parse().expect("a port")
}

/// What a connection has sent.
#[derive(Default)]
struct Client {
    pending: Vec<u8>,
    started: bool,
}

impl Client {
    /// Notes the kinds of whole messages. Those before the session starts have none.
    fn read(&mut self, bytes: &[u8], state: &State) -> Option<Faults> {
        self.pending.extend_from_slice(bytes);
        let mut faults = None;
        loop {
            let header = if self.started { 5 } else { 4 };
            if self.pending.len() < header {
                return faults;
            }
            let length: [u8; 4] = self.pending[header - 4..header].try_into().unwrap();
            let end = header - 4 + usize::try_from(u32::from_be_bytes(length)).unwrap();
            if self.pending.len() < end {
                return faults;
            }
            if self.started {
                let kind = self.pending[0];
                state.sent.lock().unwrap().push(char::from(kind));
                if kind == b'E' && state.hold_at_statement.swap(false, Ordering::SeqCst) {
                    faults = Some(Faults::HOLD_REPLIES);
                }
                if kind == b'E' && state.lose_at_statement.load(Ordering::SeqCst) {
                    faults = Some(Faults::CUT_AT_REPLY);
                }
            }
            // A client that could use TLS asks first whether the server would.
            self.started = self.started || self.pending[..end] != SSL_REQUEST;
            self.pending.drain(..end);
        }
    }
}
