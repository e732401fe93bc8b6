//! [`PostgresOptions`].

use syncguard_core::{
    LockError, LockKey, MAX_KEY_LENGTH_BYTES, Operation, make_fence_key, make_storage_key,
};

use crate::table::TableName;

/// Longest storage key in bytes: an entry of a B-tree index holds at most 2704.
const STORAGE_KEY_LIMIT: usize = 1700;
/// Nothing is appended to a storage key.
const STORAGE_KEY_RESERVE: usize = 0;

/// Where the locks are and how the server is reached.
///
/// Checked when a store is made of them.
///
/// ```
/// # use syncguard_postgres::PostgresOptions;
/// let options = PostgresOptions::new()
///     .with_locks_table("jobs.locks")
///     .with_fence_counters_table("jobs.fence_counters");
/// ```
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    locks_table: String,
    fence_counters_table: String,
    prefix: String,
    transaction_pooler: bool,
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

    /// The table of locks, `table` or `schema.table`, without quotes. Default: `syncguard_locks`.
    ///
    /// Each part is an identifier of at most 63 bytes. It is quoted, so upper case is kept.
    #[must_use]
    pub fn with_locks_table(mut self, name: impl Into<String>) -> Self {
        self.locks_table = name.into();
        self
    }

    /// The table of fence counters, likewise; another than that of the locks. Default:
    /// `syncguard_fence_counters`.
    #[must_use]
    pub fn with_fence_counters_table(mut self, name: impl Into<String>) -> Self {
        self.fence_counters_table = name.into();
        self
    }

    /// Put before every key, to keep applications on one table apart. Default: none, as in the
    /// TypeScript original.
    ///
    /// A storage key of more than 1700 bytes is shortened to a hash.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Whether the server is reached through a pooler in transaction mode, such as PgBouncer.
    /// Default: no.
    ///
    /// Every operation then runs in an explicit transaction with an unnamed statement. That costs
    /// four round trips in place of one.
    #[must_use]
    pub fn with_transaction_pooler(mut self, pooled: bool) -> Self {
        self.transaction_pooler = pooled;
        self
    }

    /// Whether `is_locked` clears away the row of a lock that expired more than 2 s ago, in the
    /// background and at most once a second. Default: no, it only reads.
    ///
    /// It never changes the answer and never touches a fence counter.
    #[must_use]
    pub fn with_cleanup_in_is_locked(mut self, cleanup: bool) -> Self {
        self.cleanup_in_is_locked = cleanup;
        self
    }

    /// The most connections that a store made from a URL opens. A pool of one's own brings its
    /// own limit. Default: 10.
    #[must_use]
    pub fn with_max_connections(mut self, connections: u32) -> Self {
        self.max_connections = connections;
        self
    }
}

/// Options that have been checked.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) locks: TableName,
    pub(crate) fences: TableName,
    prefix: String,
    pub(crate) transaction_pooler: bool,
    pub(crate) cleanup_in_is_locked: bool,
    pub(crate) max_connections: u32,
}

impl PostgresOptions {
    pub(crate) fn check(self) -> Result<Settings, LockError> {
        self.checked()
            .map_err(|error| error.with_operation(Operation::Setup))
    }

    fn checked(self) -> Result<Settings, LockError> {
        let settings = Settings {
            locks: TableName::parse(&self.locks_table)?,
            fences: TableName::parse(&self.fence_counters_table)?,
            prefix: self.prefix,
            transaction_pooler: self.transaction_pooler,
            cleanup_in_is_locked: self.cleanup_in_is_locked,
            max_connections: self.max_connections,
        };
        if settings.locks.may_equal(&settings.fences) {
            return Err(LockError::invalid_argument(
                "locks and fence counters need a table each: clearing up one must not reach the \
                 other",
            ));
        }
        if settings.prefix.contains('\0') {
            return Err(LockError::invalid_argument("the prefix contains U+0000"));
        }
        if settings.max_connections == 0 {
            return Err(LockError::invalid_argument(
                "a store needs at least one connection",
            ));
        }
        // The longest key is the one that a long prefix fails first.
        settings.storage_key(&LockKey::new(&"x".repeat(MAX_KEY_LENGTH_BYTES))?)?;
        Ok(settings)
    }
}

impl Settings {
    pub(crate) fn storage_key(&self, key: &LockKey) -> Result<String, LockError> {
        make_storage_key(
            &self.prefix,
            key.as_str(),
            STORAGE_KEY_LIMIT,
            STORAGE_KEY_RESERVE,
        )
    }

    pub(crate) fn fence_key(&self, storage_key: &str) -> Result<String, LockError> {
        make_fence_key(
            &self.prefix,
            storage_key,
            STORAGE_KEY_LIMIT,
            STORAGE_KEY_RESERVE,
        )
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
    fn what_cannot_work_is_refused_before_any_connection() {
        let options = PostgresOptions::new;
        let bad = [
            options().with_locks_table("drop table x"),
            options().with_fence_counters_table(""),
            options().with_locks_table("syncguard_fence_counters"),
            options().with_locks_table("public.syncguard_fence_counters"),
            options().with_prefix("a\0b"),
            options().with_prefix("p".repeat(1678)),
            options().with_max_connections(0),
        ];
        for options in bad {
            let error = options.clone().check().unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{options:?}");
        }
        assert!(options().with_prefix("p".repeat(1677)).check().is_ok());
    }

    #[test]
    fn without_a_prefix_a_key_is_stored_as_it_is() {
        let settings = PostgresOptions::new().check().unwrap();
        let storage_key = settings
            .storage_key(&LockKey::new("payment:42").unwrap())
            .unwrap();
        assert_eq!(storage_key, "payment:42");
        assert_eq!(
            settings.fence_key(&storage_key).unwrap(),
            "fence:payment:42"
        );
    }
}
