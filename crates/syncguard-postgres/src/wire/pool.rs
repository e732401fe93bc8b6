//! [`OwnPool`]: connections of a store that was made from a URL.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection as _, Error};
use syncguard_core::LockError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{Stage, has_state, map};

/// How long an operation waits for a connection, opened or freed: less than the default deadline of
/// an operation, so that the error says what was missing.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);

/// Pauses between attempts to open a connection, while the server starts or is full.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A connection that was idle for longer is tried before it is used. To try it each time would
/// double the round trips of every operation.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);

/// How long such a try may take. A connection that was cut off without a word would use up the time
/// in which another can be opened.
const TRY_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection that nobody needed for so long is one too many.
const LONGEST_IDLE: Duration = Duration::from_mins(10);

/// An older connection is replaced, with what the server's process has gathered by then.
const LONGEST_LIFE: Duration = Duration::from_mins(30);

/// The server plans a statement by the size that its tables have then, and keeps the plan. A table
/// of locks is empty now and full of deleted rows a moment later: reading it whole looked cheap and
/// is dear. With the first setting, what has to read a table whole (a purge) counts as so costly
/// that the server would compile it, hence the second.
const PLANNING: [(&str, &str); 2] = [("enable_seqscan", "off"), ("jit", "off")];

/// What poolers answer that do not know a setting of the session: it cannot be kept apart from
/// those of other clients.
const UNKNOWN_SETTING: &[&str] = &["08P01", "0A000"];

/// Connections for operations of one store, opened as they are needed.
///
/// The driver's pool asks the server for a sign of life after every use, in a task of its own,
/// which is as much work as a look-up. This one takes a connection back as it is, from whoever
/// says that it is at rest.
pub(crate) struct OwnPool {
    target: PgConnectOptions,
    planned: Option<PgConnectOptions>,
    settings_refused: AtomicBool,
    /// Whether the last attempt to open a connection failed.
    unreachable: AtomicBool,
    /// Whether any attempt succeeded.
    reached: AtomicBool,
    limit: u32,
    places: Arc<Semaphore>,
    /// The one that was used last is at the back.
    idle: Mutex<VecDeque<Idle>>,
}

struct Idle {
    connection: PgConnection,
    opened: Instant,
    since: Instant,
}

impl OwnPool {
    pub(crate) fn new(target: PgConnectOptions, limit: u32, transaction_pooler: bool) -> Self {
        // Statements that are not kept are planned by what the table is like.
        let planned = (!transaction_pooler).then(|| target.clone().options(PLANNING));
        Self {
            target,
            planned,
            settings_refused: AtomicBool::new(false),
            unreachable: AtomicBool::new(false),
            reached: AtomicBool::new(false),
            limit,
            places: Arc::new(Semaphore::new(
                usize::try_from(limit).map_or(Semaphore::MAX_PERMITS, |limit| {
                    limit.min(Semaphore::MAX_PERMITS)
                }),
            )),
            idle: Mutex::default(),
        }
    }

    pub(crate) fn target(&self) -> &PgConnectOptions {
        &self.target
    }

    /// How many connections there are, those included that are being opened.
    pub(crate) fn size(&self) -> usize {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        limit.saturating_sub(self.places.available_permits()) + self.idle().len()
    }

