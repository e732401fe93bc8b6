//! [`PostgresStore`] and how it is made.

use std::fmt;
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use syncguard_core::{LockError, Operation};
use url::Url;

use crate::error::{Stage, map};
use crate::options::{PostgresOptions, Settings};
use crate::pool::OwnPool;
use crate::query::{Statement, Statements, Value, Verdict};
use crate::session::{Connections, ask};

const CLEANUP_INTERVAL_MS: i64 = 1_000;

const SCHEMES: [&str; 2] = ["postgres", "postgresql"];

/// What the driver knows in a URL, besides `options[...]`.
const PARAMETERS: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// Locks in a PostgreSQL database. Clones share their connections.
///
/// Wrap it in a [`PostgresBackend`](crate::PostgresBackend) to use it.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Connections,
    settings: Settings,
    statements: Statements,
    created: Instant,
    /// Milliseconds since `created`.
    next_cleanup: AtomicI64,
}

impl PostgresStore {
    /// Connects to the server at a URL, with default options.
    ///
    /// # Errors
    /// As [`connect_with`](Self::connect_with).
    ///
    /// # Cancel safety
    /// Safe: a connection that was under way is closed.
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::connect_with(url, PostgresOptions::new()).await
    }

    /// Connects to the server at a URL.
    ///
    /// It opens the first connection, and more as operations need them. TLS is as the URL's `sslmode`
    /// says, if the application enabled one of the `tls-*` features, here or on `sqlx`.
    ///
    /// # Errors
    /// `InvalidArgument` for options or a URL that cannot work, asks for TLS without a feature for it,
    /// or has a parameter that the driver does not know; `AuthFailed` if the server refuses the
    /// credentials; `RateLimited` if it has no connection to spare; `ServiceUnavailable` if nobody
    /// listens there, or no connection can be opened within 4 s. What the last attempt came to is its
    /// source.
    ///
    /// # Cancel safety
    /// Safe: a connection that was under way is closed.
    pub async fn connect_with(url: &str, options: PostgresOptions) -> Result<Self, LockError> {
        let settings = options.check()?;
        check_url(url)?;
        let setup = |error: LockError| error.with_operation(Operation::Setup);
        let mut target = PgConnectOptions::from_str(url)
            .map_err(|error| setup(map(error, Stage::Connecting { exhausted: false })))?;
        if settings.transaction_pooler {
            // PgBouncer refuses clients that set this, unless it is told otherwise.
            target = target.extra_float_digits(None);
        }
        let (limit, pooled) = (settings.max_connections, settings.transaction_pooler);
        let pool = Arc::new(OwnPool::new(target, limit, pooled));
        pool.take().await.map_err(setup)?.give_back();
        Ok(Self::new(Connections::Own(pool), settings))
    }

    /// Uses the application's own pool. Nothing is sent yet.
    ///
    /// Operations take a connection each for as long as their statement runs, and wait for one as
    /// long as the pool says (`acquire_timeout`, 30 s by default) or until their own deadline.
    ///
    /// A store that is made from a URL is faster. This pool tries a connection before each use,
    /// unless `test_before_acquire` is off, and after each use in any case. And its sessions plan as
    /// the server sees fit: between two vacuums, statements on a table of locks that is mostly empty
    /// can come to read all of what was deleted. Where the pool serves locks alone, `enable_seqscan`
    /// and `jit` off in its connect options prevent that.
    ///
    /// # Errors
    /// `InvalidArgument` for options that cannot work.
    pub fn with_pool(pool: PgPool, options: PostgresOptions) -> Result<Self, LockError> {
        Ok(Self::new(Connections::Given(pool), options.check()?))
    }

    fn new(connections: Connections, settings: Settings) -> Self {
        let statements = Statements::new(&settings);
        Self {
            inner: Arc::new(Inner {
                connections,
                settings,
                statements,
                created: Instant::now(),
                next_cleanup: AtomicI64::new(0),
            }),
        }
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.inner.connections
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    pub(crate) fn statements(&self) -> &Statements {
        &self.inner.statements
    }

    pub(crate) async fn ask(
        &self,
        statement: &Statement,
        subject: &str,
        values: &[Value<'_>],
    ) -> Result<Verdict, LockError> {
        let pooled = self.inner.settings.transaction_pooler;
        let connections = &self.inner.connections;
        ask(connections, pooled, statement, subject, values).await
    }

    /// Clears a key's expired row away in the background, unless that was done a moment ago.
    pub(crate) fn clean_later(&self, storage_key: String) {
        let elapsed = self.inner.created.elapsed().as_millis();
        let now = i64::try_from(elapsed).unwrap_or(i64::MAX);
        let due = self.inner.next_cleanup.load(Ordering::Relaxed);
        let next = now.saturating_add(CLEANUP_INTERVAL_MS);
        let won = now >= due
            && self
                .inner
                .next_cleanup
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !won {
            return;
        }
        let store = self.clone();
        tokio::spawn(async move {
            let clean_key = &store.inner.statements.clean_key;
            if let Err(error) = store.ask(clean_key, &storage_key, &[]).await {
                tracing::debug!(code = %error.code(), "an expired lock was not cleared away");
            }
        });
    }
}

fn check_url(url: &str) -> Result<(), LockError> {
    // What is no URL, the driver says.
    let Ok(url) = Url::parse(url) else {
        return Ok(());
    };
    if !SCHEMES.contains(&url.scheme()) {
        let message = "a PostgreSQL URL begins with postgres:// or postgresql://";
        return Err(LockError::invalid_argument(message).with_operation(Operation::Setup));
    }
    // The driver logs parameters that it does not know, with their values: a password among them,
    // if its name is misspelt.
    let mut names = url.query_pairs().map(|(name, _)| name);
    if names.all(|name| name.starts_with("options[") || PARAMETERS.contains(&name.as_ref())) {
        return Ok(());
    }
    let message = "the URL has a parameter that is not known; a password's is called `password`";
    Err(LockError::invalid_argument(message).with_operation(Operation::Setup))
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of the connections only their number: how they are made includes a password.
        f.debug_struct("PostgresStore")
            .field("settings", &self.inner.settings)
            .field("connections", &self.inner.connections.size())
            .finish_non_exhaustive()
    }
}
