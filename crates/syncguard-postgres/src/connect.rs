//! How a [`PostgresBackend`] is made: from a URL, or over an application's pool.

use std::borrow::Cow;
use std::str::FromStr as _;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use syncguard_core::LockError;
use syncguard_core::observe::Operation;
use url::Url;

use crate::error::{Stage, map};
use crate::greeting::with_greeting;
use crate::wire::Connections;
use crate::{PostgresBackend, PostgresOptions};

const SCHEMES: [&str; 2] = ["postgres", "postgresql"];

/// The parameters of a URL that sqlx knows, besides `options[...]`.
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

/// The parameters of libpq that sqlx does not have, each with the values with which it is safe to ignore;
/// no values: any.
///
/// An operation on a server that is read-only fails, so `target_session_attrs` need not be checked.
const IGNORABLE: [(&str, &[&str]); 13] = [
    ("channel_binding", &["disable", "prefer"]),
    (
        "client_encoding",
        &["UTF8", "utf8", "UTF-8", "utf-8", "auto"],
    ),
    ("connect_timeout", &[]),
    ("fallback_application_name", &[]),
    ("gssencmode", &["disable", "prefer"]),
    ("keepalives", &[]),
    ("keepalives_count", &[]),
    ("keepalives_idle", &[]),
    ("keepalives_interval", &[]),
    ("sslcompression", &[]),
    ("sslsni", &["1"]),
    ("target_session_attrs", &["any", "read-write", "primary"]),
    ("tcp_user_timeout", &[]),
];

impl PostgresBackend {
    /// Connects to the server at a URL, with default options.
    ///
    /// # Errors
    /// As [`connect_with`](Self::connect_with).
    ///
    /// # Cancel safety
    /// Safe: a connection that was being opened is closed.
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::connect_with(url, PostgresOptions::new()).await
    }

    /// Connects to the server at a URL.
    ///
    /// It opens the first connection; operations open more as they need them. The URL's `sslmode`
    /// chooses TLS, if the application enabled one of the `tls-*` features, here or on `sqlx`.
    ///
    /// No statement waits longer than 500 ms in the server for another transaction; the operation then
    /// asks again until its deadline. `options[lock_timeout]` in the URL changes that, but not with
    /// [`transaction_pooler`](PostgresOptions::transaction_pooler), and not for an operation that is
    /// repeated after a conflict. Behind a pooler that refuses or ignores session settings, the limit does not
    /// hold for the table itself: such a wait ends 5 s after the caller has left.
    ///
    /// # Errors
    /// `InvalidArgument` if options or URL cannot work, if the URL asks for TLS without a feature for it,
    /// or if it has a parameter that sqlx does not support and that is not safe to ignore; `AuthFailed` if
    /// the server rejects the credentials; `RateLimited` if the server has no connection left;
    /// `ServiceUnavailable` if no server listens there, or no connection can be opened within 4 s. The
    /// source is the error of the last attempt.
    ///
    /// # Cancel safety
    /// Safe: a connection that was being opened is closed.
    pub async fn connect_with(url: &str, options: PostgresOptions) -> Result<Self, LockError> {
        let settings = options.check()?;
        let url = checked_url(url)?;
        let setup = |error: LockError| error.with_operation(Operation::Setup);
        let mut target = PgConnectOptions::from_str(&url)
            .map_err(|error| setup(map(error, Stage::Connecting { exhausted: false })))?;
        if settings.transaction_pooler {
            // By default PgBouncer refuses clients that set this.
            target = target.extra_float_digits(None);
        }
        let (limit, pooled) = (settings.max_connections, settings.transaction_pooler);
        match Connections::open(target.clone(), limit, pooled).await {
            Ok(connections) => Ok(Self::new(connections, settings)),
            Err(error) => Err(setup(with_greeting(error, &target).await)),
        }
    }

    /// Uses the application's own pool. It sends nothing yet.
    ///
    /// ```no_run
    /// use syncguard_core::Locks;
    /// use syncguard_postgres::sqlx::postgres::PgPoolOptions;
    /// use syncguard_postgres::{PostgresBackend, PostgresOptions};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = PgPoolOptions::new()
    ///     .max_connections(20)
    ///     .connect("postgres://app@localhost/app")
    ///     .await?;
    /// let locks = Locks::new(PostgresBackend::with_pool(pool.clone(), PostgresOptions::new())?);
    /// # Ok(()) }
    /// ```
    ///
    /// An operation takes one connection for as long as its statement runs. It waits for one until
    /// the pool's `acquire_timeout` (30 s by default) or its own deadline has passed; then it fails,
    /// with `RateLimited` if all connections are in use.
    ///
    /// The pool may hold connections on which the application left a transaction open. An operation
    /// rolls that transaction back first, so that a grant is committed and a read sees what others
    /// committed. That takes one round trip per operation.
    ///
    /// A backend made from a URL is faster: it needs no such round trip. This pool also pings a connection
    /// after each use, and before each use unless `test_before_acquire` is off. And in its sessions the
    /// server plans statements with the default settings: between two vacuums, a statement on a mostly
    /// empty table of locks can read all deleted rows. If the pool serves locks alone, set `enable_seqscan`
    /// and `jit` to `off` in its connect options to prevent that.
    ///
    /// A statement waits in the server for another transaction no longer than 500 ms, or than the pool's
    /// `lock_timeout` if that is shorter and the operation is not repeated after a conflict. It sets that for
    /// itself alone; the session's setting stays. The limit does not hold for the table itself: such a wait ends
    /// 5 s after the caller has left.
    ///
    /// While a caller waits for a key, the backend opens one extra connection, with the pool's connect options;
    /// and another one to end a server process that still waits, for a synchronous standby or a locked table,
    /// 5 s after its caller has left.
    ///
    /// If a firewall drops idle connections silently, sqlx's test of such a connection has no limit, and the
    /// operation fails at its deadline. Limit the test, and the operation gets another connection:
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use syncguard_postgres::sqlx::Connection as _;
    /// use syncguard_postgres::sqlx::postgres::PgPoolOptions;
    /// use tokio::time::timeout;
    ///
    /// let second = Duration::from_secs(1);
    /// let options = PgPoolOptions::new()
    ///     .test_before_acquire(false)
    ///     .before_acquire(move |connection, meta| {
    ///         Box::pin(async move {
    ///             let ping = timeout(second, connection.ping());
    ///             Ok(meta.idle_for < second || matches!(ping.await, Ok(Ok(()))))
    ///         })
    ///     });
    /// # let _ = options;
    /// ```
    ///
    /// After a failover, a pool keeps its connections to the old primary. An operation that finds a
    /// server read-only closes its own connection only, so at worst each connection fails once. A
    /// backend made from a URL closes all of its connections then.
    ///
    /// # Errors
    /// `InvalidArgument` if the options cannot work.
    pub fn with_pool(pool: PgPool, options: PostgresOptions) -> Result<Self, LockError> {
        Ok(Self::new(Connections::given(pool), options.check()?))
    }

    /// Opens connections with another password from now on, also those of a pool that the application
    /// passed. Open connections stay: the server does not ask them for a password again.
    ///
    /// Call it on a clone of the backend after the password of the role was changed. Until then,
    /// operations that need a new connection fail with `AuthFailed`; background releases are retried.
    ///
    /// ```no_run
    /// use syncguard_core::Locks;
    /// use syncguard_postgres::PostgresBackend;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let backend = PostgresBackend::connect("postgres://app:old@localhost/app").await?;
    /// let locks = Locks::new(backend.clone());
    /// // Later, when the password was rotated:
    /// backend.set_password("new");
    /// # let _ = locks; Ok(()) }
    /// ```
    pub fn set_password(&self, password: &str) {
        self.connections().set_password(password);
    }
}

