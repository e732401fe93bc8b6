//! How a [`SqliteBackend`] is made: from a path, or over an application's pool.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, SqlitePool};
use syncguard_core::observe::Operation;
use syncguard_core::{ErrorCode, LockError};
use tokio::time::Instant;

use crate::error::{in_memory, not_a_path};
use crate::place::Place;
use crate::preflight::FileSystem;
use crate::wire::Connections;
use crate::{SqliteBackend, SqliteOptions, Synchronous};

/// The longest that opening a file takes: others may create it at the same time.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

const MEMORY: &str = ":memory:";

impl SqliteBackend {
    /// Opens a file with the default options. See [`connect_with`](Self::connect_with).
    ///
    /// # Errors
    /// Those of [`connect_with`](Self::connect_with).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Self, LockError> {
        Self::connect_with(path, SqliteOptions::new()).await
    }

    /// Opens a file, and creates it and the tables if they do not exist.
    ///
    /// All processes that use the file must run on one machine, and name the same tables. `:memory:` is a
    /// store in this process alone, which ends with the last clone of the backend. URIs, such as
    /// `file::memory:`, are refused.
    ///
    /// The backend sets the file's journal mode to WAL. It keeps two connections open, one that writes and
    /// one that reads, each with a thread of its own.
    ///
    /// # Errors
    /// `InvalidArgument` if the options cannot work, if the path is empty, a URI or a folder, is in no
    /// folder, is not an SQLite database, or lies on a network file system; `AuthFailed` if the file is
    /// read-only here; `ServiceUnavailable` if it cannot be opened, for example without permission to read
    /// it or to create files in its folder; `NetworkTimeout` if another process writes to the file for 10
    /// s.
    ///
    /// # Cancel safety
    /// Safe. A file that was created stays.
    pub async fn connect_with(
        path: impl AsRef<Path>,
        options: SqliteOptions,
    ) -> Result<Self, LockError> {
        let opened = open(path.as_ref(), options).await;
        opened.map_err(|error| error.with_operation(Operation::Setup))
    }

    /// Uses the application's own pool. It sends nothing yet: call
    /// [`setup_schema`](Self::setup_schema) to create the tables.
    ///
    /// ```no_run
    /// use syncguard_core::Locks;
    /// use syncguard_sqlite::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool};
    /// use syncguard_sqlite::{SqliteBackend, SqliteOptions};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = SqliteConnectOptions::new()
    ///     .filename("app.db")
    ///     .create_if_missing(true)
    ///     .journal_mode(SqliteJournalMode::Wal);
    /// let pool = SqlitePool::connect_with(options).await?;
    /// let backend = SqliteBackend::with_pool(pool.clone(), SqliteOptions::new())?;
    /// backend.setup_schema().await?;
    /// let locks = Locks::new(backend);
    /// # Ok(()) }
    /// ```
    ///
    /// An operation takes one connection for as long as its transaction runs. While it does, SQLite's own
    /// `busy_timeout` of that connection is zero; the operation waits by itself. The pool's journal mode
    /// and `synchronous` setting apply: [`preflight`](syncguard_core::Locks::preflight) reports those that
    /// weaken the locks. Long transactions of the application delay lock operations, and lock operations delay
    /// the application: a file of their own is better.
    ///
    /// The pool may hold connections on which the application left a transaction open. An operation rolls
    /// that transaction back first, so that a grant is committed and a read sees what others committed.
    ///
    /// The backend notices that the file was replaced only after the first operation that succeeded.
    ///
    /// While a caller waits for a key, the backend opens one connection beside the pool, with the pool's
    /// connect options.
    ///
    /// # Errors
    /// `InvalidArgument` if the options cannot work, if the pool's file is given by a `file:` URI or is
    /// immutable, or if the pool is of a database in memory and could open a second connection or close its
    /// only one: each would be another store. If the only connection of such a pool is closed nevertheless,
    /// every operation from then on fails with `ServiceUnavailable`.
    pub fn with_pool(pool: SqlitePool, options: SqliteOptions) -> Result<Self, LockError> {
        let made = place_of_pool(&pool).and_then(|place| {
            let settings = options.check(place)?;
            Ok(Self::new(Connections::given(pool), settings))
        });
        made.map_err(|error| error.with_operation(Operation::Setup))
    }
}

