//! [`SqliteOptions`].

use std::sync::Arc;
use std::time::Duration;

use syncguard_core::LockError;
use syncguard_core::observe::Operation;

use crate::names::Names;
use crate::place::Place;

/// The names of the tables, and how the backend uses the file.
///
/// The options are checked when a backend is made with them.
///
/// ```
/// # use syncguard_sqlite::{SqliteOptions, Synchronous};
/// let options = SqliteOptions::new()
///     .locks_table("jobs_locks")
///     .fence_counters_table("jobs_fence_counters")
///     .synchronous(Synchronous::Normal);
/// ```
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    locks_table: String,
    fence_counters_table: String,
    prefix: String,
    busy_timeout: Option<Duration>,
    pub(crate) synchronous: Synchronous,
}

/// What a power failure may undo: SQLite's `synchronous` setting. The end or crash of a process undoes nothing,
/// whatever the setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Synchronous {
    /// Every grant, extension and release is on the disk before the call returns.
    #[default]
    Full,
    /// A crash of the operating system or a power failure can undo the last operations. All holders end with the
    /// machine, but a fence can be granted a second time, and a resource on another machine may have seen
    /// it already.
    Normal,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            locks_table: "syncguard_locks".to_owned(),
            fence_counters_table: "syncguard_fence_counters".to_owned(),
            prefix: String::new(),
            busy_timeout: None,
            synchronous: Synchronous::Full,
        }
    }
}

impl SqliteOptions {
    /// The defaults, each named at its setter.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The table of locks. Default: `syncguard_locks`.
    ///
    /// A name of at most 63 ASCII letters, digits, `_` and `$`. SQLite ignores its case.
    #[must_use]
    pub fn locks_table(mut self, name: impl Into<String>) -> Self {
        self.locks_table = name.into();
        self
    }

    /// The table of fence counters, which is not the table of locks. Default:
    /// `syncguard_fence_counters`.
    #[must_use]
    pub fn fence_counters_table(mut self, name: impl Into<String>) -> Self {
        self.fence_counters_table = name.into();
        self
    }

    /// A prefix of every storage key, to keep applications on one table apart. Default: none.
    ///
    /// A storage key longer than [`STORAGE_KEY_LIMIT`](crate::STORAGE_KEY_LIMIT) is shortened to a hash.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The longest that an operation waits for transactions of other connections to the file. Default:
    /// until the operation's own deadline.
    ///
    /// An operation that reaches this limit fails with `NetworkTimeout`, and its outcome is known.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = Some(timeout);
        self
    }

    /// What a power failure may undo. Default: [`Synchronous::Full`], nothing.
    ///
    /// A pool that the application passes has its own setting.
    #[must_use]
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    pub(crate) fn check(self, place: Place) -> Result<Settings, LockError> {
        let names = Names::new(&self.locks_table, &self.fence_counters_table, self.prefix);
        Ok(Settings {
            names: names.map_err(|error| error.with_operation(Operation::Setup))?,
            place: Arc::new(place),
            busy_timeout: self.busy_timeout,
        })
    }
}

/// Options that have been checked, and where the store is.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) names: Names,
    pub(crate) place: Arc<Place>,
    pub(crate) busy_timeout: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use syncguard_core::ErrorCode;

    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert!(SqliteOptions::new().check(Place::memory()).is_ok());
    }

    #[test]
    fn options_that_cannot_work_are_refused() {
        let options = SqliteOptions::new;
        let bad = [
            options().locks_table("drop table x"),
            options().fence_counters_table(""),
            options().locks_table("syncguard_fence_counters"),
            options().prefix("a\0b"),
            options().prefix("p".repeat(1678)),
        ];
        for options in bad {
            let error = options.clone().check(Place::memory()).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{options:?}");
        }
    }
}
