//! [`PostgresOptions`].

use syncguard_core::LockError;
use syncguard_core::observe::Operation;

use crate::names::Names;

/// Where the locks are and how the backend reaches the server.
///
/// The options are checked when a backend is made with them.
///
/// ```
/// # use syncguard_postgres::PostgresOptions;
/// let options = PostgresOptions::new()
///     .locks_table("jobs.locks")
///     .fence_counters_table("jobs.fence_counters");
/// ```
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    locks_table: String,
    fence_counters_table: String,
    prefix: String,
    transaction_pooler: bool,
    asynchronous_releases: bool,
    cleanup_in_is_locked: bool,
    max_connections: u32,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            locks_table: "syncguard_locks".to_owned(),
            fence_counters_table: "syncguard_fence_counters".to_owned(),
            prefix: String::new(),
            transaction_pooler: false,
            asynchronous_releases: false,
            cleanup_in_is_locked: false,
            max_connections: 10,
        }
    }
}

impl PostgresOptions {
    /// The defaults, each named at its setter.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The table of locks: `table` or `schema.table`, without quotes. Default: `syncguard_locks`.
    ///
    /// Each part is an identifier of at most 63 bytes. The backend quotes it, so upper case is kept.
    #[must_use]
    pub fn locks_table(mut self, name: impl Into<String>) -> Self {
        self.locks_table = name.into();
        self
    }

    /// The table of fence counters: `table` or `schema.table`, and not the table of locks. Default:
    /// `syncguard_fence_counters`.
    #[must_use]
    pub fn fence_counters_table(mut self, name: impl Into<String>) -> Self {
        self.fence_counters_table = name.into();
        self
    }

    /// A prefix of every storage key, to keep applications on one table apart. Default: none, as in
    /// the TypeScript original.
    ///
    /// A storage key longer than [`STORAGE_KEY_LIMIT`](crate::STORAGE_KEY_LIMIT) is shortened to a
    /// hash.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Whether connections go through a pooler in transaction mode, such as PgBouncer. Default:
    /// `false`.
    ///
    /// Such a pooler passes no wake-ups on: callers that wait poll.
    ///
    /// Every operation then runs in an explicit transaction with an unnamed statement. That costs
    /// four round trips instead of one.
    #[must_use]
    pub fn transaction_pooler(mut self, pooled: bool) -> Self {
        self.transaction_pooler = pooled;
        self
    }

    /// Whether a release is answered before its commit is on the disk (`synchronous_commit = off`, for
    /// releases alone). Default: `false`.
    ///
    /// A release then waits neither for the disk nor for synchronous standbys. If the server crashes or fails over
    /// before the commit is written, the released lock is there again until its TTL ends, or until its id is
    /// released once more. The server writes the commit within three `wal_writer_delay`, 0.6 s by default. This
    /// gives no key two holders: the next grant of the key commits synchronously, and the release with it.
    #[must_use]
    pub fn asynchronous_releases(mut self, asynchronous: bool) -> Self {
        self.asynchronous_releases = asynchronous;
        self
    }

    /// Whether `is_locked` deletes the row of a lock that expired more than 2 s ago, in the background
    /// and at most once a second. Default: `false`; `is_locked` only reads.
    ///
    /// It never changes the answer and never deletes a fence counter.
    #[must_use]
    pub fn cleanup_in_is_locked(mut self, cleanup: bool) -> Self {
        self.cleanup_in_is_locked = cleanup;
        self
    }

    /// The most connections that a backend made from a URL opens. Default: 10.
    ///
    /// One more is open while a caller waits for a key. A pool that the application passes has its own
    /// limit.
    #[must_use]
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = connections;
        self
    }
}

/// Options that have been checked.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) names: Names,
    pub(crate) transaction_pooler: bool,
    pub(crate) asynchronous_releases: bool,
    pub(crate) cleanup_in_is_locked: bool,
    /// Of the backend's own pool.
    pub(crate) max_connections: u32,
}

impl PostgresOptions {
    pub(crate) fn check(self) -> Result<Settings, LockError> {
        self.checked()
            .map_err(|error| error.with_operation(Operation::Setup))
    }

    fn checked(self) -> Result<Settings, LockError> {
        if self.max_connections == 0 {
            return Err(LockError::invalid_argument(
                "`max_connections` must be at least 1",
            ));
        }
        Ok(Settings {
            names: Names::new(&self.locks_table, &self.fence_counters_table, self.prefix)?,
            transaction_pooler: self.transaction_pooler,
            asynchronous_releases: self.asynchronous_releases,
            cleanup_in_is_locked: self.cleanup_in_is_locked,
            max_connections: self.max_connections,
        })
    }
}

#[cfg(test)]
mod tests {
    use syncguard_core::ErrorCode;

    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert!(PostgresOptions::new().check().is_ok());
    }

    #[test]
    fn options_that_cannot_work_are_refused_before_any_connection() {
        let options = PostgresOptions::new;
        let bad = [
            options().locks_table("drop table x"),
            options().fence_counters_table(""),
            options().locks_table("syncguard_fence_counters"),
            options().locks_table("public.syncguard_fence_counters"),
            options().prefix("a\0b"),
            options().prefix("p".repeat(1678)),
            options().max_connections(0),
        ];
        for options in bad {
            let error = options.clone().check().unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{options:?}");
        }
        assert!(options().prefix("p".repeat(1677)).check().is_ok());
    }
}
