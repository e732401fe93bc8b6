//! Makes a [`RedisBackend`]: connects, or uses a given client.

mod detour;
#[cfg(all(
    any(feature = "rustls-ring", feature = "rustls-aws-lc"),
    not(feature = "native-tls")
))]
mod tls;

use std::time::Duration;

use fred::clients::{Client, Pool};
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

use crate::connect::detour::Detour;
use crate::error::connect_error;
use crate::names::Names;
use crate::wire::{Clients, Connection};
use crate::{RedisBackend, RedisOptions};

/// Delays between attempts to reconnect, in milliseconds: first, last, and growth.
///
/// The first delay is short: until its first attempt to reconnect, fred treats the broken connection as a
/// good one and queues commands.
const RECONNECT: (u32, u32, u32) = (1, 500, 4);
/// Random share of a delay, in milliseconds, so that clients do not reconnect all at once.
const RECONNECT_JITTER: u32 = 10;

impl RedisBackend {
    /// Connects to the server at a URL, with the default options.
    ///
    /// `redis://[[username:]password@]host[:port][/database]`; `rediss://` with TLS, if one of the
    /// crate's TLS features is on; `redis-cluster://` and `redis-sentinel://` with further nodes as
    /// `?node=host:port`, for Sentinel with `sentinelServiceName=`.
    ///
    /// Sentinels get the same credentials as Redis, unless the URL has `sentinelPassword=` and, for a
    /// user other than `default`, `sentinelUsername=`. With an empty `sentinelPassword=` they get none.
    ///
    /// All clones share one connection. It reconnects when it breaks, and closes when the last clone is
    /// dropped or by [`Locks::close`](syncguard_core::Locks::close).
    ///
    /// ```no_run
    /// use syncguard_core::Locks;
    /// use syncguard_redis::RedisBackend;
    ///
    /// # async fn connect() -> Result<(), syncguard_core::LockError> {
    /// let locks = Locks::new(RedisBackend::connect("redis://127.0.0.1:6379").await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid URL or options, `AuthFailed` for credentials that the server
    /// refuses, `ServiceUnavailable` or `NetworkTimeout` if no server answers. No error text shows the
    /// URL's password.
    ///
    /// # Cancel safety
    /// Safe: a dropped call closes what it opened.
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::connect_with(url, RedisOptions::default()).await
    }

    /// Connects to the server at a URL. See [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect). `InvalidArgument` also for a cluster's URL with a prefix that
    /// has no hash tag.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(url: &str, options: RedisOptions) -> Result<Self, LockError> {
        let RedisOptions {
            prefix,
            timeout,
            cleanup_in_is_locked,
        } = options;
        let names = Names::new(&prefix).map_err(during_setup)?;
        require_timeout(timeout)?;
        let config = parse(url).map_err(during_setup)?;
        require_one_slot(&names, config.server.is_clustered())?;
        let (client, connection) = open(config, timeout).await?;
        let clients = Clients::new(vec![client], Some(connection), slot(&names), timeout);
        Ok(Self::from_parts(clients, names, cleanup_in_is_locked))
    }

    /// Uses a client that the application configured and connected.
    ///
    /// The application owns the client and its tasks: the backend never closes it. Regardless of the
    /// client's configuration, the backend sends each command once, and a command fails at once while there
    /// is no connection. Give the client a reconnection policy. If a firewall or a load balancer drops idle
    /// connections, also call its `enable_heartbeat`.
    ///
    /// If passwords change, for example with IAM, give its configuration a
    /// [`CredentialProvider`](fred::types::config::CredentialProvider): fred then asks for the
    /// credentials of each new connection.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use syncguard_redis::fred::error::Error;
    /// use syncguard_redis::fred::interfaces::ClientLike as _;
    /// use syncguard_redis::fred::types::Builder;
    /// use syncguard_redis::fred::types::config::{
    ///     Config, CredentialProvider, ReconnectPolicy, Server,
    /// };
    /// use syncguard_redis::{RedisBackend, RedisOptions};
    ///
    /// #[derive(Debug)]
    /// struct FromFile;
    ///
    /// #[async_trait::async_trait]
    /// impl CredentialProvider for FromFile {
    ///     async fn fetch(
    ///         &self,
    ///         _server: Option<&Server>,
    ///     ) -> Result<(Option<String>, Option<String>), Error> {
    ///         let password = std::fs::read_to_string("/run/secrets/redis")?;
    ///         Ok((Some("locks".into()), Some(password.trim().into())))
    ///     }
    /// }
    ///
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = Builder::from_config(Config {
    ///     credential_provider: Some(Arc::new(FromFile)),
    ///     ..Config::from_url("redis://127.0.0.1:6379")?
    /// })
    /// .set_policy(ReconnectPolicy::default())
    /// .build()?;
    /// client.init().await?;
    /// let backend = RedisBackend::with_client(client, RedisOptions::new())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for invalid options, such as a prefix without a hash tag on a cluster.
    pub fn with_client(client: Client, options: RedisOptions) -> Result<Self, LockError> {
        Self::with_clients(vec![client], options)
    }

    /// Uses a pool that the application configured and connected. See
    /// [`with_client`](Self::with_client).
    ///
    /// All calls that concern one lock id use the same client of the pool.
    ///
    /// ```no_run
    /// use syncguard_core::Locks;
    /// use syncguard_redis::fred::interfaces::ClientLike as _;
    /// use syncguard_redis::fred::types::Builder;
    /// use syncguard_redis::fred::types::config::{Config, ReconnectPolicy};
    /// use syncguard_redis::{RedisBackend, RedisOptions};
    ///
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = Builder::from_config(Config::from_url("redis://127.0.0.1:6379")?)
    ///     .set_policy(ReconnectPolicy::default())
    ///     .build_pool(4)?;
    /// pool.init().await?;
    /// let locks = Locks::new(RedisBackend::with_pool(&pool, RedisOptions::new())?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`with_client`](Self::with_client).
    pub fn with_pool(pool: &Pool, options: RedisOptions) -> Result<Self, LockError> {
        Self::with_clients(pool.clients().to_vec(), options)
    }

    fn with_clients(clients: Vec<Client>, options: RedisOptions) -> Result<Self, LockError> {
        let RedisOptions {
            prefix,
            timeout,
            cleanup_in_is_locked,
        } = options;
        let names = Names::new(&prefix).map_err(during_setup)?;
        require_timeout(timeout)?;
        require_one_slot(&names, clients.iter().any(Client::is_clustered))?;
        let clients = Clients::new(clients, None, slot(&names), timeout);
        Ok(Self::from_parts(clients, names, cleanup_in_is_locked))
    }
}

/// fred treats zero as no timeout.
fn require_timeout(timeout: Duration) -> Result<(), LockError> {
    if timeout.is_zero() {
        let error = LockError::invalid_argument("the timeout in the Redis options is zero");
        return Err(during_setup(error));
    }
    Ok(())
}

fn parse(url: &str) -> Result<Config, LockError> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let (base, kind) = scheme.split_once('-').unwrap_or((scheme, ""));
    let encrypted = match (base, kind) {
        ("redis" | "valkey", "" | "cluster" | "sentinel") => false,
        ("rediss" | "valkeys", "" | "cluster" | "sentinel") => true,
        _ => {
            return Err(LockError::invalid_argument(
                "a Redis URL begins with redis://, redis-cluster:// or redis-sentinel://, or with TLS \
                 with rediss://, rediss-cluster:// or rediss-sentinel:// (or the same with valkey)",
            ));
        }
    };
    let mut config = parse_with_tls(url, base, encrypted)?;
    require_tls(encrypted, config.uses_tls())?;
    // Every connection starts in database 0, and the user may lack the permission for SELECT.
    config.database = config.database.filter(|database| *database != 0);
    let (username, password) = (config.username.clone(), config.password.clone());
    if let ServerConfig::Sentinel {
        username: for_sentinels,
        password: secret,
        ..
    } = &mut config.server
    {
        match secret.as_deref() {
            // Send no password for a named user: Sentinels without a password accept any.
            None => {
                *secret = password;
                *for_sentinels = Some(username.unwrap_or_else(|| "default".to_owned()));
            }
            Some("") => *secret = None,
            Some(_) => {}
        }
    }
    Ok(config)
}

