//! A wire between client and server that can be cut, held up and listened to.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Its length, and the number that stands in place of a version.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

#[derive(Clone, Default)]
pub(crate) struct Wire {
    /// Where new connections lead.
    server: Arc<Mutex<String>>,
    /// Replies do not arrive while this is set; requests do.
    hold_replies: Arc<AtomicBool>,
    /// Holds replies from the next statement on.
    hold_at_statement: Arc<AtomicBool>,
    /// Replies to statements are lost, and the connections with them.
    lose_replies: Arc<AtomicBool>,
    /// The kinds of the messages that clients sent: `B` for Bind, `E` for Execute, ...
    sent: Arc<Mutex<String>>,
}

impl Wire {
    /// Starts a proxy to the server at a URL; answers the URL of the proxy.
    pub(crate) async fn to(url: &str) -> (Self, String) {
        let (scheme, _) = url.split_once("127.0.0.1:").expect("a loopback URL");
        let (_, rest) = url.rsplit_once('/').expect("a database");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let wire = Self::default();
        wire.lead_to(url);
        let accepting = wire.clone();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = accepting.server.lock().unwrap().clone();
                let Ok(server) = TcpStream::connect(server).await else {
                    continue;
                };
                tokio::spawn(accepting.clone().carry(client, server));
            }
        });
        (wire, format!("{scheme}127.0.0.1:{port}/{rest}"))
    }

    /// New connections lead to the server at this URL; those that are open stay where they are.
    pub(crate) fn lead_to(&self, url: &str) {
        let address = url.split('/').nth(2).expect("a host");
        let address = address.rsplit('@').next().expect("an address");
        address.clone_into(&mut self.server.lock().unwrap());
    }

    pub(crate) fn hold_replies(&self, hold: bool) {
        self.hold_replies.store(hold, Ordering::SeqCst);
    }

    pub(crate) fn hold_replies_at_statement(&self) {
        self.hold_at_statement.store(true, Ordering::SeqCst);
    }

    pub(crate) fn lose_replies(&self, lose: bool) {
        self.lose_replies.store(lose, Ordering::SeqCst);
    }

    /// What was sent since the last call.
    pub(crate) fn sent(&self) -> String {
        std::mem::take(&mut self.sent.lock().unwrap())
    }

    async fn carry(self, client: TcpStream, server: TcpStream) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let doomed = AtomicBool::new(false);
        let requests = async {
            let mut buffer = vec![0; 1 << 16];
            let mut pending = Vec::new();
            let mut started = false;
            while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
                pending.extend_from_slice(&buffer[..length]);
                self.listen(&mut pending, &mut started, &doomed);
                if to_server.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        };
        let replies = async {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
                while self.hold_replies.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                if doomed.load(Ordering::SeqCst)
                    || to_client.write_all(&buffer[..length]).await.is_err()
                {
                    break;
                }
            }
        };
        tokio::select! {
            () = requests => {}
            () = replies => {}
        }
    }

    /// Notes the kinds of whole messages. Those before the session starts have none.
    fn listen(&self, pending: &mut Vec<u8>, started: &mut bool, doomed: &AtomicBool) {
        loop {
            let header = if *started { 5 } else { 4 };
            if pending.len() < header {
                return;
            }
            let length: [u8; 4] = pending[header - 4..header].try_into().unwrap();
            let end = header - 4 + usize::try_from(u32::from_be_bytes(length)).unwrap();
            if pending.len() < end {
                return;
            }
            if *started {
                self.sent.lock().unwrap().push(char::from(pending[0]));
                if pending[0] == b'E' && self.hold_at_statement.swap(false, Ordering::SeqCst) {
                    self.hold_replies(true);
                }
                if pending[0] == b'E' && self.lose_replies.load(Ordering::SeqCst) {
                    doomed.store(true, Ordering::SeqCst);
                }
            }
            // A client that could use TLS asks first whether the server would.
            *started = *started || pending[..end] != SSL_REQUEST;
            pending.drain(..end);
        }
    }
}
