//! [`Connections::exchange`]: executes a script and returns its rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::TryStreamExt as _;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Either, Executor as _, Row as _, SqliteConnection};
use syncguard_core::LockError;
use tokio::time::{Instant, sleep};

use super::completed::Completed;
use super::connections::{BUSY_PAUSE, Connection, Connections, Turn, until};
use super::script::{Script, Value, arguments};
use crate::error::{Failed, Stage, is_in_transaction, is_no_table, map, too_late};
use crate::options::Settings;
use crate::place::Place;

type Rows = Result<Vec<SqliteRow>, Failed>;

/// Runs after a script that has succeeded, even if its caller has left.
pub(crate) type Then = Arc<dyn Fn(&[SqliteRow]) + Send + Sync>;

static NEXT_MARK: AtomicI64 = AtomicI64::new(1);

impl Connections {
    /// Executes a script, and tries again while another connection has the file's lock. It checks the place before a
    /// script that writes, and before each script on a pool's connection; what a script has read counts only after a
    /// check.
    ///
    /// # Cancel safety
    /// If it is dropped while it waits for a turn, a connection or a retry, it sends nothing. If it is
    /// dropped later, the attempt continues in the background and ends before the next turn.
    pub(crate) async fn exchange(
        &self,
        settings: &Settings,
        script: &Script,
        values: &[Value<'_>],
        deadline: Instant,
        then: Option<Then>,
    ) -> Result<Vec<SqliteRow>, LockError> {
        let mut until = until(deadline);
        if let Some(longest) = settings.busy_timeout {
            until = until.min(Instant::now() + longest);
        }
        let mut turn = self.turn(script.writes, until).await?;
        let mut busy = None;
        loop {
            if Instant::now() >= until {
                return Err(busy.map_or_else(too_late, Failed::mapped));
            }
            let connection = match self.connection(turn.take(), &settings.place, until).await {
                Ok(connection) => connection,
                // The last attempt says what it waited for.
                Err(error) => return Err(busy.map_or(error, Failed::mapped)),
            };
            // A new connection opens the file that is there now, and a pool may open one at any time. sqlx's thread can
            // panic when it reads a file that was replaced.
            if script.writes || connection.is_given() {
                settings.place.check()?;
            }
            let place = Arc::clone(&settings.place);
            let arguments = arguments(values).map_err(|error| map(error, Stage::Connecting))?;
            let (script, then) = (script.clone(), then.clone());
            let attempt = async move {
                let (back, rows) = attempt(connection, &place, &script, arguments).await;
                if let (Ok(rows), Some(then)) = (&rows, then) {
                    then(rows);
                }
                (back, rows)
            };
            let (back, rows) = Completed::new(attempt).await;
            match rows {
                Err(failed) if failed.is_busy() && Instant::now() + BUSY_PAUSE < until => {
                    (turn, busy) = (back, Some(failed));
                    sleep(BUSY_PAUSE).await;
                }
                Err(failed) => return Err(failed.mapped()),
                Ok(rows) => {
                    settings.place.remember();
                    return Ok(rows);
                }
            }
        }
    }
}

/// Executes a script on a connection beside the turns.
pub(crate) async fn read(
    connection: &mut SqliteConnection,
    script: &Script,
    values: &[Value<'_>],
) -> Rows {
    let arguments = arguments(values).map_err(Failed::before)?;
    fetch(connection, script, arguments).await
}

/// Executes a script once. No transaction is open afterwards.
async fn attempt(
    connection: Connection,
    place: &Place,
    script: &Script,
    arguments: SqliteArguments,
) -> (Option<Turn>, Rows) {
    let mut unfinished = Unfinished(Some(connection));
    let rows = match &mut unfinished.0 {
        Some(given) if given.is_given() => on_given(given, place, script, arguments).await,
        Some(own) => execute(own, script, arguments).await,
        None => Err(Failed::before(sqlx::Error::WorkerCrashed)),
    };
    let lost = matches!(rows, Err(Failed::Driver(sqlx::Error::WorkerCrashed, _)));
    let mut turn = unfinished.0.take().and_then(Connection::into_turn);
    if lost && let Some(turn) = &mut turn {
        // The next one opens another.
        **turn = None;
    }
    (turn, rows)
}

/// A connection on which a transaction may be open. If it is dropped like this, at the end of the runtime, a
/// connection to a file is closed: SQLite then rolls back, and other processes can write.
struct Unfinished(Option<Connection>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.roll_back();
        }
    }
}

