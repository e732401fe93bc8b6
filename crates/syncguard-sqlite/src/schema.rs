//! The tables: how they are created.

use std::time::Duration;

use syncguard_core::LockError;
use syncguard_core::observe::Operation;
use tokio::time::Instant;

use crate::SqliteBackend;
use crate::record::{column, unreadable};
use crate::wire::{DDL, Value, fill_in};

/// The longest that a set-up takes: it may have to wait for other processes.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);

impl SqliteBackend {
    /// The DDL that [`setup_schema`](Self::setup_schema) runs, for migration tools.
    #[must_use]
    pub fn schema_ddl(&self) -> String {
        let names = self.names();
        fill_in(DDL, &names.locks, &names.fence_counters)
    }

    /// Creates the tables that are missing.
    ///
    /// [`connect`](Self::connect) does this by itself. Any number of processes may call it at the same
    /// time. If both tables exist, it only reads.
    ///
    /// # Errors
    /// `AuthFailed` if the file is read-only here, `NetworkTimeout` if another process uses it for 30 s, or
    /// a failure of the disk.
    ///
    /// # Cancel safety
    /// Safe: it creates everything or nothing.
    pub async fn setup_schema(&self) -> Result<(), LockError> {
        self.set_up(Instant::now() + SETUP_TIMEOUT)
            .await
            .map_err(|error| error.with_operation(Operation::Setup))
    }

    pub(crate) async fn set_up(&self, deadline: Instant) -> Result<(), LockError> {
        if self.missing_tables(deadline).await? > 0 {
            let create = &self.scripts().create_tables;
            self.exchange(create, &[], deadline).await?;
        }
        Ok(())
    }

    pub(crate) async fn missing_tables(&self, deadline: Instant) -> Result<i64, LockError> {
        let names = self.names();
        let values = [
            Value::Text(names.locks.as_str()),
            Value::Text(names.fence_counters.as_str()),
        ];
        let script = &self.scripts().missing_tables;
        let rows = self.exchange(script, &values, deadline).await?;
        column(rows.first().ok_or_else(unreadable)?, "missing")
    }
}
