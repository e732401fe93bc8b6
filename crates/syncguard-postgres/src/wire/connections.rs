//! [`Connections`]: the pool that operations take their connections from.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Error, PgConnection, PgPool, Postgres};
use syncguard_core::LockError;
use tokio::time::{Instant, timeout_at};

use super::pool::{OPEN_TIMEOUT, OwnPool, PooledConnection, closed};
use crate::error::{Stage, map, too_late};

/// A wait for other operations ends this long before the operation's own deadline. So the error says
/// what it waited for, and that its outcome is known, before its caller stops waiting.
const MARGIN: Duration = Duration::from_millis(10);

/// Until when an operation with this deadline waits for other operations.
pub(crate) fn until(deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(Instant::now());
    deadline
        .checked_sub(MARGIN.min(left / 4))
        .unwrap_or(deadline)
}

/// Where connections come from.
pub(crate) enum Connections {
    /// The backend's own pool.
    Own(Arc<OwnPool>),
    /// The application's pool, which the application uses, too.
    Given {
        pool: PgPool,
        /// Whether the backend was closed; the pool stays open.
        closed: AtomicBool,
    },
}

impl Connections {
    /// A pool of the backend's own, with one connection open.
    pub(crate) async fn open(
        target: PgConnectOptions,
        limit: u32,
        transaction_pooler: bool,
    ) -> Result<Self, LockError> {
        let pool = Arc::new(OwnPool::new(target, limit, transaction_pooler));
        // So late that OPEN_TIMEOUT ends the attempts, and the error says why they failed.
        let first = pool
            .acquire(false, Instant::now() + OPEN_TIMEOUT * 2)
            .await?;
        first.return_to_pool();
        Ok(Self::Own(pool))
    }

    pub(crate) fn given(pool: PgPool) -> Self {
        let closed = AtomicBool::new(false);
        Self::Given { pool, closed }
    }

    /// Whether nobody else uses these connections.
    pub(super) fn are_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// How to open a connection beside the pool.
    pub(crate) fn target(&self) -> PgConnectOptions {
        match self {
            Self::Own(pool) => pool.target(),
            Self::Given { pool, .. } => (*pool.connect_options()).clone(),
        }
    }

    /// Opens connections with this password from now on.
    pub(crate) fn set_password(&self, password: &str) {
        match self {
            Self::Own(pool) => pool.set_password(password),
            Self::Given { pool, .. } => {
                pool.set_connect_options(self.target().password(password));
            }
        }
    }

    /// Takes a connection. Fails by `deadline`, without having sent a statement.
    pub(super) async fn acquire(
        &self,
        writes: bool,
        deadline: Instant,
    ) -> Result<Connection, LockError> {
        match self {
            Self::Own(pool) => pool.acquire(writes, deadline).await.map(Connection::Own),
            Self::Given { closed: flag, .. } if flag.load(Ordering::SeqCst) => Err(closed()),
            Self::Given { pool, .. } => from_given(pool, deadline).await.map(Connection::Given),
        }
    }

    /// Closes the backend's own connections, and refuses to give out any from now on.
    pub(crate) async fn close(&self, deadline: Instant) -> Result<(), LockError> {
        match self {
            Self::Own(pool) => pool.close(until(deadline)).await,
            Self::Given { closed, .. } => {
                closed.store(true, Ordering::SeqCst);
                Ok(())
            }
        }
    }
}

async fn from_given(
    pool: &PgPool,
    deadline: Instant,
) -> Result<PoolConnection<Postgres>, LockError> {
    let is_exhausted = || pool.size() >= pool.options().get_max_connections();
    let connecting = |error| {
        let exhausted = is_exhausted();
        map(error, Stage::Connecting { exhausted })
    };
    let mut acquired = pin!(pool.acquire());
    if let Ok(acquired) = timeout_at(until(deadline), &mut acquired).await {
        return acquired.map_err(connecting);
    }
    if is_exhausted() {
        return Err(connecting(Error::PoolTimedOut));
    }
    // The pool is opening a connection.
    match timeout_at(deadline, acquired).await {
        Ok(acquired) => acquired.map_err(connecting),
        Err(_) => Err(too_late()),
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // How connections are made includes a password.
        match self {
            Self::Own(pool) => f
                .debug_struct("Own")
                .field("connections", &pool.size())
                .field("max_connections", &pool.limit())
                .finish(),
            Self::Given { pool, .. } => f
                .debug_struct("Given")
                .field("connections", &pool.size())
                .field("max_connections", &pool.options().get_max_connections())
                .finish(),
        }
    }
}

/// A connection of either pool, in use.
pub(super) enum Connection {
    Own(PooledConnection),
    Given(PoolConnection<Postgres>),
}

impl Connection {
    pub(super) fn get_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Own(connection) => connection,
            Self::Given(connection) => connection,
        }
    }

    /// Makes a connection at rest available to the next operation.
    pub(super) fn return_to_pool(self) {
        match self {
            Self::Own(connection) => connection.return_to_pool(),
            // sqlx's pool spawns a task that takes it back.
            Self::Given(connection) => drop(connection),
        }
    }

    /// Closes a connection to a server that serves no longer, and those that were opened before.
    pub(super) fn close_with_others(self) {
        match self {
            Self::Own(connection) => connection.close_with_others(),
            // The others are the application's.
            Self::Given(_) => self.close(),
        }
    }

    /// Ends the server process if its statement is a commit that hangs; only of the backend's own connections.
    pub(super) async fn end_hanging_commit(&mut self) {
        if let Self::Own(connection) = self {
            connection.end_hanging_commit().await;
        }
    }

    pub(super) fn close(self) {
        match self {
            Self::Own(connection) => drop(connection),
            Self::Given(mut connection) => connection.close_on_drop(),
        }
    }
}
