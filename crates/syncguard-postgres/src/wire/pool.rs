//! [`OwnPool`]: the connections of a backend that was made from a URL.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection as _, Error, Row as _};
use syncguard_core::{ErrorCode, LockError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use super::connections::{permits, until};
use super::hanging::{ServerProcess, server_process};
use super::session::LOCK_TIMEOUT_MS;
use crate::error::{Stage, has_state, map, too_late};

/// The longest that one operation tries to open a connection: less than the default operation
/// timeout, so that the error says what was missing.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(4);

/// Pauses between attempts to open a connection, while the server starts or is full.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A connection that was idle for longer is pinged before it is used. To ping it each time would
/// double the round trips of every operation.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);

/// The longest that such a ping may take. A connection that was cut off silently would use up the time in
/// which another can be opened.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection that was idle for longer is closed.
const LONGEST_IDLE: Duration = Duration::from_mins(10);

/// An older connection is replaced, and with it the memory that its server process has accumulated.
const LONGEST_LIFE: Duration = Duration::from_mins(30);

/// The settings of the backend's sessions.
///
/// The server plans a statement by the current size of its tables and keeps the plan. A table of locks is
/// empty at one moment and full of deleted rows at the next: a sequential scan looks cheap when it is
/// planned and is expensive later. With sequential scans off, a purge, which needs one, seems so expensive
/// that the server would compile it; so `jit` is off, too.
const SETTINGS: [(&str, &str); 2] = [("enable_seqscan", "off"), ("jit", "off")];

/// Set to [`LOCK_TIMEOUT_MS`] unless the URL sets it.
const LOCK_TIMEOUT: &str = "lock_timeout";

/// [`LOCK_TIMEOUT_MS`] as the server shows it.
const LOCK_TIMEOUT_SHOWN: &str = "500ms";

/// The value of [`LOCK_TIMEOUT`] with which a statement waits without limit.
const NO_LOCK_TIMEOUT: &str = "0";

/// What a session is asked for when it is opened.
const PROCESS_AND_LOCK_TIMEOUT: &str = concat!(
    server_process!(),
    ", pg_catalog.current_setting('lock_timeout')"
);

/// The SQLSTATEs of poolers that refuse a session setting because they cannot keep it apart from
/// other clients' settings. A pooler that is full has one of them, too.
const UNKNOWN_SETTING: &[&str] = &["08P01", "0A000"];

/// The SQLSTATE of a statement that was cancelled.
const CANCELLED: &[&str] = &["57014"];

/// The startup parameter that session settings are sent in. PgBouncer names it when it refuses them.
const STARTUP_OPTIONS: &str = "options";

/// The connections of one backend, opened as operations need them.
///
/// sqlx's pool pings the server after every use, in a task of its own, which costs as much as a
/// lookup. This pool accepts a returned connection without a ping: only sessions at rest return theirs.
pub(crate) struct OwnPool {
    target: Mutex<PgConnectOptions>,
    /// Whether its sessions have settings of their own.
    configured: bool,
    settings_refused: AtomicBool,
    /// Whether any session was opened with them.
    settings_accepted: AtomicBool,
    /// Whether the last attempt to open a connection failed.
    unreachable: AtomicBool,
    /// Whether any attempt succeeded.
    reached: AtomicBool,
    /// Set before `idle` is emptied for the last time, and read under its lock.
    closed: AtomicBool,
    /// Connections of an earlier generation are closed instead of being used again.
    generation: AtomicU64,
    limit: u32,
    places: Arc<Semaphore>,
    /// The one that was used last is at the back.
    idle: Mutex<VecDeque<Idle>>,
}

struct Open {
    connection: PgConnection,
    /// The server process, if it is known. Behind a pooler it can be another client's at the next moment.
    process: Option<Arc<ServerProcess>>,
    /// Whether the session has a `lock_timeout` of the backend or the URL.
    limits_waits: bool,
    since: Instant,
    generation: u64,
}

struct Idle {
    open: Open,
    since: Instant,
}

impl OwnPool {
    pub(crate) fn new(target: PgConnectOptions, limit: u32, transaction_pooler: bool) -> Self {
        let places = permits(limit);
        Self {
            target: Mutex::new(target),
            // A pooler in transaction mode keeps no settings. Statements that are not kept are planned
            // by the table as it is.
            configured: !transaction_pooler,
            settings_refused: AtomicBool::new(false),
            settings_accepted: AtomicBool::new(false),
            unreachable: AtomicBool::new(false),
            reached: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            limit: u32::try_from(places).unwrap_or(limit),
            places: Arc::new(Semaphore::new(places)),
            idle: Mutex::default(),
        }
    }

    pub(crate) fn target(&self) -> PgConnectOptions {
        self.lock_target().clone()
    }

    /// Opens connections with this password from now on.
    pub(crate) fn set_password(&self, password: &str) {
        let mut target = self.lock_target();
        *target = target.clone().password(password);
    }

    fn lock_target(&self) -> MutexGuard<'_, PgConnectOptions> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// How many connections there are, those included that are being opened.
    pub(crate) fn size(&self) -> usize {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        limit.saturating_sub(self.places.available_permits()) + self.idle().len()
    }

    /// A connection that should work. Fails by `deadline`, without having sent a statement.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<PooledConnection, LockError> {
        self.check_open()?;
        let place = self.place(until(deadline)).await?;
        // It may have been closed during the wait.
        self.check_open()?;
        let open = match self.idle_that_lives(deadline).await {
            Some(idle) => idle.open,
            None => self.open(deadline).await?,
        };
        Ok(PooledConnection {
            open,
            place,
            pool: Arc::clone(self),
        })
    }

    fn check_open(&self) -> Result<(), LockError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(closed());
        }
        Ok(())
    }

    async fn place(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, LockError> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Ok(place);
        }
        let place = Arc::clone(&self.places).acquire_owned();
        if let Ok(Ok(place)) = timeout_at(deadline, place).await {
            return Ok(place);
        }
        self.check_open()?;
        // If the server cannot be reached, operations that wait for it use all places.
        let exhausted = !self.unreachable.load(Ordering::Relaxed);
        Err(map(Error::PoolTimedOut, Stage::Connecting { exhausted }))
    }

    async fn idle_that_lives(&self, deadline: Instant) -> Option<Idle> {
        loop {
            let mut idle = self.idle().pop_back()?;
            if idle.since.elapsed() <= TRUSTED_IDLE {
                return Some(idle);
            }
            let limit = deadline.min(Instant::now() + PING_TIMEOUT);
            match timeout_at(limit, idle.open.connection.ping()).await {
                Ok(Ok(())) => return Some(idle),
                Ok(Err(_)) => {}
                // The others would hang as well.
                Err(_) => return None,
            }
        }
    }

    async fn open(&self, deadline: Instant) -> Result<Open, LockError> {
        let opened = self
            .try_to_open(deadline.min(Instant::now() + OPEN_TIMEOUT))
            .await;
        self.unreachable.store(opened.is_err(), Ordering::Relaxed);
        self.reached.fetch_or(opened.is_ok(), Ordering::Relaxed);
        opened.map_err(|error| match error {
            Error::PoolTimedOut if Instant::now() >= deadline => too_late(),
            error => map(error, Stage::Connecting { exhausted: false }),
        })
    }

    /// Retries while the server starts or is full. The error is that of the last attempt.
    async fn try_to_open(&self, deadline: Instant) -> Result<Open, Error> {
        let mut pause = FIRST_PAUSE;
        let mut last = Error::PoolTimedOut;
        loop {
            match timeout_at(deadline, self.connect()).await {
                Ok(Err(error)) if self.is_transient(&error) => last = error,
                Ok(result) => return result,
                Err(_) => return Err(last),
            }
            self.unreachable.store(true, Ordering::Relaxed);
            if Instant::now() + pause >= deadline {
                return Err(last);
            }
            sleep(pause).await;
            if let Some(idle) = self.returned_meanwhile() {
                return Ok(idle.open);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A connection that another operation has just returned.
    fn returned_meanwhile(&self) -> Option<Idle> {
        let mut idle = self.idle();
        let last = idle.back()?;
        if last.since.elapsed() > TRUSTED_IDLE {
            return None;
        }
        idle.pop_back()
    }

    async fn connect(&self) -> Result<Open, Error> {
        let generation = self.generation.load(Ordering::SeqCst);
        let target = self.target();
        let mut connection = self.connect_configured(&target).await?;
        let (process, limits_waits) = match self.configured {
            true => ask_for_server_process(&mut connection, &target).await?,
            // Its transactions ask, and limit their waits.
            false => (None, true),
        };
        Ok(Open {
            connection,
            process,
            limits_waits,
            since: Instant::now(),
            generation,
        })
    }

    /// A connection, with the settings of the backend's sessions if it has any and no pooler refuses them.
    async fn connect_configured(&self, target: &PgConnectOptions) -> Result<PgConnection, Error> {
        if self.configured && !self.settings_refused.load(Ordering::Relaxed) {
            match PgConnection::connect_with(&configured(target)).await {
                Err(error) if refuses_settings(&error) => {
                    self.settings_refused.store(true, Ordering::Relaxed);
                }
                // A pooler that is full, or that refuses them in its own words.
                Err(error)
                    if has_state(&error, UNKNOWN_SETTING)
                        && !self.settings_accepted.load(Ordering::Relaxed) => {}
                connected => {
                    self.settings_accepted
                        .fetch_or(connected.is_ok(), Ordering::Relaxed);
                    return connected;
                }
            }
        }
        PgConnection::connect_with(target).await
    }

    fn is_transient(&self, error: &Error) -> bool {
        match error {
            // A server that was reached before will probably be back. If none was ever reached, the address
            // is probably wrong.
            Error::Io(io) if io.kind() == io::ErrorKind::ConnectionRefused => {
                self.reached.load(Ordering::Relaxed)
            }
            // A pooler that is full.
            Error::Database(_) if has_state(error, UNKNOWN_SETTING) => {
                self.reached.load(Ordering::Relaxed)
            }
            Error::Database(database) => database.is_transient_in_connect_phase(),
            _ => false,
        }
    }

    /// Closes idle connections, then waits until those in use are closed. From now on
    /// [`acquire`](Self::acquire) fails.
    pub(crate) async fn close(&self, deadline: Instant) -> Result<(), LockError> {
        self.closed.store(true, Ordering::SeqCst);
        let idle = std::mem::take(&mut *self.idle());
        let orderly = async {
            for idle in idle {
                // A server that has stopped has closed it.
                let _ = idle.open.connection.close().await;
            }
            self.places.acquire_many(self.limit).await.map(drop)
        };
        match timeout_at(deadline, orderly).await {
            Ok(_) => Ok(()),
            Err(_) => Err(LockError::new(
                ErrorCode::NetworkTimeout,
                "operations were still in flight at the deadline; each closes its connection when it ends",
            )),
        }
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        // No method leaves it half changed.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server process of a session, and whether the session limits its waits.
async fn ask_for_server_process(
    session: &mut PgConnection,
    target: &PgConnectOptions,
) -> Result<(Option<Arc<ServerProcess>>, bool), Error> {
    let chosen = chosen_lock_timeout(target);
    let asked = sqlx::raw_sql(PROCESS_AND_LOCK_TIMEOUT);
    match asked.fetch_one(session).await {
        Ok(row) => {
            let is_limited = match (row.try_get::<&str, _>(3)?, chosen) {
                // A pooler may ignore what was chosen.
                (NO_LOCK_TIMEOUT, chosen) => chosen == Some(NO_LOCK_TIMEOUT),
                (shown, None) => shown == LOCK_TIMEOUT_SHOWN,
                (_, Some(_)) => true,
            };
            Ok((Some(ServerProcess::of(&row)?), is_limited))
        }
        // A very short `statement_timeout` of the URL.
        Err(error) if has_state(&error, CANCELLED) => Ok((None, chosen.is_some())),
        Err(error) => Err(error),
    }
}

fn configured(target: &PgConnectOptions) -> PgConnectOptions {
    let configured = target.clone().options(SETTINGS);
    if chosen_lock_timeout(target).is_some() {
        return configured;
    }
    configured.options([(LOCK_TIMEOUT, LOCK_TIMEOUT_MS)])
}

/// The `lock_timeout` of the URL, without its unit.
fn chosen_lock_timeout(target: &PgConnectOptions) -> Option<&str> {
    let options = target.get_options().unwrap_or_default();
    // `deadlock_timeout` is another setting.
    let mut words = options.split(|at: char| !at.is_alphanumeric() && at != '_');
    words.find(|word| *word == LOCK_TIMEOUT)?;
    let value = words.find(|word| !word.is_empty()).unwrap_or_default();
    Some(value.trim_end_matches(char::is_alphabetic))
}

fn refuses_settings(error: &Error) -> bool {
    let database = error.as_database_error();
    let names_them = database.is_some_and(|error| error.message().contains(STARTUP_OPTIONS));
    names_them && has_state(error, UNKNOWN_SETTING)
}

/// The error of an operation on a backend that was closed.
pub(super) fn closed() -> LockError {
    LockError::new(ErrorCode::ServiceUnavailable, "the backend was closed")
}

/// A connection in use. Dropping it closes it, inside a runtime or outside.
pub(crate) struct PooledConnection {
    open: Open,
    place: OwnedSemaphorePermit,
    pool: Arc<OwnPool>,
}

impl PooledConnection {
    /// Closes the connection, and all that are not newer: the address may lead to another server now.
    pub(crate) fn close_with_others(self) {
        let pool = &self.pool;
        let mut idle = pool.idle();
        if self.open.generation == pool.generation.load(Ordering::SeqCst) {
            pool.generation.fetch_add(1, Ordering::SeqCst);
            idle.clear();
            // There may be another pooler, or none.
            pool.settings_refused.store(false, Ordering::Relaxed);
            pool.settings_accepted.store(false, Ordering::Relaxed);
        }
    }

    /// Closes the connection, and keeps its place.
    pub(super) fn disconnect(self) -> OwnedSemaphorePermit {
        self.place
    }

    pub(super) fn process(&self) -> Option<Arc<ServerProcess>> {
        self.open.process.clone()
    }

    pub(super) fn limits_waits(&self) -> bool {
        self.open.limits_waits
    }

    /// Makes a connection at rest available to the next operation.
    pub(crate) fn return_to_pool(self) {
        let now = Instant::now();
        if now - self.open.since > LONGEST_LIFE {
            return;
        }
        self.pool.unreachable.store(false, Ordering::Relaxed);
        let mut idle = self.pool.idle();
        let is_outdated = self.open.generation != self.pool.generation.load(Ordering::SeqCst);
        if is_outdated || self.pool.closed.load(Ordering::SeqCst) {
            return;
        }
        while idle
            .front()
            .is_some_and(|one| now - one.since > LONGEST_IDLE)
        {
            idle.pop_front();
        }
        idle.push_back(Idle {
            open: self.open,
            since: now,
        });
        drop(idle);
        // The next holder of the place finds the connection.
        drop(self.place);
    }
}

impl Deref for PooledConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.open.connection
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.open.connection
    }
}

#[cfg(test)]
mod tests {
    use syncguard_testkit::{PgBouncer, PostgresServer};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    fn pool(url: &str) -> Arc<OwnPool> {
        Arc::new(OwnPool::new(url.parse().unwrap(), 1, false))
    }

    fn deadline() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[tokio::test]
    async fn behind_a_pooler_that_ignores_settings_statements_limit_their_waits() {
        let server = PostgresServer::start().unwrap();
        let ignored = ("ignore_startup_parameters", "extra_float_digits, options");
        let bouncer = PgBouncer::start_with(&server, &[ignored]).unwrap();
        for (url, chosen, limits_waits) in [
            (server.url(), "", true),
            (server.url(), "?options[lock_timeout]=300", true),
            (server.url(), "?options[lock_timeout]=0s", true),
            (bouncer.url(), "", false),
            (bouncer.url(), "?options[lock_timeout]=300", false),
            (bouncer.url(), "?options[lock_timeout]=0s", true),
        ] {
            let url = format!("{url}{chosen}");
            let connection = pool(&url).acquire(deadline()).await.unwrap();
            assert_eq!(connection.limits_waits(), limits_waits, "{url}");
        }
    }

    #[tokio::test]
    async fn a_full_pooler_is_not_taken_for_one_that_refuses_settings() {
        let server = PostgresServer::start().unwrap();
        let full = [
            ("ignore_startup_parameters", "extra_float_digits, options"),
            ("max_client_conn", "1"),
        ];
        let bouncer = PgBouncer::start_with(&server, &full).unwrap();
        let (first, second) = (pool(&bouncer.url()), pool(&bouncer.url()));
        let only = first.acquire(deadline()).await.unwrap();
        let error = second.acquire(deadline()).await.err().unwrap();
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
        assert!(!second.settings_refused.load(Ordering::Relaxed));
        drop(only);
    }

    /// As a pooler might refuse session settings, other than PgBouncer.
    const REFUSED: &[u8] = b"E\0\0\0\x2bSFATAL\0C0A000\0Mstartup packet refused\0\0";

    #[tokio::test]
    async fn a_pooler_that_refuses_settings_in_its_own_words_is_used_without_them() {
        let server = PostgresServer::start().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let behind = ("127.0.0.1", server.port());
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut startup = [0; 1_024];
                let length = client.read(&mut startup).await.unwrap();
                let startup = &startup[..length];
                if startup.windows(7).any(|text| text == b"seqscan") {
                    client.write_all(REFUSED).await.unwrap();
                    continue;
                }
                let mut server = TcpStream::connect(behind).await.unwrap();
                server.write_all(startup).await.unwrap();
                tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
            }
        });
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable");
        let pool = Arc::new(OwnPool::new(url.parse().unwrap(), 2, false));
        let first = pool.acquire(deadline()).await.unwrap();
        let second = pool.acquire(deadline()).await.unwrap();
        assert!(!first.limits_waits() && !second.limits_waits());
    }

    /// As PgBouncer refuses a client.
    const FULL: &[u8] =
        b"E\0\0\0\x42SFATAL\0C08P01\0Mno more connections allowed (max_client_conn)\0\0";

    #[tokio::test]
    async fn a_pooler_that_was_full_once_gets_the_settings_at_the_next_attempt() {
        let server = PostgresServer::start().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let behind = ("127.0.0.1", server.port());
        tokio::spawn(async move {
            for number in 0.. {
                let (mut client, _) = listener.accept().await.unwrap();
                if number == 1 {
                    client.write_all(FULL).await.unwrap();
                    continue;
                }
                let mut server = TcpStream::connect(behind).await.unwrap();
                tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
            }
        });
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable");
        let pool = Arc::new(OwnPool::new(url.parse().unwrap(), 2, false));
        let first = pool.acquire(deadline()).await.unwrap();
        let second = pool.acquire(deadline()).await.unwrap();
        assert!(first.limits_waits() && second.limits_waits());
        assert!(!pool.settings_refused.load(Ordering::Relaxed));
    }
}
