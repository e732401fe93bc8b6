//! [`Relay`]: the testkit's proxy before the emulator. It counts HTTP/2 resets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use syncguard_testkit::FaultProxy;

/// What a client sends before its first frame.
const PREFACE: usize = 24;
/// The length, the type, the flags and the stream of a frame.
const HEADER: usize = 9;
const RST_STREAM: u8 = 3;

pub struct Relay {
    pub host: String,
    proxy: FaultProxy,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    connections: HashMap<u64, Frames>,
    resets: usize,
}

impl Relay {
    pub fn to(upstream: &str) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let reading = Arc::clone(&seen);
        let proxy = FaultProxy::start_reading(port_of(upstream), move |connection, bytes| {
            let mut seen = reading.lock().unwrap();
            let resets = seen
                .connections
                .entry(connection)
                .or_default()
                .resets_in(bytes);
            seen.resets += resets;
            None
        });
        let proxy = proxy.unwrap();
        Self {
            host: proxy.address(),
            proxy,
            seen,
        }
    }

    /// The connections so far.
    pub fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections.len()
    }

    /// The streams that clients have reset so far.
    pub fn resets(&self) -> usize {
        self.seen.lock().unwrap().resets
    }

    /// Loses the connections that exist now, as a firewall does: no byte passes, none is closed.
    pub fn lose_connections(&self) {
        self.proxy.lose_all();
    }

    /// New connections lead to another server.
    pub fn lead_to(&self, upstream: &str) {
        self.proxy.lead_to(port_of(upstream));
    }
}

fn port_of(host: &str) -> u16 {
    let (_, port) = host.rsplit_once(':').expect("a port");
    port.parse().expect("a port")
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
