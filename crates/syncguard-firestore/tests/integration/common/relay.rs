//! [`Relay`]: a TCP path to the emulator. It counts HTTP/2 resets and can lose connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What a client sends before its first frame.
const PREFACE: usize = 24;
/// The length, the type, the flags and the stream of a frame.
const HEADER: usize = 9;
const RST_STREAM: u8 = 3;

pub struct Relay {
    pub host: String,
    state: Arc<State>,
}

struct State {
    upstream: Mutex<String>,
    connections: AtomicUsize,
    resets: AtomicUsize,
    /// Connections that are older than this number pass nothing any more.
    lost: watch::Sender<usize>,
}

impl Relay {
    pub async fn to(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State {
            upstream: Mutex::new(upstream.to_owned()),
            connections: AtomicUsize::new(0),
            resets: AtomicUsize::new(0),
            lost: watch::Sender::new(0),
        });
        let relay = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&relay).pass(client));
            }
        });
        Self { host, state }
    }

    /// The connections so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// The streams that clients have reset so far.
    pub fn resets(&self) -> usize {
        self.state.resets.load(Ordering::SeqCst)
    }

    /// Loses the connections that exist now, as a firewall does: no byte passes, none is closed.
    pub fn lose_connections(&self) {
        self.state.lost.send_replace(self.connections());
    }

    /// New connections lead to another server.
    pub fn lead_to(&self, upstream: &str) {
        *self.state.upstream.lock().unwrap() = upstream.to_owned();
    }
}

impl State {
    async fn pass(self: Arc<Self>, client: TcpStream) {
        let number = self.connections.fetch_add(1, Ordering::SeqCst);
        let upstream = self.upstream.lock().unwrap().clone();
        let server = TcpStream::connect(upstream).await.unwrap();
        let (mut client_reads, mut client_writes) = client.into_split();
        let (mut server_reads, mut server_writes) = server.into_split();
        let requests = async {
            let mut frames = Frames::default();
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = client_reads.read(&mut buffer).await {
                let resets = frames.resets_in(&buffer[..length]);
                self.resets.fetch_add(resets, Ordering::SeqCst);
                if server_writes.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        };
        let replies = tokio::io::copy(&mut server_reads, &mut client_writes);
        let mut lost = self.lost.subscribe();
        let lost = async { drop(lost.wait_for(|lost| number < *lost).await) };
        tokio::select! {
            () = requests => return,
            _ = replies => return,
            () = lost => {}
        }
        std::future::pending::<()>().await;
    }
}

/// The frames of one direction of a connection.
#[derive(Default)]
struct Frames {
    bytes: Vec<u8>,
    after_preface: bool,
}

impl Frames {
    fn resets_in(&mut self, piece: &[u8]) -> usize {
        self.bytes.extend_from_slice(piece);
        if !self.after_preface && self.bytes.len() >= PREFACE {
            assert!(self.bytes.starts_with(b"PRI * HTTP/2.0"));
            self.bytes.drain(..PREFACE);
            self.after_preface = true;
        }
        let (mut resets, mut begin) = (0, 0);
        while self.after_preface && self.bytes.len() >= begin + HEADER {
            let header = &self.bytes[begin..begin + HEADER];
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
            let end = begin + HEADER + usize::try_from(length).unwrap();
            if self.bytes.len() < end {
                break;
            }
            resets += usize::from(header[3] == RST_STREAM);
            begin = end;
        }
        self.bytes.drain(..begin);
        resets
    }
}
