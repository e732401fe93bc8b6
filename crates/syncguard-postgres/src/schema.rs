//! The tables: making them, printing how, and clearing them up.

use std::time::Duration;

use sqlx::{PgConnection, Row as _};
use syncguard_core::{ErrorCode, LockError, Operation};

use crate::PostgresStore;
use crate::error::{Stage, has_state, map};
use crate::query::Value;
use crate::session::Session;

/// Bounds a set-up: it may have to wait for others, and for locks on the tables.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);
const SETUP_ATTEMPTS: u32 = 5;

/// What a set-up sees when another program creates the same table at the same time, without our
/// advisory lock.
const CREATED_MEANWHILE: &[&str] = &["23505", "42P07", "42710"];

/// Rows that one statement of a purge deletes at most, so that none takes long.
const PURGE_BATCH: i64 = 1_000;

impl PostgresStore {
    /// The DDL that [`setup_schema`](Self::setup_schema) runs, for whoever creates tables by other
    /// means.
    ///
    /// There is no index on `expires_at_ms` and half of each page is left free: so an extend
    /// rewrites a row within its page and touches no index.
    #[must_use]
    pub fn schema_ddl(&self) -> String {
        include_str!("sql/schema.sql")
            .replace("{locks}", &self.settings().locks.to_string())
            .replace("{fences}", &self.settings().fences.to_string())
    }

    /// Creates what is missing of the tables and their indexes.
    ///
    /// Any number of processes may do so at the same time. Where everything exists it only looks,
    /// and needs no right to create anything. A schema other than the default must exist.
    ///
    /// # Errors
    /// `AuthFailed` if something is missing and the role may not create it, `InvalidArgument` if
    /// the schema does not exist, `NetworkTimeout` after 30 s; else a failure of the server.
    ///
    /// # Cancel safety
    /// Safe: everything is created, or nothing.
    pub async fn setup_schema(&self) -> Result<(), LockError> {
        tokio::time::timeout(SETUP_TIMEOUT, self.set_up())
            .await
            .unwrap_or_else(|_| {
                Err(LockError::new(
                    ErrorCode::NetworkTimeout,
                    format!("the schema was not set up within {SETUP_TIMEOUT:?}"),
                ))
            })
            .map_err(|error| error.with_operation(Operation::Setup))
    }

    async fn set_up(&self) -> Result<(), LockError> {
        let mut attempt = 1;
        loop {
            let mut session = Session::open(self.connections()).await?;
            let outcome = self.create_missing(&mut session).await;
            if outcome.is_ok() {
                session.settle();
            }
            match outcome {
                Err(error) if has_state(&error, CREATED_MEANWHILE) && attempt < SETUP_ATTEMPTS => {
                    attempt += 1;
                }
                outcome => return outcome.map_err(|error| map(error, Stage::Reading)),
            }
        }
    }

    async fn create_missing(&self, session: &mut Session) -> Result<(), sqlx::Error> {
        session.begin().await?;
        if self.missing(session.connection()?).await?.is_some() {
            // `IF NOT EXISTS` alone fails when two create at once.
            sqlx::raw_sql("SELECT pg_advisory_xact_lock(hashtext('syncguard:setup_schema'))")
                .execute(session.connection()?)
                .await?;
            if let Some(missing) = self.missing(session.connection()?).await? {
                self.create(missing, session.connection()?).await?;
            }
        }
        session.commit().await
    }

    async fn create(
        &self,
        missing: Missing,
        connection: &mut PgConnection,
    ) -> Result<(), sqlx::Error> {
        let mut ddl = String::new();
        if missing.tables {
            ddl.push_str(&self.schema_ddl());
        }
        if missing.index_of_existing_table {
            let locks = &self.settings().locks;
            ddl.push_str(&format!("CREATE UNIQUE INDEX ON {locks} (lock_id);"));
        }
        // Checked identifiers are all that was filled in.
        sqlx::raw_sql(sqlx::AssertSqlSafe(ddl))
            .execute(connection)
            .await
            .map(drop)
    }

    async fn missing(&self, connection: &mut PgConnection) -> Result<Option<Missing>, sqlx::Error> {
        let row = sqlx::query(include_str!("sql/schema_missing.sql"))
            .bind(self.settings().locks.to_string())
            .bind(self.settings().fences.to_string())
            .persistent(false)
            .fetch_one(connection)
            .await?;
        let [locks, fences, index]: [bool; 3] = [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?];
        let missing = Missing {
            tables: locks || fences,
            index_of_existing_table: index && !locks,
        };
        Ok((missing.tables || missing.index_of_existing_table).then_some(missing))
    }

    /// Deletes the rows of locks that expired more than 2 s ago, and tells how many there were.
    ///
    /// Only keys that are never acquired again leave such rows. Fence counters are never deleted:
    /// a key must not see a fence twice. It reads the whole table, in statements of up to 1000
    /// deletions each, and passes over rows that are in use. Run it from time to time, from any
    /// process.
    ///
    /// # Errors
    /// A failure of the server. What was deleted until then stays deleted.
    ///
    /// # Cancel safety
    /// Safe: what was deleted until then stays deleted.
    pub async fn purge_expired(&self) -> Result<u64, LockError> {
        let mut deleted = 0;
        loop {
            let values = [Value::Number(PURGE_BATCH)];
            let verdict = self.ask(&self.statements().purge, "all", &values).await?;
            let batch = verdict.number()?;
            deleted += batch;
            if batch < PURGE_BATCH.unsigned_abs() {
                return Ok(deleted);
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Missing {
    tables: bool,
    index_of_existing_table: bool,
}
