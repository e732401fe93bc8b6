//! [`Connection`]: how a client of the backend's own is connected.

use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike as _;
use fred::types::Builder;
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, ServerConfig, TcpConfig,
    UnresponsiveConfig,
};
use syncguard_core::observe::Operation;
use syncguard_core::{ErrorCode, LockError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::error::connect_error;
use crate::wire::detour::Detour;

/// Delays between attempts to reconnect, in milliseconds: first, last, and growth.
///
/// The first delay is short: until its first attempt to reconnect, fred treats the broken connection as a
/// good one and queues commands.
const RECONNECT: (u32, u32, u32) = (1, 500, 4);
/// Random share of a delay, in milliseconds, so that clients do not reconnect all at once.
const RECONNECT_JITTER: u32 = 10;

/// fred's own task. It holds a client and would outlive all other references, so it ends with this value.
pub(crate) struct Connection(pub(super) JoinHandle<Result<(), Error>>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Makes a client and connects it. Dropping the future closes the connection.
pub(crate) async fn open(
    config: Config,
    timeout: Duration,
) -> Result<(Client, Connection), LockError> {
    let client = build(config.clone(), timeout)?;
    if config.server.is_clustered() {
        let detour = Detour::new(config.uses_tls(), timeout);
        client.set_resolver(detour).await;
    }
    let connection = async {
        let connected = established(&client, Connection(client.connect())).await;
        match connected {
            Err(error) if is_other_protocol(&error) => {
                Err(stranger(&config).await.unwrap_or(error))
            }
            Err(error) => Err(refused_by_sentinel(&config, timeout).await.unwrap_or(error)),
            connected => connected,
        }
    };
    let connection = tokio::time::timeout(timeout, connection)
        .await
        .unwrap_or_else(|_| {
            let message = format!("Redis did not answer within {timeout:.1?}");
            Err(during_setup(LockError::new(
                ErrorCode::NetworkTimeout,
                message,
            )))
        })?;
    Ok((client, connection))
}

fn build(config: Config, timeout: Duration) -> Result<Client, LockError> {
    let (first, last, growth) = RECONNECT;
    let mut policy = ReconnectPolicy::new_exponential(0, first, last, growth);
    policy.set_jitter(RECONNECT_JITTER);
    Builder::from_config(Config {
        fail_fast: true,
        ..config
    })
    .set_policy(policy)
    .set_performance_config(PerformanceConfig {
        // Events of connections, and of keys that are waited for.
        broadcast_channel_capacity: 1_024,
        ..PerformanceConfig::default()
    })
    .set_connection_config(ConnectionConfig {
        connection_timeout: timeout,
        internal_command_timeout: timeout,
        max_command_attempts: 1,
        // Without this, a connection whose peer no longer replies would stay open until TCP times out.
        unresponsive: UnresponsiveConfig {
            max_timeout: Some(timeout),
            interval: (timeout / 4).max(Duration::from_millis(10)),
        },
        tcp: tcp(timeout),
        ..ConnectionConfig::default()
    })
    .build()
    .map_err(|error| connect_error(&error))
}

fn tcp(timeout: Duration) -> TcpConfig {
    TcpConfig {
        nodelay: Some(true),
        // For a peer that acknowledges nothing: the driver would otherwise wait for space in the send buffer.
        #[cfg(target_os = "linux")]
        user_timeout: Some(timeout),
        ..TcpConfig::default()
    }
}

/// Waits until the first connection is established or has failed.
async fn established(client: &Client, mut connection: Connection) -> Result<Connection, LockError> {
    // Any reply to the queued PING proves a connection, even a denied permission.
    tokio::select! {
        ended = &mut connection.0 => Err(match ended {
            Ok(Err(error)) => connect_error(&error),
            Ok(Ok(())) | Err(_) => during_setup(LockError::new(
                ErrorCode::Internal,
                "the Redis client stopped while connecting",
            )),
        }),
        _ = client.ping::<fred::types::Value>(None) => Ok(connection),
    }
}

fn is_other_protocol(error: &LockError) -> bool {
    let source = std::error::Error::source(error).and_then(|error| error.downcast_ref::<Error>());
    source.is_some_and(|error| matches!(error.kind(), ErrorKind::Protocol))
}

/// The error for a server that is not Redis, with the beginning of its reply to a `PING`.
async fn stranger(config: &Config) -> Option<LockError> {
    let address = config.server.hosts().into_iter().next()?;
    let mut stream = TcpStream::connect((&*address.host, address.port))
        .await
        .ok()?;
    stream.write_all(b"PING\r\n").await.ok()?;
    let mut said = [0; 64];
    let length = stream
        .read(&mut said)
        .await
        .ok()
        .filter(|length| *length > 0)?;
    let said = said.get(..length)?;
    let line = said.split(|byte| matches!(byte, b'\r' | b'\n')).next()?;
    Some(during_setup(LockError::new(
        ErrorCode::ServiceUnavailable,
        format!(
            "the server at the address is not Redis; it replied \"{}\"",
            line.escape_ascii()
        ),
    )))
}

/// The error for a Sentinel that refuses its credentials. The driver's error does not say whether a
/// Sentinel or a watched server refused.
async fn refused_by_sentinel(config: &Config, timeout: Duration) -> Option<LockError> {
    let ServerConfig::Sentinel {
        hosts,
        username,
        password,
        ..
    } = &config.server
    else {
        return None;
    };
    for server in hosts {
        let sentinel = Config {
            server: ServerConfig::Centralized {
                server: server.clone(),
            },
            username: username.clone(),
            password: password.clone(),
            database: None,
            ..config.clone()
        };
        let client = build(sentinel, timeout).ok()?;
        match established(&client, Connection(client.connect())).await {
            Err(error) if error.code() == ErrorCode::AuthFailed => {
                let refused = LockError::new(
                    ErrorCode::AuthFailed,
                    "a Sentinel refuses the credentials; set `sentinelUsername` and \
                     `sentinelPassword` in the URL if they differ from those of Redis",
                );
                return Some(during_setup(refused.with_source(error)));
            }
            Ok(_) => return None,
            Err(_) => {}
        }
    }
    None
}

pub(crate) fn during_setup(error: LockError) -> LockError {
    error.with_operation(Operation::Setup)
}
