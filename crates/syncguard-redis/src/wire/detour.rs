//! [`Detour`]: connects to a cluster while some of its nodes do not answer.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fred::bytes_utils::Str;
use fred::error::Error;
use fred::types::Resolve;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How many other nodes are tried at once in place of one that does not answer: those that answered last.
const SUBSTITUTES: usize = 8;

type Node = (Str, u16);

/// Finds the addresses of a cluster's nodes.
///
/// fred connects to all masters or to none. But all locks of a backend are on one master. So in place of a
/// node that does not answer, this resolver returns the address of another node. The cluster then redirects
/// commands for the missing node's slots (`MOVED`), and all other commands work.
#[derive(Debug)]
pub(crate) struct Detour {
    /// The last nodes that answered.
    answered: Mutex<Vec<Node>>,
    probe: Probe,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    patience: Duration,
    encrypted: bool,
}

impl Detour {
    /// The search and the connection together must end within `timeout`.
    pub(crate) fn new(encrypted: bool, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            answered: Mutex::default(),
            probe: Probe {
                patience: timeout / 4,
                encrypted,
            },
        })
    }

    /// The nodes to try in place of one that does not answer.
    fn others(&self, node: &Node) -> Vec<Node> {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered
            .iter()
            .filter(|other| *other != node)
            .cloned()
            .collect()
    }

    fn remember(&self, node: Node) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.retain(|other| *other != node);
        answered.push(node);
        if answered.len() > SUBSTITUTES {
            answered.remove(0);
        }
    }
}

#[async_trait]
impl Resolve for Detour {
    async fn resolve(&self, host: Str, port: u16) -> Result<Vec<SocketAddr>, Error> {
        let node = (host, port);
        if let Some(addresses) = self.probe.answering(node.clone()).await {
            self.remember(node);
            return Ok(addresses);
        }
        let others = self.others(&node);
        let probe = self.probe;
        let mut attempts: JoinSet<_> = others
            .into_iter()
            .map(|other| async move { probe.answering(other).await })
            .collect();
        while let Some(attempt) = attempts.join_next().await {
            if let Ok(Some(addresses)) = attempt {
                tracing::warn!(
                    "a node of the Redis cluster does not answer; continuing with the other nodes"
                );
                return Ok(addresses);
            }
        }
        Ok(lookup_host((&*node.0, node.1)).await?.collect())
    }
}

impl Probe {
    /// The addresses of a node if it answers.
    async fn answering(self, (host, port): Node) -> Option<Vec<SocketAddr>> {
        let asking = async {
            let addresses: Vec<_> = lookup_host((&*host, port)).await.ok()?.collect();
            let mut stream = TcpStream::connect(addresses.as_slice()).await.ok()?;
            // Any reply is enough, also that credentials are required.
            if !self.encrypted {
                stream.write_all(b"PING\r\n").await.ok()?;
                let read = stream.read(&mut [0]).await.ok()?;
                (read > 0).then_some(())?;
            }
            Some(addresses)
        };
        timeout(self.patience, asking).await.ok()?
    }
}
