//! [`PostgresStore`] and how it is made.

use std::fmt;
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{Connection as _, PgPool};
use syncguard_core::{LockError, Operation};
use url::Url;

use crate::error::{Stage, map};
use crate::options::{PostgresOptions, Settings};
use crate::query::{Statement, Statements, Value, Verdict};
use crate::session::ask;

/// How long an operation waits for a connection of a pool that we made: less than the default
/// deadline of an operation, so that the error says what was missing.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);

/// A connection that was idle for longer is tried before it is used. The pool's own check would
/// double the round trips of every operation.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);

const CLEANUP_INTERVAL_MS: i64 = 1_000;

/// After that time, one more attempt, to learn what is wrong.
const LAST_ATTEMPT: Duration = Duration::from_secs(1);

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

/// Locks in a PostgreSQL database. Clones share one pool.
///
/// Wrap it in a [`PostgresBackend`](crate::PostgresBackend) to use it.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    pool: PgPool,
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
    /// It opens a pool and its first connection. TLS is as the URL's `sslmode` says, if the
    /// application enabled one of the `tls-*` features, here or on `sqlx`.
    ///
    /// # Errors
    /// `InvalidArgument` for options or a URL that cannot work or has a parameter that the driver does
    /// not know, `AuthFailed` if the server refuses the credentials, `ServiceUnavailable` if it
    /// cannot be reached within 4 s; what the last attempt came to is its source.
    ///
    /// # Cancel safety
    /// Safe: a connection that was under way is closed.
    pub async fn connect_with(url: &str, options: PostgresOptions) -> Result<Self, LockError> {
        let settings = options.check()?;
        let connecting = |error| {
            map(error, Stage::Connecting { exhausted: false }).with_operation(Operation::Setup)
        };
        check_url(url)?;
        let mut target = PgConnectOptions::from_str(url).map_err(connecting)?;
        if settings.transaction_pooler {
            // PgBouncer refuses clients that set this, unless it is told otherwise.
            target = target.extra_float_digits(None);
        }
        let pool = PgPoolOptions::new()
            .max_connections(settings.max_connections)
            .acquire_timeout(CONNECTION_TIMEOUT)
            .test_before_acquire(false)
            .before_acquire(|connection, meta| {
                Box::pin(async move {
                    if meta.idle_for > TRUSTED_IDLE {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_with(target.clone())
            .await;
        match pool {
            Ok(pool) => Ok(Self::new(pool, settings)),
            Err(error @ sqlx::Error::PoolTimedOut) => {
                Err(connecting(why_none_opened(&target).await.unwrap_or(error)))
            }
            Err(error) => Err(connecting(error)),
        }
    }

    /// Uses the application's own pool. Nothing is sent yet.
    ///
    /// Operations take a connection each for as long as their statement runs, and wait for one as
    /// long as the pool says (`acquire_timeout`, 30 s by default) or until their own deadline. For
    /// one round trip per operation disable the pool's `test_before_acquire`.
    ///
    /// # Errors
    /// `InvalidArgument` for options that cannot work.
    pub fn with_pool(pool: PgPool, options: PostgresOptions) -> Result<Self, LockError> {
        Ok(Self::new(pool, options.check()?))
    }

    fn new(pool: PgPool, settings: Settings) -> Self {
        let statements = Statements::new(&settings);
        Self {
            inner: Arc::new(Inner {
                pool,
                settings,
                statements,
                created: Instant::now(),
                next_cleanup: AtomicI64::new(0),
            }),
        }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.inner.pool
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
        ask(&self.inner.pool, pooled, statement, subject, values).await
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

/// What keeps connections from opening. The pool tries until its time is up, and does not say.
async fn why_none_opened(target: &PgConnectOptions) -> Option<sqlx::Error> {
    let attempt = PgConnection::connect_with(target);
    match tokio::time::timeout(LAST_ATTEMPT, attempt).await {
        Ok(Err(error)) => Some(error),
        // It has come back a moment too late; that it was away is still the answer.
        Ok(Ok(_)) | Err(_) => None,
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
        // Of the pool only its size: how it connects includes a password.
        f.debug_struct("PostgresStore")
            .field("settings", &self.inner.settings)
            .field("connections", &self.inner.pool.size())
            .finish_non_exhaustive()
    }
}
