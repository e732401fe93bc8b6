//! The tables: how they are created, and the DDL for it.

use std::time::Duration;

use sqlx::{PgConnection, Row as _};
use syncguard_core::observe::Operation;
use syncguard_core::{ErrorCode, LockError};
use tokio::time::{Instant, timeout};

use crate::PostgresBackend;
use crate::error::{Stage, has_state, map};
use crate::wire::Session;

/// The longest that a set-up takes: it may have to wait for others, and for locks on the tables.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);
const SETUP_ATTEMPTS: u32 = 5;

/// The longest that one attempt waits for a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);

/// Other set-ups, and long transactions on an existing table, may take longer than the rows of a key.
const PATIENT: &str = "SET LOCAL lock_timeout = 25000";

/// The SQLSTATEs of a set-up while another program creates the same table without our advisory lock.
const CREATED_MEANWHILE: &[&str] = &["23505", "42P07", "42710"];

impl PostgresBackend {
    /// The DDL that [`setup_schema`](Self::setup_schema) runs, for migration tools.
    ///
    /// There is no index on `expires_at_ms`, and half of each page stays free: so an extend rewrites a
    /// row within its page and touches no index.
    #[must_use]
    pub fn schema_ddl(&self) -> String {
        include_str!("sql/schema.sql")
            .replace("{locks}", &self.names().locks.to_string())
            .replace("{fences}", &self.names().fence_counters.to_string())
    }

    /// Creates the tables and indexes that are missing.
    ///
    /// Any number of processes may call it at the same time. If everything exists it only reads, and
    /// needs no permission to create anything. A schema other than the default one must exist.
    ///
    /// # Errors
    /// `AuthFailed` if something is missing and the role may not create it, `InvalidArgument` if the
    /// schema does not exist, `NetworkTimeout` after 30 s, or a failure of the server.
    ///
    /// # Cancel safety
    /// Safe: it creates everything or nothing.
    pub async fn setup_schema(&self) -> Result<(), LockError> {
        timeout(SETUP_TIMEOUT, self.set_up())
            .await
            .unwrap_or_else(|_| {
                let message = format!("the tables were not created within {SETUP_TIMEOUT:?}");
                Err(LockError::new(ErrorCode::NetworkTimeout, message))
            })
            .map_err(|error| error.with_operation(Operation::Setup))
    }

    async fn set_up(&self) -> Result<(), LockError> {
        let mut attempt = 1;
        loop {
            let deadline = Instant::now() + CONNECTION_TIMEOUT;
            let mut session = Session::open(self.connections(), deadline).await?;
            let result = self.create_missing(&mut session).await;
            if result.is_ok() {
                session.settle();
            }
            match result {
                Err(error) if has_state(&error, CREATED_MEANWHILE) && attempt < SETUP_ATTEMPTS => {
                    attempt += 1;
                }
                result => return result.map_err(|error| map(error, Stage::Reading)),
            }
        }
    }

    async fn create_missing(&self, session: &mut Session) -> Result<(), sqlx::Error> {
        session.begin().await?;
        if self.missing(session.connection()?).await?.is_some() {
            session.execute(PATIENT).await?;
            // `IF NOT EXISTS` alone fails when two sessions create a table at once.
            sqlx::raw_sql("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('syncguard:setup_schema'))")
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
            let locks = &self.names().locks;
            ddl.push_str(&format!("CREATE UNIQUE INDEX ON {locks} (lock_id);"));
        }
        // Only checked, quoted identifiers were filled in.
        sqlx::raw_sql(sqlx::AssertSqlSafe(ddl))
            .execute(connection)
            .await
            .map(drop)
    }

    async fn missing(&self, connection: &mut PgConnection) -> Result<Option<Missing>, sqlx::Error> {
        let row = sqlx::query(include_str!("sql/schema_missing.sql"))
            .bind(self.names().locks.to_string())
            .bind(self.names().fence_counters.to_string())
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
}

/// What a set-up has to create.
#[derive(Debug, Clone, Copy)]
struct Missing {
    tables: bool,
    index_of_existing_table: bool,
}
