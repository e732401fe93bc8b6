//! [`Session`]: a connection in use, and what becomes of it afterwards.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection, Postgres};
use syncguard_core::LockError;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::connections::{Connection, Connections, until};
use super::hanging::{Sent, ServerProcess, server_process};
use crate::error::{Stage, has_state, map, too_late};

/// The longest that a connection whose caller has left may take to become usable again.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest that a statement waits in the server for another transaction, in milliseconds. An
/// acquire that waited for longer is not granted anyway; other operations then ask again, while their
/// callers wait. So no wait in the server outlasts its caller for long.
pub(super) const LOCK_TIMEOUT_MS: u64 = 500;

/// Begins the transaction of one operation, in one message.
///
/// Under a stricter isolation, which may be a database's default, a statement that waited for another one
/// fails instead of continuing with the new row. If the client vanishes before its COMMIT, the server ends
/// the transaction, which would block the key.
const BEGIN: &str = concat!(
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 500; \
     SET LOCAL idle_in_transaction_session_timeout = 2000; ",
    server_process!()
);

/// Ends a transaction that the application left open in a session of its pool, in one round trip. In
/// any other session it does nothing, and the server has nothing to warn of.
const LEAVE_TRANSACTION: &str = concat!("BEGIN; ROLLBACK; ", server_process!());

/// The SQLSTATE of every statement but `ROLLBACK` in a transaction that has failed.
const FAILED_TRANSACTION: &[&str] = &["25P02"];

pub(super) type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

/// A connection in use.
///
/// Dropped at rest, it returns the connection to its pool. Dropped in the middle of a statement, or
/// after an error, it first finds out in a task whether the connection is still usable.
pub(crate) struct Session {
    connection: Option<Connection>,
    runtime: Handle,
    at_rest: bool,
    in_transaction: bool,
    /// The server process, as far as it is known.
    process: Option<Arc<ServerProcess>>,
    /// The name of the last statement that was sent outside of an explicit transaction.
    statement: Option<Arc<str>>,
}

impl Session {
    /// Takes a connection for an operation with this deadline.
    ///
    /// # Errors
    /// Of known outcome: no statement was sent.
    pub(crate) async fn open(
        connections: &Connections,
        deadline: Instant,
    ) -> Result<Self, LockError> {
        Self::open_to(connections, false, deadline).await
    }

    /// The same; `writes` says whether the operation writes.
    pub(super) async fn open_to(
        connections: &Connections,
        writes: bool,
        deadline: Instant,
    ) -> Result<Self, LockError> {
        loop {
            let connection = connections.acquire(writes, deadline).await?;
            if Instant::now() >= deadline {
                connection.return_to_pool();
                return Err(too_late());
            }
            let mut session = Self {
                process: connection.process(),
                connection: Some(connection),
                runtime: Handle::current(),
                at_rest: false,
                in_transaction: false,
                statement: None,
            };
            if connections.are_own() {
                return Ok(session);
            }
            let left = session.ask_for_server_process(LEAVE_TRANSACTION);
            match timeout_at(until(deadline), left).await {
                Ok(Ok(())) => return Ok(session),
                Ok(Err(error)) => {
                    session.close();
                    if !has_state(&error, FAILED_TRANSACTION) {
                        return Err(map(error, Stage::Connecting { exhausted: false }));
                    }
                }
                Err(_) => return Err(too_late()),
            }
        }
    }

    fn close(mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
    }

    /// Closes the connection and those that were opened before: the server serves no longer.
    pub(super) fn close_with_others(mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close_with_others();
        }
    }

    pub(crate) fn connection(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        // Only `drop` takes it.
        let connection = self.connection.as_mut().ok_or(sqlx::Error::WorkerCrashed)?;
        Ok(connection.get_mut())
    }

    /// Declares the connection at rest: every statement was answered, and none failed.
    pub(crate) fn settle(&mut self) {
        self.at_rest = true;
    }

    /// Whether the session has a `lock_timeout` for the backend's statements.
    pub(super) fn limits_waits(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(Connection::limits_waits)
    }

    /// Runs the query of a statement in one round trip, once the connection has prepared it.
    pub(super) async fn run(
        &mut self,
        name: &Arc<str>,
        query: Query<'_>,
    ) -> Result<Option<PgRow>, sqlx::Error> {
        self.statement = Some(Arc::clone(name));
        query.fetch_optional(self.connection()?).await
    }

    /// Runs a query in an explicit transaction, with an unnamed statement.
    pub(super) async fn run_in_transaction(
        &mut self,
        query: Query<'_>,
    ) -> Result<Option<PgRow>, sqlx::Error> {
        self.begin().await?;
        let query = query.persistent(false);
        match query.fetch_optional(self.connection()?).await {
            Ok(row) => self.commit().await.map(|()| row),
            Err(error) => {
                // The statement's error matters, not that of the roll-back.
                let _ = self.rollback().await;
                Err(error)
            }
        }
    }

    // sqlx's own transactions do not know of a BEGIN whose reply was not awaited, and would return
    // the connection with the transaction open.

    pub(crate) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        self.in_transaction = true;
        self.ask_for_server_process(BEGIN).await
    }

    /// Executes commands, the last of which asks for the server process.
    async fn ask_for_server_process(&mut self, commands: &'static str) -> Result<(), sqlx::Error> {
        let row = sqlx::raw_sql(commands)
            .fetch_one(self.connection()?)
            .await?;
        self.process = Some(ServerProcess::of(&row)?);
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.execute("COMMIT").await?;
        self.in_transaction = false;
        Ok(())
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        self.execute("ROLLBACK").await?;
        self.in_transaction = false;
        Ok(())
    }

    pub(crate) async fn execute(&mut self, command: &'static str) -> Result<(), sqlx::Error> {
        let connection = self.connection()?;
        sqlx::raw_sql(command).execute(connection).await.map(drop)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        // sqlx's pool spawns a task to take a connection back, wherever this is dropped.
        let _entered = self.runtime.enter();
        if self.at_rest && !self.in_transaction {
            connection.return_to_pool();
        } else {
            let sent = match (self.in_transaction, self.statement.take()) {
                (true, _) => Some(Sent::Transaction),
                (false, name) => name.map(Sent::Statement),
            };
            let hanging = self.process.take().zip(sent);
            let recovered = recover(connection, self.in_transaction, hanging);
            drop(self.runtime.spawn(recovered));
        }
    }
}

/// Waits for the reply to a statement whose caller has left, or finds out after an error whether the
/// connection is usable. sqlx's pool would wait without limit, and a server that hangs would block
/// connection after connection.
async fn recover(
    mut connection: Connection,
    in_transaction: bool,
    hanging: Option<(Arc<ServerProcess>, Sent)>,
) {
    let at_rest = async {
        let connection = connection.get_mut();
        connection.ping().await?;
        if in_transaction {
            sqlx::raw_sql("ROLLBACK").execute(connection).await?;
        }
        Ok::<_, sqlx::Error>(())
    };
    match tokio::time::timeout(RECOVERY_TIMEOUT, at_rest).await {
        Ok(Ok(())) => connection.return_to_pool(),
        Ok(Err(_)) => connection.close(),
        // Otherwise server processes would accumulate while a synchronous standby is away, or a table locked.
        Err(_) => match hanging {
            Some((process, sent)) => connection.end(&process, &sent).await,
            None => connection.close(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_wait_for_as_long_as_sessions_do() {
        let setting = format!("SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS};");
        assert!(BEGIN.contains(&setting), "{BEGIN}");
    }
}
