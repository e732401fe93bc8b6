//! [`Connections`]: the pool that operations take their connections from.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Error, PgConnection, PgPool, Postgres};
use syncguard_core::LockError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::hanging::{Hanging, Sent, ServerProcess};
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

/// A semaphore has so many permits for a pool of `limit` connections.
pub(super) fn permits(limit: u32) -> usize {
    usize::try_from(limit).map_or(Semaphore::MAX_PERMITS, |limit| {
        limit.min(Semaphore::MAX_PERMITS)
    })
}

/// Where connections come from.
pub(crate) struct Connections {
    source: Arc<Source>,
}

struct Source {
    pool: Pool,
    hanging: Hanging,
}

enum Pool {
    /// The backend's own pool.
    Own(Arc<OwnPool>),
    /// The application's pool, which the application uses, too.
    Given(GivenPool),
}

struct GivenPool {
    pool: PgPool,
    /// How many operations may have a connection, or wait until their server process has ended.
    places: Arc<Semaphore>,
    /// Whether the backend was closed; the pool stays open.
    closed: AtomicBool,
    /// Whether the last attempt to open a connection failed.
    unreachable: AtomicBool,
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
        let first = pool.acquire(Instant::now() + OPEN_TIMEOUT * 2).await?;
        first.return_to_pool();
        Ok(Self::of(Pool::Own(pool), limit))
    }

    pub(crate) fn given(pool: PgPool) -> Self {
        let limit = pool.options().get_max_connections();
        let given = GivenPool {
            pool,
            places: Arc::new(Semaphore::new(permits(limit))),
            closed: AtomicBool::new(false),
            unreachable: AtomicBool::new(false),
        };
        Self::of(Pool::Given(given), limit)
    }

    fn of(pool: Pool, limit: u32) -> Self {
        let hanging = Hanging::new(limit);
        Self {
            source: Arc::new(Source { pool, hanging }),
        }
    }

    /// Whether nobody else uses these connections.
    pub(super) fn are_own(&self) -> bool {
        matches!(self.source.pool, Pool::Own(_))
    }

    /// How to open an extra connection.
    pub(crate) fn target(&self) -> PgConnectOptions {
        self.source.pool.target()
    }

    /// Opens connections with this password from now on.
    pub(crate) fn set_password(&self, password: &str) {
        match &self.source.pool {
            Pool::Own(pool) => pool.set_password(password),
            Pool::Given(GivenPool { pool, .. }) => {
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
        let Source { pool, hanging } = &*self.source;
        loop {
            let permit = match writes {
                true => hanging.permit(until(deadline)).await?,
                false => None,
            };
            let pooled = match pool {
                Pool::Own(pool) => pool.acquire(deadline).await.map(Pooled::Own),
                Pool::Given(pool) => {
                    let given = pool.acquire(deadline).await;
                    given.map(|(connection, place)| Pooled::Given(connection, place))
                }
            };
            let connection = Connection {
                pooled: pooled?,
                source: Arc::clone(&self.source),
                permit,
            };
            // Commits may have begun to hang during the wait.
            if connection.permit.is_some() || !writes || !hanging.were_seen() {
                return Ok(connection);
            }
            connection.return_to_pool();
        }
    }

    /// Closes the backend's own connections, and refuses to give out any from now on.
    pub(crate) async fn close(&self, deadline: Instant) -> Result<(), LockError> {
        match &self.source.pool {
            Pool::Own(pool) => pool.close(until(deadline)).await,
            Pool::Given(GivenPool { closed, .. }) => {
                closed.store(true, Ordering::SeqCst);
                Ok(())
            }
        }
    }
}

impl Pool {
    fn target(&self) -> PgConnectOptions {
        match self {
            Self::Own(pool) => pool.target(),
            Self::Given(GivenPool { pool, .. }) => (*pool.connect_options()).clone(),
        }
    }
}

impl GivenPool {
    async fn acquire(
        &self,
        deadline: Instant,
    ) -> Result<(PoolConnection<Postgres>, OwnedSemaphorePermit), LockError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(closed());
        }
        let place = self.place(deadline).await?;
        Ok((self.connection(deadline).await?, place))
    }

    async fn place(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, LockError> {
        let place = timeout_at(until(deadline), Arc::clone(&self.places).acquire_owned());
        if let Ok(Ok(Ok(place))) = timeout(self.pool.options().get_acquire_timeout(), place).await {
            return Ok(place);
        }
        let exhausted = !self.unreachable.load(Ordering::Relaxed);
        Err(map(Error::PoolTimedOut, Stage::Connecting { exhausted }))
    }

    async fn connection(&self, deadline: Instant) -> Result<PoolConnection<Postgres>, LockError> {
        let pool = &self.pool;
        let idle = pool.num_idle();
        let mut acquired = pin!(pool.acquire());
        let first = poll_fn(|cx| Poll::Ready(acquired.as_mut().poll(cx))).await;
        // sqlx does not say whether it waits for a connection in use, or tests one that was idle.
        let tests = pool.num_idle() < idle;
        let is_full = || pool.size() >= pool.options().get_max_connections();
        let opens = || !tests && !is_full();
        let acquired = match first {
            Poll::Ready(acquired) => acquired,
            Poll::Pending => match timeout_at(until(deadline), &mut acquired).await {
                Ok(acquired) => acquired,
                Err(_) if opens() => match timeout_at(deadline, acquired).await {
                    Ok(acquired) => acquired,
                    Err(_) => {
                        self.unreachable.store(true, Ordering::Relaxed);
                        return Err(too_late());
                    }
                },
                Err(_) => Err(Error::PoolTimedOut),
            },
        };
        // A test, or a wait for a connection in use, says nothing about the server to other operations.
        if !matches!(acquired, Err(Error::PoolTimedOut)) || opens() {
            self.unreachable.store(acquired.is_err(), Ordering::Relaxed);
        }
        acquired.map_err(|error| {
            let reachable = !tests && !self.unreachable.load(Ordering::Relaxed);
            let exhausted = reachable && is_full();
            map(error, Stage::Connecting { exhausted })
        })
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // How connections are made includes a password.
        match &self.source.pool {
            Pool::Own(pool) => f
                .debug_struct("Own")
                .field("connections", &pool.size())
                .field("max_connections", &pool.limit())
                .finish(),
            Pool::Given(GivenPool { pool, .. }) => f
                .debug_struct("Given")
                .field("connections", &pool.size())
                .field("max_connections", &pool.options().get_max_connections())
                .finish(),
        }
    }
}

