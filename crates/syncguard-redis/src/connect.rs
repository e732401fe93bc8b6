//! Makes a [`RedisBackend`]: connects, or uses a given client.

use std::time::Duration;

use fred::clients::{Client, Pool};
use fred::interfaces::ClientLike as _;
use fred::types::Builder;
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, TcpConfig, UnresponsiveConfig,
};
use syncguard_core::observe::Operation;
use syncguard_core::{ErrorCode, LockError};

use crate::error::connect_error;
use crate::names::Names;
use crate::wire::{Clients, Connection};
use crate::{RedisBackend, RedisOptions};

/// Delays between attempts to reconnect, in milliseconds: first, last, and growth.
///
/// The first one is short: until fred reconnects for the first time, it takes the broken connection for
/// a good one and queues commands.
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
    /// refuses, `ServiceUnavailable` or `NetworkTimeout` if no server answers. No text has the URL's
    /// password.
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
        let client = build(config, timeout)?;

        let connection = open(&client, timeout).await?;
        let clients = Clients::new(vec![client], Some(connection), slot(&names), timeout);
        Ok(Self::from_parts(clients, names, cleanup_in_is_locked))
    }

    /// Uses a client that the application configured and connected.
    ///
    /// The client's tasks remain the application's, and nothing here closes it. The backend sends each
    /// command once, and a command fails at once while there is no connection, whatever the client's
    /// own configuration says. Give the client a reconnection policy.
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
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    let (base, _) = scheme.split_once(['-', '+']).unwrap_or((scheme, ""));
    let encrypted = match base {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => {
            return Err(LockError::invalid_argument(
                "a Redis URL begins with redis:// or rediss://",
            ));
        }
    };
    // Without the parser's error as the source: it can quote the URL.
    let config = Config::from_url(url)
        .map_err(|_| LockError::invalid_argument("the Redis URL cannot be parsed"))?;
    require_tls(encrypted, config.uses_tls())?;
    Ok(config)
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

/// Connects a client. Dropped, the connection ends.
pub(crate) async fn open(client: &Client, timeout: Duration) -> Result<Connection, LockError> {
    let connection = established(client, Connection(client.connect()));
    let connection = tokio::time::timeout(timeout, connection).await;
    connection.unwrap_or_else(|_| {
        let message = format!("Redis did not answer within {timeout:.1?}");
        let error = LockError::new(ErrorCode::NetworkTimeout, message);
        Err(during_setup(error))
    })
}

pub(crate) fn build(config: Config, timeout: Duration) -> Result<Client, LockError> {
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
        // Without this, a connection whose peer fell silent would stay until TCP gives up.
        unresponsive: UnresponsiveConfig {
            max_timeout: Some(timeout),
            interval: (timeout / 4).max(Duration::from_millis(10)),
        },
        tcp: TcpConfig {
            nodelay: Some(true),
            ..TcpConfig::default()
        },
        ..ConnectionConfig::default()
    })
    .build()
    .map_err(|error| connect_error(&error))
}

/// Waits until the first connection is established or has failed.
async fn established(client: &Client, mut connection: Connection) -> Result<Connection, LockError> {
    // Any reply to the queued PING means that there is a connection, even a denied permission.
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