async fn execute(connection: &mut Connection, script: &Script, arguments: SqliteArguments) -> Rows {
    let connection = connection.get_mut().map_err(Failed::before)?;
    match fetch(connection, script, arguments.clone()).await {
        // A transaction that the application left open, or that ended with its runtime.
        Err(Failed::Driver(error, _)) if is_in_transaction(&error) => {
            fetch(connection, script, arguments).await
        }
        // A connection that read the schema before the table was created reads the schema again. If another
        // connection has the file locked at that moment, SQLite reports the table as missing: try once more.
        Err(Failed::Driver(error, _)) if is_no_table(&error) => {
            let look = sqlx::raw_sql("PRAGMA main.schema_version");
            look.execute(&mut *connection)
                .await
                .map_err(Failed::before)?;
            fetch(connection, script, arguments).await
        }
        rows => rows,
    }
}

/// The rows of all statements. After an error the transaction is rolled back.
async fn fetch(
    connection: &mut SqliteConnection,
    script: &Script,
    arguments: SqliteArguments,
) -> Rows {
    let rows = fetch_all(connection, script, arguments).await;
    if rows.is_err() {
        // It fails if SQLite has rolled back already. The first error is the one that matters.
        let _ = sqlx::raw_sql("ROLLBACK").execute(connection).await;
    }
    rows
}

/// The rows of a script that has ended: a truncated reply does not count.
async fn fetch_all(
    connection: &mut SqliteConnection,
    script: &Script,
    arguments: SqliteArguments,
) -> Rows {
    let (mut rows, mut ended) = (Vec::new(), 0);
    let mut replies = connection.fetch_many(sqlx::query_with(script.sql.clone(), arguments));
    loop {
        match replies.try_next().await {
            Ok(Some(Either::Left(_))) => ended += 1,
            Ok(Some(Either::Right(row))) => rows.push(row),
            Ok(None) if ended == script.statements => return Ok(rows),
            Ok(None) => {
                return Err(Failed::Driver(
                    sqlx::Error::WorkerCrashed,
                    script.stage(ended),
                ));
            }
            Err(error) => return Err(Failed::Driver(error, script.stage(ended))),
        }
    }
}

/// For a connection of the application: SQLite itself must not wait for locks in the meantime, so that the
/// operation keeps its deadline.
async fn on_given(
    given: &mut Connection,
    place: &Place,
    script: &Script,
    arguments: SqliteArguments,
) -> Rows {
    let busy_timeout: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
        .fetch_one(given.get_mut().map_err(Failed::before)?)
        .await
        .map_err(Failed::before)?;
    let rows = without_waiting(given, place, script, arguments).await;
    // Only a number was filled in.
    let restore = AssertSqlSafe(format!("PRAGMA busy_timeout = {busy_timeout}"));
    let restored = match given.get_mut() {
        Ok(connection) => sqlx::raw_sql(restore).execute(connection).await.is_ok(),
        Err(_) => false,
    };
    if !restored {
        // The effect of the script remains. The application must not get the connection back in this state.
        given.close_on_drop();
    }
    rows
}

/// Executes a script on a connection that is of the store.
async fn without_waiting(
    given: &mut Connection,
    place: &Place,
    script: &Script,
    arguments: SqliteArguments,
) -> Rows {
    let connection = given.get_mut().map_err(Failed::before)?;
    // Neither statement reads the schema: that might have to wait for another process.
    let databases = sqlx::raw_sql("PRAGMA busy_timeout = 0; PRAGMA database_list")
        .fetch_all(&mut *connection)
        .await
        .map_err(Failed::before)?;
    let is_main = |row: &&SqliteRow| row.try_get("name").is_ok_and(|name: &str| name == "main");
    let main = databases.iter().find(is_main);
    let file = main.and_then(|row| row.try_get("file").ok());
    place
        .check_file(file.unwrap_or_default())
        .map_err(Failed::Refused)?;
    let mark = mark(connection, place).await?;
    let rows = execute(given, script, arguments).await?;
    set_mark(given.get_mut().map_err(Failed::before)?, place, mark).await;
    Ok(rows)
}

/// The mark of a connection that has a store in memory, or 0. Fails if it has another store than this one.
async fn mark(connection: &mut SqliteConnection, place: &Place) -> Result<i64, Failed> {
    if !place.is_memory() {
        return Ok(0);
    }
    // In the connection's temporary database, which ends with the connection, as the store does.
    let mark = sqlx::query_scalar("PRAGMA temp.application_id")
        .fetch_one(connection)
        .await
        .map_err(Failed::before)?;
    place.check_mark(mark).map_err(Failed::Refused)?;
    Ok(mark)
}

/// Marks a connection that has a store in memory, unless it is marked, and remembers the mark. No transaction
/// is open.
async fn set_mark(connection: &mut SqliteConnection, place: &Place, mut mark: i64) {
    if !place.is_memory() {
        return;
    }
    if mark == 0 {
        mark = NEXT_MARK.fetch_add(1, Ordering::Relaxed);
        // Only a number was filled in.
        let set = AssertSqlSafe(format!("PRAGMA temp.application_id = {mark}"));
        if sqlx::raw_sql(set).execute(connection).await.is_err() {
            return;
        }
    }
    place.remember_mark(mark);
}
