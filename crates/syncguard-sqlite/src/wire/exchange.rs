//! [`Connections::exchange`]: executes a script and returns its rows.

use futures_util::TryStreamExt as _;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Either, Executor as _, SqliteConnection};
use syncguard_core::LockError;
use tokio::time::{Instant, sleep};

use super::completed::Completed;
use super::connections::{BUSY_PAUSE, Connection, Connections, Turn, until};
use super::script::{Script, Value, arguments};
use crate::error::{Stage, is_busy, is_in_transaction, map, too_late};
use crate::options::Settings;

type Rows = Result<Vec<SqliteRow>, sqlx::Error>;

impl Connections {
    /// Executes a script, and tries again while another connection has the file's lock.
    ///
    /// # Cancel safety
    /// Dropped while it waits for a turn, a connection or a retry, it sends nothing. Dropped later, the
    /// attempt goes on in the background, and ends before the next turn.
    pub(crate) async fn exchange(
        &self,
        settings: &Settings,
        script: &Script,
        values: &[Value<'_>],
        deadline: Instant,
    ) -> Result<Vec<SqliteRow>, LockError> {
        let stage = if script.writes {
            Stage::Writing
        } else {
            Stage::Reading
        };
        let mapped = |error| map(error, stage);
        let arguments = arguments(values).map_err(mapped)?;
        let mut until = until(deadline);
        if let Some(longest) = settings.busy_timeout {
            until = until.min(Instant::now() + longest);
        }
        let mut turn = self.turn(script.writes, until).await?;
        let mut busy = None;
        loop {
            if Instant::now() >= until {
                return Err(busy.map_or_else(too_late, mapped));
            }
            let connection = match self.connection(turn.take(), until).await {
                Ok(connection) => connection,
                // The last attempt says what it waited for.
                Err(error) => return Err(busy.map_or(error, mapped)),
            };
            // A connection that was opened anew is of the file that is there now.
            settings.place.check()?;
            let attempt = attempt(connection, script.clone(), arguments.clone());
            let (back, rows) = Completed::new(attempt).await;
            match rows {
                Err(error) if is_busy(&error) && Instant::now() + BUSY_PAUSE < until => {
                    (turn, busy) = (back, Some(error));
                    sleep(BUSY_PAUSE).await;
                }
                Err(error) => return Err(mapped(error)),
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
) -> Result<Vec<SqliteRow>, sqlx::Error> {
    fetch(connection, script, arguments(values)?).await
}

/// Executes a script once. No transaction is open afterwards.
async fn attempt(
    connection: Connection,
    script: Script,
    arguments: SqliteArguments,
) -> (Option<Turn>, Rows) {
    let mut unfinished = Unfinished(Some(connection));
    let rows = match &mut unfinished.0 {
        Some(given) if given.is_given() => execute_without_waiting(given, &script, arguments).await,
        Some(own) => execute(own, &script, arguments).await,
        None => Err(sqlx::Error::WorkerCrashed),
    };
    let lost = matches!(rows, Err(sqlx::Error::WorkerCrashed));
    let mut turn = unfinished.0.take().and_then(Connection::into_turn);
    if lost && let Some(turn) = &mut turn {
        // The next one opens another.
        **turn = None;
    }
    (turn, rows)
}

/// A connection on which a transaction may be open. Dropped so, at the end of the runtime, one to a file is
/// closed: SQLite then rolls back, and other processes can write.
struct Unfinished(Option<Connection>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.roll_back();
        }
    }
}

async fn execute(connection: &mut Connection, script: &Script, arguments: SqliteArguments) -> Rows {
    let connection = connection.get_mut()?;
    match fetch(connection, script, arguments.clone()).await {
        // A transaction that the application left open, or that ended with its runtime.
        Err(error) if is_in_transaction(&error) => fetch(connection, script, arguments).await,
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

/// The rows of a script that has come to its end: a reply that breaks off is none.
async fn fetch_all(
    connection: &mut SqliteConnection,
    script: &Script,
    arguments: SqliteArguments,
) -> Rows {
    let (mut rows, mut ended) = (Vec::new(), 0);
    let mut replies = connection.fetch_many(sqlx::query_with(script.sql.clone(), arguments));
    while let Some(reply) = replies.try_next().await? {
        match reply {
            Either::Left(_) => ended += 1,
            Either::Right(row) => rows.push(row),
        }
    }
    if ended < script.statements {
        return Err(sqlx::Error::WorkerCrashed);
    }
    Ok(rows)
}

/// On a connection of the application: SQLite itself does not wait for locks meanwhile, so that an
/// operation keeps its deadline.
async fn execute_without_waiting(
    connection: &mut Connection,
    script: &Script,
    arguments: SqliteArguments,
) -> Rows {
    let busy_timeout: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
        .fetch_one(connection.get_mut()?)
        .await?;
    sqlx::raw_sql("PRAGMA busy_timeout = 0")
        .execute(connection.get_mut()?)
        .await?;
    let rows = execute(connection, script, arguments).await;
    let restored = format!("PRAGMA busy_timeout = {busy_timeout}");
    // Only a number was filled in.
    let restored = sqlx::raw_sql(AssertSqlSafe(restored))
        .execute(connection.get_mut()?)
        .await;
    if restored.is_err() {
        // What the script did stands. The application does not get the connection back as it is.
        connection.close_on_drop();
    }
    rows
}