async fn open(path: &Path, options: SqliteOptions) -> Result<SqliteBackend, LockError> {
    let target = target(options.synchronous);
    let (place, target) = if path == Path::new(MEMORY) {
        (Place::memory(), target.in_memory(true))
    } else {
        let path = checked_path(path)?;
        (Place::own(path.clone()), target.filename(path))
    };
    let settings = options.check(place)?;
    let deadline = Instant::now() + OPEN_TIMEOUT;
    let connections = Connections::open(target, &settings.place, deadline).await?;
    let backend = SqliteBackend::new(connections, settings);
    backend.set_up(deadline).await?;
    // A read-only file can be opened, too.
    let nothing = &backend.scripts().write_nothing;
    backend.exchange(nothing, &[], deadline).await?;
    Ok(backend)
}

/// How the backend's own connections are opened.
fn target(synchronous: Synchronous) -> SqliteConnectOptions {
    let (synchronous, full) = match synchronous {
        Synchronous::Full => (SqliteSynchronous::Full, "ON"),
        Synchronous::Normal => (SqliteSynchronous::Normal, "OFF"),
    };
    SqliteConnectOptions::new()
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous)
        // On macOS, a plain sync leaves data in the disk's own memory. Elsewhere this does nothing.
        .pragma("fullfsync", full)
        // SQLite itself does not wait: operations do, with a deadline.
        .busy_timeout(Duration::ZERO)
        .disable_statement_logging()
}

/// An absolute path to a file, if nothing shows in advance that it cannot be opened.
fn checked_path(path: &Path) -> Result<PathBuf, LockError> {
    let bad = |path: &Path, why: &str| {
        let message = format!("the database {} {why}", path.display());
        LockError::invalid_argument(message)
    };
    if path.as_os_str().is_empty() {
        return Err(bad(path, "needs a path"));
    }
    let is_uri = |text: &str| text.starts_with("file:") || text.starts_with("sqlite:");
    if path.to_str().is_some_and(is_uri) {
        let why = "is a URI; give a path, such as ./locks.db, or `:memory:`";
        return Err(bad(path, why));
    }
    let path = std::path::absolute(path)
        .map_err(|_| bad(path, "is given by a path that cannot be made absolute"))?;
    match path.metadata() {
        Ok(found) if found.is_dir() => return Err(bad(&path, "is a folder; name a file")),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let message = format!("permission denied to look at {}", path.display());
            return Err(LockError::new(ErrorCode::AuthFailed, message).with_source(error));
        }
        Err(_) => {
            let folder = path.parent();
            if !folder.is_some_and(Path::is_dir) {
                return Err(bad(&path, "is in a folder that does not exist; create it"));
            }
        }
    }
    if let FileSystem::Network(name) = FileSystem::of(&path) {
        let why =
            format!("lies on a network file system ({name}); SQLite's locks need a local one");
        return Err(bad(&path, &why));
    }
    Ok(path)
}

fn place_of_pool(pool: &SqlitePool) -> Result<Place, LockError> {
    let target = pool.connect_options();
    let path = target.get_filename();
    let name = path.to_string_lossy();
    let is_uri = name.starts_with("file:");
    // sqlx has no accessors, and panics for some names.
    let flags = SqliteConnectOptions::clone(&target)
        .filename("any")
        .to_url_lossy();
    let has = |flag: (&str, &str)| {
        flags
            .query_pairs()
            .any(|(name, value)| flag == (&*name, &*value))
    };
    let in_memory_by_name = matches!(&*name, "" | MEMORY) || is_uri && name.contains("memory");
    if !(in_memory_by_name || has(("mode", "memory"))) {
        if is_uri || has(("immutable", "true")) || has(("vfs", "memdb")) {
            return Err(not_a_path());
        }
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        return Ok(Place::of_pool(path));
    }
    let options = pool.options();
    // A call that is dropped while the pool tests a connection loses it.
    let is_one_for_good = options.get_max_connections() == 1
        && options.get_idle_timeout().is_none()
        && options.get_max_lifetime().is_none()
        && !options.get_test_before_acquire();
    match is_one_for_good {
        true => Ok(Place::memory()),
        false => Err(in_memory()),
    }
}
