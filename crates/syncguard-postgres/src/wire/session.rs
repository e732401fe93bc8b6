//! One statement on one connection, and what becomes of the connection afterwards.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{Connection as _, PgConnection, PgPool, Postgres, Row as _};
use syncguard_core::LockError;
use tokio::runtime::Handle;

use crate::error::{Stage, is_conflict, map, wrong_answer};
use crate::pool::{Leased, OwnPool};
use crate::query::{Statement, Value, Verdict};

/// How long a connection whose caller went away may take to become usable again.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a statement is repeated that the server gave up for the sake of another transaction.
const CONFLICT_RETRIES: u32 = 20;
const LONGEST_CONFLICT_PAUSE: Duration = Duration::from_millis(50);

/// Under a stricter isolation, which may be a database's default, a statement that waited for
/// another fails instead of going on with what the other left.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// Asks a statement about a subject, a key or a lock id.
pub(crate) async fn ask(
    connections: &Connections,
    transaction_pooler: bool,
    statement: &Statement,
    subject: &str,
    values: &[Value<'_>],
) -> Result<Verdict, LockError> {
    let stage = if statement.writes {
        Stage::Writing
    } else {
        Stage::Reading
    };
    let mut conflicts = 0;
    let answer = loop {
        let mut session = Session::open(connections).await?;
        let query = bound(statement, subject, values);
        let answer = if transaction_pooler || conflicts > 0 {
            session.in_transaction(query).await
        } else {
            session.alone(query).await
        };
        if answer.is_ok() {
            session.settle();
        }
        match answer {
            Err(error) if is_conflict(&error) && conflicts < CONFLICT_RETRIES => {
                drop(session);
                tokio::time::sleep(pause(conflicts)).await;
                conflicts += 1;
            }
            answer => break answer,
        }
    };
    let row = answer.map_err(|error| map(error, stage))?;
    let answer: Option<String> = row.and_then(|row| row.try_get(0).ok());
    answer
        .and_then(|answer| Verdict::parse(&answer, statement, subject))
        .ok_or_else(|| wrong_answer(stage))
}

type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

fn bound<'q>(statement: &'q Statement, subject: &'q str, values: &[Value<'q>]) -> Query<'q> {
    let query = sqlx::query(statement.sql.clone())
        .bind(statement.name.as_str())
        .bind(subject);
    values.iter().fold(query, |query, value| match *value {
        Value::Text(text) => query.bind(text),
        Value::Number(number) => query.bind(number),
    })
}

fn pause(conflicts: u32) -> Duration {
    let doubled = Duration::from_millis(1).saturating_mul(1 << conflicts.min(10));
    doubled.min(LONGEST_CONFLICT_PAUSE)
}

/// Where connections come from.
pub(crate) enum Connections {
    Own(Arc<OwnPool>),
    /// Of the application, which uses it too.
    Given(PgPool),
}

impl Connections {
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Own(pool) => pool.size(),
            Self::Given(pool) => usize::try_from(pool.size()).unwrap_or(usize::MAX),
        }
    }

    /// How a connection of one's own is made.
    pub(crate) fn target(&self) -> Cow<'_, PgConnectOptions> {
        match self {
            Self::Own(pool) => Cow::Borrowed(pool.target()),
            Self::Given(pool) => Cow::Owned((*pool.connect_options()).clone()),
        }
    }

    async fn take(&self) -> Result<Loan, LockError> {
        match self {
            Self::Own(pool) => pool.take().await.map(Loan::Own),
            Self::Given(pool) => pool.acquire().await.map(Loan::Given).map_err(|error| {
                let exhausted = pool.size() >= pool.options().get_max_connections();
                map(error, Stage::Connecting { exhausted })
            }),
        }
    }
}

enum Loan {
    Own(Leased),
    Given(PoolConnection<Postgres>),
}

impl Loan {
    fn connection(&mut self) -> &mut PgConnection {
        match self {
            Self::Own(connection) => connection,
            Self::Given(connection) => connection,
        }
    }

    fn give_back(self) {
        match self {
            Self::Own(connection) => connection.give_back(),
            // The pool takes it back in a task.
            Self::Given(connection) => drop(connection),
        }
    }

    fn close(self) {
        match self {
            Self::Own(connection) => drop(connection),
            Self::Given(mut connection) => connection.close_on_drop(),
        }
    }
}

/// A connection that is on loan.
pub(crate) struct Session {
    loan: Option<Loan>,
    runtime: Handle,
    settled: bool,
    in_transaction: bool,
}

impl Session {
    pub(crate) async fn open(connections: &Connections) -> Result<Self, LockError> {
        Ok(Self {
            loan: Some(connections.take().await?),
            runtime: Handle::current(),
            settled: false,
            in_transaction: false,
        })
    }

    pub(crate) fn connection(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        // Taken by `drop` alone.
        let loan = self.loan.as_mut().ok_or(sqlx::Error::WorkerCrashed)?;
        Ok(loan.connection())
    }

    /// Says that the connection is at rest: nothing that was sent is unanswered, and nothing failed.
    pub(crate) fn settle(&mut self) {
        self.settled = true;
    }

    /// One round trip, once the connection has prepared the statement.
    async fn alone(&mut self, query: Query<'_>) -> Result<Option<PgRow>, sqlx::Error> {
        query.fetch_optional(self.connection()?).await
    }

    /// For poolers that keep a connection together for one transaction, and no longer.
    async fn in_transaction(&mut self, query: Query<'_>) -> Result<Option<PgRow>, sqlx::Error> {
        self.begin().await?;
        let query = query.persistent(false);
        match query.fetch_optional(self.connection()?).await {
            Ok(row) => self.commit().await.map(|()| row),
            Err(error) => {
                // The statement's error is the one to tell.
                let _ = self.rollback().await;
                Err(error)
            }
        }
    }

    // The driver's own transactions do not know of a BEGIN whose answer was not waited for, and
    // would give the connection back with the transaction open.

    pub(crate) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        self.in_transaction = true;
        self.execute(BEGIN).await
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

    async fn execute(&mut self, command: &'static str) -> Result<(), sqlx::Error> {
        let connection = self.connection()?;
        sqlx::raw_sql(command).execute(connection).await.map(drop)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(loan) = self.loan.take() else {
            return;
        };
        // A given pool spawns a task to take a connection back, wherever this is dropped.
        let _entered = self.runtime.enter();
        if self.settled && !self.in_transaction {
            loan.give_back();
        } else {
            let recovered = recover(loan, self.in_transaction);
            drop(self.runtime.spawn(recovered));
        }
    }
}

/// Waits out what an abandoned caller had sent, or finds out what is left of a connection after an
/// error. A given pool would wait without end, and a server that hangs would take connection after
/// connection out of use.
async fn recover(mut loan: Loan, in_transaction: bool) {
    let at_rest = async {
        let connection = loan.connection();
        connection.ping().await?;
        if in_transaction {
            sqlx::raw_sql("ROLLBACK").execute(connection).await?;
        }
        Ok::<_, sqlx::Error>(())
    };
    match tokio::time::timeout(RECOVERY_TIMEOUT, at_rest).await {
        Ok(Ok(())) => loan.give_back(),
        Ok(Err(_)) | Err(_) => loan.close(),
    }
}
