//! Makes a [`RedisBackend`]: connects, or uses a given client.

#[cfg(all(
    any(feature = "rustls-ring", feature = "rustls-aws-lc"),
    not(feature = "native-tls")
))]
mod tls;

use std::time::Duration;

use fred::clients::{Client, Pool};
use fred::interfaces::ClientLike as _;
use fred::types::config::{Config, ServerConfig};
use syncguard_core::LockError;

use crate::names::Names;
use crate::wire::{Clients, during_setup, open};
use crate::{RedisBackend, RedisOptions};

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

#[cfg(test)]
mod tests {
    use syncguard_core::ErrorCode;

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
