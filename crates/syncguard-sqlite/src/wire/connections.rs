//! [`Connections`]: the two connections of a store, or a pool of the application.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Sqlite, SqliteConnection, SqlitePool};
use syncguard_core::LockError;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{Stage, closed, is_busy, map, memory_ended, too_late};
use crate::place::Place;

/// A wait ends this long before the operation's deadline. So the error says what it waited for, and that
/// its outcome is known, before its caller stops waiting.
const MARGIN: Duration = Duration::from_millis(10);

/// How long an operation waits before it tries again while another connection has the file's lock. The lock
/// is free for moments only between the transactions of busy processes, and SQLite has no queue: only an
/// operation that asks often does not starve.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// Until when an operation with this deadline waits.
pub(super) fn until(deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(Instant::now());
    deadline
        .checked_sub(MARGIN.min(left / 4))
        .unwrap_or(deadline)
}

/// The turn, and its connection. `None` if the connections are a pool's, or if the connection was lost.
pub(super) type Turn = OwnedMutexGuard<Option<Own>>;

/// A connection of the backend's own.
pub(super) struct Own {
    connection: SqliteConnection,
    _open: Arc<()>,
}

impl Own {
    fn new(connection: SqliteConnection, open: &Arc<()>) -> Self {
        Self {
            connection,
            _open: Arc::clone(open),
        }
    }
}

/// Where connections come from.
///
/// Operations that write take turns, in the order in which they came. SQLite has one writer at a time
/// anyway. So a release never overtakes an acquire of the same id, even one whose caller has left.
pub(crate) struct Connections {
    origin: Origin,
    writer: Arc<Mutex<Option<Own>>>,
    /// For operations that only read, while another one writes. In memory the same as the writer: another
    /// connection would be another store.
    reader: Arc<Mutex<Option<Own>>>,
    /// Each of these two connections has a clone of it.
    open: Arc<()>,
    closed: AtomicBool,
}

enum Origin {
    /// The backend's own connections, opened like this.
    Own(Box<SqliteConnectOptions>),
    /// The application's, which the application uses, too.
    Given(SqlitePool),
}

