//! [`FaultProxy`]: a TCP proxy that breaks connections on demand.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use crate::faults::{Connections, Faults, Flow};
use crate::resp;
use crate::slot::Slot;

/// How long the copy of a duplicated request may take before the original goes ahead.
const COPY_TIMEOUT: Duration = Duration::from_secs(2);

/// How often each fault has taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Struck {
    /// Pieces of a stream that were delayed.
    pub delayed: u64,
    /// Pieces of a stream that were held.
    pub held: u64,
    /// Connections that were reset, after lost bytes and by a refusing server included.
    pub reset: u64,
    /// Connections that lost bytes and hung.
    pub swallowed: u64,
    /// Connections that were accepted without forwarding anything.
    pub half_open: u64,
    /// Requests that were delivered twice.
    pub duplicated: u64,
}

/// A proxy in front of one server, on a loopback port of its own. It stops on drop.
///
/// It runs on a thread of its own, so it works in synchronous and asynchronous tests alike. Its port stays
/// the same when the server stops or restarts.
///
/// ```no_run
/// use syncguard_testkit::{FaultProxy, Faults, RedisServer};
///
/// # fn main() -> anyhow::Result<()> {
/// let server = RedisServer::start()?;
/// let proxy = FaultProxy::start(server.port())?;
/// println!("connect to redis://{}", proxy.address());
/// proxy.set(Faults::DROP_REPLY);
/// // ... the server now executes requests, and no reply arrives ...
/// proxy.set(Faults::NONE);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct FaultProxy {
    slot: Slot,
    control: Arc<watch::Sender<Control>>,
    stop: Option<oneshot::Sender<()>>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy)]
struct Control {
    /// Where new connections lead.
    upstream: SocketAddr,
    faults: Faults,
    /// Connections of an earlier era are reset.
    era: u64,
    /// Connections before this number hang.
    lost: u64,
    /// How many of the held pieces pass, in the order in which they arrived.
    let_through: u64,
}

/// Reads the pieces of requests before faults apply to them: see [`FaultProxy::start_reading`].
type Reader = Box<dyn FnMut(u64, &[u8]) -> Option<Faults> + Send>;

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    delayed: AtomicU64,
    held: AtomicU64,
    reset: AtomicU64,
    swallowed: AtomicU64,
    half_open: AtomicU64,
    duplicated: AtomicU64,
}