/// Checks a URL, and removes the parameters that sqlx does not have and that are safe to ignore.
fn checked_url(text: &str) -> Result<Cow<'_, str>, LockError> {
    let bad =
        |message: String| LockError::invalid_argument(message).with_operation(Operation::Setup);
    // sqlx reports what is no URL.
    let Ok(mut url) = Url::parse(text) else {
        return Ok(Cow::Borrowed(text));
    };
    if !SCHEMES.contains(&url.scheme()) {
        let message = "a PostgreSQL URL must begin with postgres:// or postgresql://";
        return Err(bad(message.to_owned()));
    }
    let mut kept = Vec::new();
    let mut ignored = false;
    for (name, value) in url.query_pairs() {
        let is_name = |(ignorable, _): &&(&str, _)| *ignorable == name.as_ref();
        if name.starts_with("options[") || PARAMETERS.contains(&name.as_ref()) {
            kept.push((name.into_owned(), value.into_owned()));
        } else if let Some((name, values)) = IGNORABLE.iter().find(is_name) {
            if !values.is_empty() && !values.contains(&value.as_ref()) {
                let values = values.join("`, `");
                return Err(bad(format!(
                    "the URL's parameter `{name}` asks for something that sqlx does not \
                     support; remove it, or set it to `{values}`"
                )));
            }
            ignored = true;
        } else {
            // sqlx would log it with its value, such as a password under a misspelt name.
            let name = match name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c == '_' || c == '-')
            {
                true => format!("the URL's parameter `{name}` is not known"),
                false => "a parameter of the URL is not known".to_owned(),
            };
            return Err(bad(format!(
                "{name} to sqlx; for a password use `password`"
            )));
        }
    }
    if !ignored {
        return Ok(Cow::Borrowed(text));
    }
    url.set_query(None);
    if !kept.is_empty() {
        url.query_pairs_mut().extend_pairs(kept);
    }
    Ok(Cow::Owned(url.into()))
}

#[cfg(test)]
mod tests {
    use syncguard_core::ErrorCode;

    use super::*;

    #[test]
    fn parameters_that_are_safe_to_ignore_are_removed_and_the_others_stay() {
        let url = "postgres://app@h/d?connect_timeout=10&sslmode=disable&gssencmode=disable&\
                   target_session_attrs=read-write&keepalives=1&options[jit]=on";
        assert_eq!(
            checked_url(url).unwrap(),
            "postgres://app@h/d?sslmode=disable&options%5Bjit%5D=on"
        );
        let only = "postgresql://app:p%40ss@h/d?channel_binding=prefer";
        assert_eq!(checked_url(only).unwrap(), "postgresql://app:p%40ss@h/d");
        let none = "postgres://app@h/d?sslmode=disable";
        assert_eq!(checked_url(none).unwrap(), none);
    }

    #[test]
    fn the_error_of_another_parameter_names_it_and_not_its_value() {
        for (parameter, named) in [
            ("channel_binding=require", "channel_binding"),
            ("target_session_attrs=standby", "target_session_attrs"),
            ("gssencmode=require", "gssencmode"),
            ("client_encoding=LATIN1", "client_encoding"),
            ("passwd=hunter2", "passwd"),
            ("service=hunter2", "service"),
            ("hunter2", "password"),
        ] {
            let error = checked_url(&format!("postgres://app@h/d?{parameter}")).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument);
            let text = format!("{error} {error:?}");
            assert!(text.contains(named), "{text}");
            let value = parameter.rsplit('=').next().unwrap();
            assert!(!text.contains(value), "{text}");
        }
    }
}
