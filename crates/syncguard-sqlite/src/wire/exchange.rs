//! [`Connections::exchange`]: executes a script and returns its rows.

use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, SqlStr, SqliteConnection};
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
    /// Dropped while it waits, it sends nothing any more. Dropped while SQLite executes the script, that
    /// goes on to its end, before the next turn.
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
            settings.place.check()?;
            let connection = match self.connection(turn.take(), until).await {
                Ok(connection) => connection,
                // The last attempt says what it waited for.
                Err(error) => return Err(busy.map_or(error, mapped)),
            };
            let attempt = attempt(connection, script.sql.clone(), arguments.clone());
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
    fetch(connection, script.sql.clone(), arguments(values)?).await
}

/// Executes a script once. No transaction is open afterwards.
async fn attempt(
    mut connection: Connection,
    sql: SqlStr,
    arguments: SqliteArguments,
) -> (Option<Turn>, Rows) {
    let rows = if connection.is_given() {
        execute_without_waiting(&mut connection, sql, arguments).await
    } else {
        execute(&mut connection, sql, arguments).await
    };
    let lost = matches!(rows, Err(sqlx::Error::WorkerCrashed));
    let mut turn = connection.into_turn();
    if lost && let Some(turn) = &mut turn {
        // The next one opens another.
        **turn = None;
    }
    (turn, rows)
}

async fn execute(connection: &mut Connection, sql: SqlStr, arguments: SqliteArguments) -> Rows {
    let connection = connection.get_mut()?;
    match fetch(connection, sql.clone(), arguments.clone()).await {
        // A transaction that the application left open, or that ended with its runtime.
        Err(error) if is_in_transaction(&error) => fetch(connection, sql, arguments).await,
        rows => rows,
    }
}

/// The rows of all statements. After an error the transaction is rolled back.
async fn fetch(connection: &mut SqliteConnection, sql: SqlStr, arguments: SqliteArguments) -> Rows {
    let query = sqlx::query_with(sql, arguments);
    let rows = query.fetch_all(&mut *connection).await;
    if rows.is_err() {
        // It fails if SQLite has rolled back already. The first error is the one that matters.
        let _ = sqlx::raw_sql("ROLLBACK").execute(connection).await;
    }
    rows
}

/// On a connection of the application: SQLite itself does not wait for locks meanwhile, so that an
/// operation keeps its deadline.
async fn execute_without_waiting(
    connection: &mut Connection,
    sql: SqlStr,
    arguments: SqliteArguments,
) -> Rows {
    let busy_timeout: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
        .fetch_one(connection.get_mut()?)
        .await?;
    sqlx::raw_sql("PRAGMA busy_timeout = 0")
        .execute(connection.get_mut()?)
        .await?;
    let rows = execute(connection, sql, arguments).await;
    let restored = format!("PRAGMA busy_timeout = {busy_timeout}");
    // Only a number was filled in.
    sqlx::raw_sql(AssertSqlSafe(restored))
        .execute(connection.get_mut()?)
        .await?;
    rows
}