impl FaultProxy {
    /// Starts a proxy to a loopback port. The server need not be up yet.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(upstream: u16) -> Result<Self> {
        Self::start_reading(upstream, |_, _| None)
    }

    /// Starts a proxy that shows what clients send: `read` gets the number of the connection, from 0, and
    /// each piece in its order, before faults apply to it. The faults that it returns replace those in
    /// force.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start_reading(
        upstream: u16,
        read: impl FnMut(u64, &[u8]) -> Option<Faults> + Send + 'static,
    ) -> Result<Self> {
        let slot = Slot::claim()?;
        let own = loopback(slot.port());
        let control = Arc::new(watch::Sender::new(Control {
            upstream: loopback(upstream),
            faults: Faults::NONE,
            era: 0,
            lost: 0,
            let_through: 0,
        }));
        let (stop, stopped) = oneshot::channel();
        let counters = Arc::new(Counters::default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        // Not by Tokio: an asynchronous test could not wait for it here.
        let listener =
            std::net::TcpListener::bind(own).with_context(|| format!("cannot listen on {own}"))?;
        listener.set_nonblocking(true)?;
        let proxy = Proxy {
            own,
            control: Arc::clone(&control),
            counters: Arc::clone(&counters),
            reader: Arc::new(Mutex::new(Box::new(read))),
        };
        let thread = thread::Builder::new()
            .name("fault-proxy".into())
            .spawn(move || {
                runtime.block_on(async move {
                    if let Ok(listener) = TcpListener::from_std(listener) {
                        tokio::select! {
                            () = proxy.run(listener) => {}
                            _ = stopped => {}
                        }
                    }
                });
            })?;
        Ok(Self {
            slot,
            control,
            stop: Some(stop),
            counters,
            thread: Some(thread),
        })
    }

    /// The port where clients connect.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.slot.port()
    }

    /// Where clients connect: `127.0.0.1:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.port())
    }

    /// Replaces the current faults.
    pub fn set(&self, faults: Faults) {
        self.control.send_modify(|control| control.faults = faults);
    }

    /// Resets all existing connections. The current faults apply to new ones.
    pub fn reset_all(&self) {
        self.control.send_modify(|control| control.era += 1);
    }

    /// Loses all existing connections as a firewall does: no byte passes any more, and none is closed. New
    /// ones work.
    pub fn lose_all(&self) {
        let lost = self.counters.connections.load(Ordering::Relaxed);
        self.control.send_modify(|control| control.lost = lost);
    }

    /// Forwards new connections to another loopback port, as an address does after a failover. Existing
    /// connections stay.
    pub fn lead_to(&self, upstream: u16) {
        self.control
            .send_modify(|control| control.upstream = loopback(upstream));
    }

    /// Lets the first `held` of the [held](Flow::Hold) pieces pass; later ones still wait. Get the number
    /// from an earlier [`struck`](Self::struck).
    pub fn let_through(&self, held: u64) {
        self.control
            .send_modify(|control| control.let_through = held);
    }

    /// How often faults have taken effect so far.
    #[must_use]
    pub fn struck(&self) -> Struck {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Struck {
            delayed: read(&self.counters.delayed),
            held: read(&self.counters.held),
            reset: read(&self.counters.reset),
            swallowed: read(&self.counters.swallowed),
            half_open: read(&self.counters.half_open),
            duplicated: read(&self.counters.duplicated),
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Clone)]
struct Proxy {
    own: SocketAddr,
    control: Arc<watch::Sender<Control>>,
    counters: Arc<Counters>,
    reader: Arc<Mutex<Reader>>,
}

/// A connection ends without both sides closing it: it is reset.
struct Broken;

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Requests,
    Replies,
}

impl Proxy {
    /// Runs for ever. The connections end with the runtime.
    async fn run(self, first: TcpListener) {
        let mut control = self.control.subscribe();
        let mut listener = Some(first);
        loop {
            let refuses = self.faults().connections == Connections::Refuse;
            if refuses {
                listener = None;
            } else if listener.is_none() {
                listener = TcpListener::bind(self.own).await.ok();
            }
            let retry = Duration::from_millis(if refuses { 1_000 } else { 5 });
            tokio::select! {
                _ = control.changed() => {}
                client = accept(listener.as_ref(), retry) => if let Some(client) = client {
                    tokio::spawn(self.clone().serve(client));
                },
            }
        }
    }

    fn upstream(&self) -> SocketAddr {
        self.control.borrow().upstream
    }

    fn faults(&self) -> Faults {
        self.control.borrow().faults
    }