/// A connection of either pool, in use.
pub(super) struct Connection {
    pooled: Pooled,
    source: Arc<Source>,
    permit: Option<OwnedSemaphorePermit>,
}

enum Pooled {
    Own(PooledConnection),
    Given(PoolConnection<Postgres>, OwnedSemaphorePermit),
}

impl Connection {
    pub(super) fn get_mut(&mut self) -> &mut PgConnection {
        match &mut self.pooled {
            Pooled::Own(connection) => connection,
            Pooled::Given(connection, _) => connection,
        }
    }

    /// The server process, if it was asked for when the connection was opened.
    pub(super) fn process(&self) -> Option<Arc<ServerProcess>> {
        match &self.pooled {
            Pooled::Own(connection) => connection.process(),
            Pooled::Given(..) => None,
        }
    }

    /// Whether the session has a `lock_timeout` for the backend's statements.
    pub(super) fn limits_waits(&self) -> bool {
        match &self.pooled {
            Pooled::Own(connection) => connection.limits_waits(),
            Pooled::Given(..) => false,
        }
    }

    /// Makes a connection at rest available to the next operation.
    pub(super) fn return_to_pool(self) {
        match self.pooled {
            Pooled::Own(connection) => connection.return_to_pool(),
            // sqlx's pool spawns a task that takes it back.
            Pooled::Given(connection, _) => drop(connection),
        }
    }

    /// Closes a connection to a server that serves no longer, and those that were opened before.
    pub(super) fn close_with_others(self) {
        match self.pooled {
            Pooled::Own(connection) => connection.close_with_others(),
            // The others are the application's.
            Pooled::Given(..) => self.close(),
        }
    }

    /// Closes the connection, then ends the server process if what was sent to it hangs there. The
    /// connection's place stays in use meanwhile.
    pub(super) async fn end(self, process: &ServerProcess, sent: &Sent) {
        let Source { pool, hanging } = &*self.source;
        // A pooler that is full then has room for an extra connection.
        let _place = match self.pooled {
            Pooled::Own(connection) => connection.disconnect(),
            Pooled::Given(connection, place) => {
                drop(connection.detach());
                place
            }
        };
        hanging.end(process, sent, &pool.target()).await;
    }

    pub(super) fn close(self) {
        match self.pooled {
            Pooled::Own(connection) => drop(connection),
            Pooled::Given(mut connection, _) => connection.close_on_drop(),
        }
    }
}