    /// A connection that works, as far as is known.
    pub(crate) async fn take(self: &Arc<Self>) -> Result<Leased, LockError> {
        let deadline = Instant::now() + CONNECTION_TIMEOUT;
        let place = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => place,
            Err(_) => self.wait_for_place(deadline).await?,
        };
        let (connection, opened) = match self.idle_that_lives(deadline).await {
            Some(idle) => (idle.connection, idle.opened),
            None => (self.open(deadline).await?, Instant::now()),
        };
        Ok(Leased {
            connection,
            opened,
            place,
            pool: Arc::clone(self),
        })
    }

    async fn wait_for_place(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, LockError> {
        let place = Arc::clone(&self.places).acquire_owned();
        if let Ok(Ok(place)) = timeout_at(deadline, place).await {
            return Ok(place);
        }
        // Those that hold the places may be waiting themselves: for the server.
        let exhausted = !self.unreachable.load(Ordering::Relaxed);
        Err(map(Error::PoolTimedOut, Stage::Connecting { exhausted }))
    }

    async fn idle_that_lives(&self, deadline: Instant) -> Option<Idle> {
        loop {
            let mut idle = self.idle().pop_back()?;
            if idle.since.elapsed() <= TRUSTED_IDLE {
                return Some(idle);
            }
            let limit = deadline.min(Instant::now() + TRY_TIMEOUT);
            match timeout_at(limit, idle.connection.ping()).await {
                Ok(Ok(())) => return Some(idle),
                Ok(Err(_)) => {}
                // The others would hang as well.
                Err(_) => return None,
            }
        }
    }

    async fn open(&self, deadline: Instant) -> Result<PgConnection, LockError> {
        let opened = self.try_to_open(deadline).await;
        self.unreachable.store(opened.is_err(), Ordering::Relaxed);
        self.reached.fetch_or(opened.is_ok(), Ordering::Relaxed);
        opened.map_err(|error| map(error, Stage::Connecting { exhausted: false }))
    }

    /// Tries for as long as a server that starts, or makes room, could still be in time. The error
    /// is that of the last attempt.
    async fn try_to_open(&self, deadline: Instant) -> Result<PgConnection, Error> {
        let mut pause = FIRST_PAUSE;
        let mut last = Error::PoolTimedOut;
        loop {
            match timeout_at(deadline, self.connect()).await {
                Ok(Err(error)) if self.is_transient(&error) => last = error,
                Ok(outcome) => return outcome,
                Err(_) => return Err(last),
            }
            self.unreachable.store(true, Ordering::Relaxed);
            if Instant::now() + pause >= deadline {
                return Err(last);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect(&self) -> Result<PgConnection, Error> {
        if let Some(planned) = &self.planned
            && !self.settings_refused.load(Ordering::Relaxed)
        {
            match PgConnection::connect_with(planned).await {
                Err(error) if has_state(&error, UNKNOWN_SETTING) => {
                    self.settings_refused.store(true, Ordering::Relaxed);
                }
                outcome => return outcome,
            }
        }
        PgConnection::connect_with(&self.target).await
    }

    fn is_transient(&self, error: &Error) -> bool {
        match error {
            // A server that was there will listen again. Where none was ever seen, the address is
            // wrong, rather.
            Error::Io(io) if io.kind() == io::ErrorKind::ConnectionRefused => {
                self.reached.load(Ordering::Relaxed)
            }
            Error::Database(database) => database.is_transient_in_connect_phase(),
            _ => false,
        }
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        // Each use leaves it in order.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for OwnPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Where it connects to includes a password.
        f.debug_struct("OwnPool").finish_non_exhaustive()
    }
}

/// A connection in use. It is closed when this is dropped, wherever that is.
pub(crate) struct Leased {
    connection: PgConnection,
    opened: Instant,
    place: OwnedSemaphorePermit,
    pool: Arc<OwnPool>,
}

impl Leased {
    /// Leaves a connection that is at rest to the next operation.
    pub(crate) fn give_back(self) {
        let now = Instant::now();
        if now - self.opened > LONGEST_LIFE {
            return;
        }
        self.pool.unreachable.store(false, Ordering::Relaxed);
        let mut idle = self.pool.idle();
        while idle
            .front()
            .is_some_and(|one| now - one.since > LONGEST_IDLE)
        {
            idle.pop_front();
        }
        idle.push_back(Idle {
            connection: self.connection,
            opened: self.opened,
            since: now,
        });
        drop(idle);
        // Whoever gets the place finds the connection.
        drop(self.place);
    }
}

impl Deref for Leased {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Leased {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}