    async fn serve(self, mut client: TcpStream) {
        let number = self.counters.connections.fetch_add(1, Ordering::Relaxed);
        if self.faults().connections == Connections::HalfOpen {
            count(&self.counters.half_open);
            self.until_not(|faults| faults.connections == Connections::HalfOpen)
                .await;
            return self.reset(&client);
        }
        let Ok(mut server) = TcpStream::connect(self.upstream()).await else {
            return self.reset(&client);
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let ended = {
            let (client_reads, client_writes) = client.split();
            let (server_reads, server_writes) = server.split();
            let both_ways = async {
                tokio::try_join!(
                    self.pump(number, Direction::Requests, client_reads, server_writes),
                    self.pump(number, Direction::Replies, server_reads, client_writes),
                )
            };
            tokio::select! {
                ended = both_ways => ended.map(drop),
                () = self.until_cut() => Err(Broken),
                () = self.until_lost(number) => {
                    self.until_cut().await;
                    Err(Broken)
                }
            }
        };
        if ended.is_err() {
            let _ = server.set_zero_linger();
            self.reset(&client);
        }
    }

    /// Forwards one direction until its source closes it.
    async fn pump(
        &self,
        number: u64,
        direction: Direction,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
    ) -> Result<(), Broken> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut buffer).await?;
            let bytes = buffer.get(..length).unwrap_or_default();
            if matches!(direction, Direction::Requests) {
                self.show(number, bytes);
            }
            match self.once_not_held(direction).await? {
                Flow::Pass | Flow::Hold => {}
                Flow::Delay(by) => {
                    count(&self.counters.delayed);
                    tokio::time::sleep(by).await;
                }
                Flow::Reset => return Err(Broken),
                Flow::Swallow => {
                    count(&self.counters.swallowed);
                    self.until_not(|faults| direction.flow(faults) == Flow::Swallow)
                        .await;
                    return Err(Broken);
                }
                Flow::Duplicate => {
                    if let (Direction::Requests, Some(scripts)) = (direction, resp::scripts(bytes))
                    {
                        // Only a copy that was answered counts as delivered.
                        let copy = deliver_copy(self.upstream(), &scripts);
                        if matches!(tokio::time::timeout(COPY_TIMEOUT, copy).await, Ok(Ok(()))) {
                            count(&self.counters.duplicated);
                        }
                    }
                }
            }
            if bytes.is_empty() {
                to.shutdown().await?;
                return Ok(());
            }
            to.write_all(bytes).await?;
        }
    }

    fn show(&self, number: u64, bytes: &[u8]) {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(faults) = reader(number, bytes) {
            self.control.send_modify(|control| control.faults = faults);
        }
    }

    /// Waits while a piece that arrived is held; returns what happens to it then.
    async fn once_not_held(&self, direction: Direction) -> Result<Flow, Broken> {
        let mut control = self.control.subscribe();
        let number = match direction.flow(self.faults()) {
            Flow::Hold => 1 + self.counters.held.fetch_add(1, Ordering::Relaxed),
            _ => u64::MAX,
        };
        let now = *control
            .wait_for(|now| direction.flow(now.faults) != Flow::Hold || now.let_through >= number)
            .await
            .map_err(|_| Broken)?;
        if now.faults.connections == Connections::HalfOpen {
            count(&self.counters.half_open);
            self.until_not(|faults| faults.connections == Connections::HalfOpen)
                .await;
            return Err(Broken);
        }
        Ok(direction.flow(now.faults))
    }

    /// Resolves once `is` no longer applies to the faults, or the proxy stops.
    async fn until_not(&self, is: impl Fn(Faults) -> bool) {
        let mut control = self.control.subscribe();
        let _ = control.wait_for(|control| !is(control.faults)).await;
    }

    /// Resolves once the connection is lost.
    async fn until_lost(&self, number: u64) {
        let mut control = self.control.subscribe();
        let _ = control.wait_for(|control| number < control.lost).await;
    }

    /// Resolves once connections that exist now have to be reset.
    async fn until_cut(&self) {
        let mut control = self.control.subscribe();
        let era = control.borrow().era;
        let _ = control
            .wait_for(|control| {
                control.era != era || control.faults.connections == Connections::Refuse
            })
            .await;
    }

    fn reset(&self, client: &TcpStream) {
        count(&self.counters.reset);
        // If it cannot be reset, dropping it closes it.
        let _ = client.set_zero_linger();
    }
}

impl Direction {
    fn flow(self, faults: Faults) -> Flow {
        match self {
            Self::Requests => faults.requests,
            Self::Replies => faults.replies,
        }
    }
}

/// The next client, or `None` after a while without a listener.
async fn accept(listener: Option<&TcpListener>, patience: Duration) -> Option<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.ok().map(|(client, _)| client),
        None => {
            tokio::time::sleep(patience).await;
            None
        }
    }
}

/// Sends scripts over a connection of their own and waits for all replies.
async fn deliver_copy(upstream: SocketAddr, scripts: &resp::Scripts<'_>) -> io::Result<()> {
    let mut server = TcpStream::connect(upstream).await?;
    server.write_all(&scripts.bytes()).await?;
    let mut answers = Vec::new();
    while resp::whole_replies(&answers) < scripts.count() {
        if server.read_buf(&mut answers).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