impl Connections {
    /// Opens the backend's own.
    pub(crate) async fn open(
        target: SqliteConnectOptions,
        place: &Place,
        deadline: Instant,
    ) -> Result<Self, LockError> {
        let before = place.identity();
        let counted = Arc::new(());
        let writer = Own::new(open(&target, deadline).await?, &counted);
        let writer = Arc::new(Mutex::new(Some(writer)));
        let reader = match place {
            Place::Memory(_) => Arc::clone(&writer),
            Place::File(_) => {
                let reader = Own::new(open(&target, deadline).await?, &counted);
                Arc::new(Mutex::new(Some(reader)))
            }
        };
        place.remember_main(before)?;
        Ok(Self {
            origin: Origin::Own(Box::new(target)),
            writer,
            reader,
            open: counted,
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn given(pool: SqlitePool) -> Self {
        Self {
            origin: Origin::Given(pool),
            writer: Arc::default(),
            reader: Arc::default(),
            open: Arc::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Opens one more connection to the file.
    pub(crate) async fn open_another(
        &self,
        deadline: Instant,
    ) -> Result<SqliteConnection, LockError> {
        if self.is_closed() {
            return Err(closed());
        }
        match &self.origin {
            Origin::Own(target) => open(target, deadline).await,
            Origin::Given(pool) => open(&pool.connect_options(), deadline).await,
        }
    }

    /// Whether they are a pool's.
    pub(crate) fn are_given(&self) -> bool {
        matches!(self.origin, Origin::Given(_))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Waits for a turn. Operations that only read through a pool need none.
    pub(super) async fn turn(
        &self,
        writes: bool,
        until: Instant,
    ) -> Result<Option<Turn>, LockError> {
        let slot = match (&self.origin, writes) {
            (Origin::Given(_), false) => return Ok(None),
            // The writer's connection knows what it has written itself. The other one has to read it from the file.
            (Origin::Own(_), false) => match Arc::clone(&self.writer).try_lock_owned() {
                Ok(turn) => return Ok(Some(turn)),
                Err(_) => &self.reader,
            },
            (_, true) => &self.writer,
        };
        let turn = timeout_at(until, Arc::clone(slot).lock_owned()).await;
        turn.map(Some).map_err(|_| too_late())
    }

    /// The connection of a turn.
    pub(super) async fn connection(
        &self,
        turn: Option<Turn>,
        place: &Place,
        until: Instant,
    ) -> Result<Connection, LockError> {
        if self.is_closed() {
            return Err(closed());
        }
        match (&self.origin, turn) {
            (Origin::Own(target), Some(mut turn)) => {
                if turn.is_none() {
                    if Arc::ptr_eq(&self.writer, &self.reader) {
                        return Err(memory_ended());
                    }
                    let connection = open(target, until).await?;
                    // Nothing of this backend kept the side files, for example after the end of a runtime.
                    if Arc::strong_count(&self.open) == 1 {
                        place.forget_side_files();
                    }
                    *turn = Some(Own::new(connection, &self.open));
                }
                let in_memory = Arc::ptr_eq(&self.writer, &self.reader);
                Ok(Connection::Own(turn, in_memory))
            }
            (Origin::Given(pool), turn) => {
                let connecting = |error| map(error, Stage::Connecting);
                match timeout_at(until, pool.acquire()).await {
                    Ok(connection) => Ok(Connection::Given(turn, connection.map_err(connecting)?)),
                    Err(_) => Err(connecting(sqlx::Error::PoolTimedOut)),
                }
            }
            // Own connections are used in turns only.
            (Origin::Own(_), None) => Err(closed()),
        }
    }

    /// Closes the backend's own connections, and refuses operations from now on.
    pub(crate) async fn close(&self, deadline: Instant) -> Result<(), LockError> {
        self.closed.store(true, Ordering::SeqCst);
        for slot in [&self.writer, &self.reader] {
            let closing = async {
                match slot.lock().await.take() {
                    Some(own) => own.connection.close().await,
                    None => Ok(()),
                }
            };
            let ended = timeout_at(until(deadline), closing).await;
            let ended = ended.map_err(|_| too_late())?;
            ended.map_err(|error| map(error, Stage::Connecting))?;
        }
        Ok(())
    }
}

/// Opens a connection, and retries while others have the file's lock, for example to create it.
async fn open(
    target: &SqliteConnectOptions,
    deadline: Instant,
) -> Result<SqliteConnection, LockError> {
    let until = until(deadline);
    loop {
        let opened = timeout_at(until, target.connect()).await;
        match opened.map_err(|_| too_late())? {
            Err(error) if is_busy(&error) && Instant::now() + BUSY_PAUSE < until => {
                sleep(BUSY_PAUSE).await;
            }
            opened => return opened.map_err(|error| map(error, Stage::Connecting)),
        }
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Own(_) => f.write_str("Own"),
            Origin::Given(pool) => f
                .debug_struct("Given")
                .field("connections", &pool.size())
                .field("max_connections", &pool.options().get_max_connections())
                .finish(),
        }
    }
}

/// A connection in use, with its turn.
pub(super) enum Connection {
    /// The flag says whether the store is in memory, and so exists only in this connection.
    Own(Turn, bool),
    Given(Option<Turn>, PoolConnection<Sqlite>),
}

impl Connection {
    pub(super) fn get_mut(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        match self {
            Self::Own(turn, _) => match &mut **turn {
                Some(own) => Ok(&mut own.connection),
                None => Err(sqlx::Error::WorkerCrashed),
            },
            Self::Given(_, connection) => Ok(connection),
        }
    }

    pub(super) fn is_given(&self) -> bool {
        matches!(self, Self::Given(..))
    }

    /// Rolls back an open transaction. In memory the next turn does that: no other process waits for it.
    pub(super) fn roll_back(self) {
        if let Self::Own(mut turn, false) = self {
            // SQLite does that when it closes the connection.
            *turn = None;
        }
    }

    /// Has the application's pool close it.
    pub(super) fn close_on_drop(&mut self) {
        if let Self::Given(_, connection) = self {
            connection.close_on_drop();
        }
    }

    /// Returns the connection to its pool and keeps the turn.
    pub(super) fn into_turn(self) -> Option<Turn> {
        match self {
            Self::Own(turn, _) => Some(turn),
            Self::Given(turn, _) => turn,
        }
    }
}