#[cfg(all(
    any(feature = "rustls-ring", feature = "rustls-aws-lc"),
    not(feature = "native-tls")
))]
fn parse_with_tls(url: &str, base: &str, encrypted: bool) -> Result<Config, LockError> {
    if !encrypted {
        return from_url(url);
    }
    // fred's parser never makes a connector.
    let plain = base.strip_suffix('s').unwrap_or(base);
    let rest = url.strip_prefix(base).unwrap_or_default();
    let mut config = from_url(&format!("{plain}{rest}"))?;
    config.tls = Some(tls::connector()?.into());
    Ok(config)
}

#[cfg(not(all(
    any(feature = "rustls-ring", feature = "rustls-aws-lc"),
    not(feature = "native-tls")
)))]
fn parse_with_tls(url: &str, _base: &str, _encrypted: bool) -> Result<Config, LockError> {
    from_url(url)
}

fn from_url(url: &str) -> Result<Config, LockError> {
    // Do not keep the parser's error as the source: it can quote the URL.
    Config::from_url(url).map_err(|_| {
        LockError::invalid_argument(
            "the Redis URL cannot be parsed; the form is \
             redis://[[username:]password@]host[:port][/database], and a Sentinel's needs \
             ?sentinelServiceName=",
        )
    })
}

/// Without a TLS feature fred would connect without encryption instead.
fn require_tls(requested: bool, configured: bool) -> Result<(), LockError> {
    if requested && !configured {
        return Err(LockError::invalid_argument(
            "the Redis URL requires TLS; enable one of the crate's TLS features",
        ));
    }
    Ok(())
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

fn require_one_slot(names: &Names, clustered: bool) -> Result<(), LockError> {
    if clustered && !names.share_one_slot() {
        return Err(during_setup(LockError::invalid_argument(format!(
            "on a cluster the prefix needs a hash tag, so that one node has all keys of a lock: \
             use `{{{}}}`",
            match names.prefix() {
                "" => crate::DEFAULT_PREFIX,
                prefix => prefix,
            }
        ))));
    }
    Ok(())
}

fn slot(names: &Names) -> Option<u16> {
    names
        .share_one_slot()
        .then(|| fred::util::redis_keyslot(names.prefix().as_bytes()))
}

fn during_setup(error: LockError) -> LockError {
    error.with_operation(Operation::Setup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_asks_for_tls_never_connects_without_it() {
        let error = require_tls(true, false).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        for (requested, configured) in [(true, true), (false, false), (false, true)] {
            require_tls(requested, configured).unwrap();
        }
        assert!(parse("rediss://host").unwrap().uses_tls(), "tests have TLS");
        assert!(!parse("redis://host").unwrap().uses_tls());
    }
}
