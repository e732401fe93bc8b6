//! Maps the errors of sqlx and SQLite to [`LockError`]s.

use std::io;
use std::path::Path;

use sqlx::error::DatabaseError;
use syncguard_core::{ErrorCode, LockError};

/// The bits of SQLite's result codes that name the error; the other bits give its kind.
const PRIMARY: i32 = 0xff;

/// SQLite's text for a `BEGIN` in a transaction. It has no code for that.
const IN_TRANSACTION: &str = "within a transaction";

const NO_TABLE: &str = "no such table";

/// How far an operation was when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The operation had no connection yet.
    Connecting,
    /// A script that only reads was sent.
    Reading,
    /// A script that writes was sent, and its transaction is not to be committed yet.
    Writing,
    /// Its transaction was to be committed.
    Committing,
}

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) enum Failed {
    Driver(sqlx::Error, Stage),
    /// The connection is not of the store.
    Refused(LockError),
}

impl Failed {
    /// Before the script was sent.
    pub(crate) fn before(error: sqlx::Error) -> Self {
        Self::Driver(error, Stage::Connecting)
    }

    /// Whether another connection had a lock on the file.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Self::Driver(error, _) if is_busy(error))
    }

    pub(crate) fn mapped(self) -> LockError {
        match self {
            Self::Driver(error, stage) => map(error, stage),
            Self::Refused(error) => error,
        }
    }
}

/// Maps an error of sqlx.
pub(crate) fn map(error: sqlx::Error, stage: Stage) -> LockError {
    use ErrorCode::{Internal, InvalidArgument, RateLimited, ServiceUnavailable};

    let (code, message, unknown) = match &error {
        sqlx::Error::Database(database) => {
            let result = result_code(database.as_ref());
            let (code, message) = classify(result, database.message());
            // Such an error does not prove that nothing was committed: a restart may complete the commit, or the
            // statement was interrupted right after it.
            let unknown = stage == Stage::Committing && !refuses_commit(result);
            (code, message, unknown)
        }
        sqlx::Error::WorkerCrashed => (
            ServiceUnavailable,
            "the thread of the connection ended",
            true,
        ),
        sqlx::Error::PoolTimedOut => (
            RateLimited,
            "all connections of the pool are in use; give the pool more connections, or the locks a \
             pool of their own",
            false,
        ),
        sqlx::Error::PoolClosed => (ServiceUnavailable, "the pool is closed", false),
        sqlx::Error::Io(io) if io.kind() == io::ErrorKind::InvalidData => (
            InvalidArgument,
            "SQLite cannot open this path: it must be UTF-8 without U+0000",
            false,
        ),
        sqlx::Error::Io(_) => (ServiceUnavailable, "the file cannot be used", true),
        sqlx::Error::Configuration(_) => (
            InvalidArgument,
            "the options of the connection are not valid",
            false,
        ),
        _ => (Internal, "the database driver failed", true),
    };
    let mapped = LockError::new(code, message).with_source(error);
    if unknown && matches!(stage, Stage::Writing | Stage::Committing) {
        mapped.with_outcome_unknown()
    } else {
        mapped
    }
}

/// The error of an operation that could not begin before its deadline.
pub(crate) fn too_late() -> LockError {
    LockError::new(
        ErrorCode::NetworkTimeout,
        "the file, or an earlier operation of this process, was busy until the deadline; nothing was \
         sent",
    )
}

/// The error of every operation once the backend was closed.
pub(crate) fn closed() -> LockError {
    LockError::new(ErrorCode::ServiceUnavailable, "the backend is closed")
}

/// The error of a file that is no longer the one that was opened.
pub(crate) fn replaced(path: &Path) -> LockError {
    LockError::new(
        ErrorCode::ServiceUnavailable,
        format!(
            "{} was replaced or removed while it was open; restart all processes that use it, so that \
             they share one file again",
            path.display()
        ),
    )
}

/// The error of a store in memory whose connection was closed.
pub(crate) fn memory_ended() -> LockError {
    LockError::new(
        ErrorCode::ServiceUnavailable,
        "the store in memory ended with its connection, and all its locks with it; make a new backend",
    )
}

/// The error of a pool whose file is not given by a path.
pub(crate) fn not_a_path() -> LockError {
    LockError::invalid_argument(
        "the pool's file must be given by a path, not by a `file:` URI, and not be immutable",
    )
}

/// The error of a pool whose connections each have a store of their own.
pub(crate) fn in_memory() -> LockError {
    LockError::invalid_argument(
        "a pool of a database in memory must have one connection that it never closes: each connection is \
         a store of its own; use `SqliteBackend::connect(\":memory:\")`, or set `max_connections(1)`, \
         `idle_timeout(None)`, `max_lifetime(None)` and `test_before_acquire(false)`",
    )
}

/// Whether another connection had a lock on the file.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    // SQLITE_BUSY, SQLITE_LOCKED, SQLITE_PROTOCOL
    code_of(error).is_some_and(|code| matches!(code & PRIMARY, 5 | 6 | 15))
}

/// Whether a `BEGIN` found a transaction open.
pub(crate) fn is_in_transaction(error: &sqlx::Error) -> bool {
    says(error, IN_TRANSACTION)
}

/// Whether a table was not found.
pub(crate) fn is_no_table(error: &sqlx::Error) -> bool {
    says(error, NO_TABLE)
}

fn says(error: &sqlx::Error, text: &str) -> bool {
    let database = error.as_database_error();
    database.is_some_and(|error| error.message().contains(text))
}

/// Whether a code of a commit says that the transaction is still open, or was rolled back.
fn refuses_commit(code: i32) -> bool {
    // SQLITE_BUSY, SQLITE_LOCKED, SQLITE_PROTOCOL, SQLITE_CONSTRAINT
    matches!(code & PRIMARY, 5 | 6 | 15 | 19)
}

fn code_of(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error().map(result_code)
}

/// The extended result code.
fn result_code(error: &dyn DatabaseError) -> i32 {
    let code = error.code().and_then(|code| code.parse().ok());
    code.unwrap_or_default()
}

/// The code and message of one of SQLite's extended result codes.
fn classify(code: i32, text: &str) -> (ErrorCode, &'static str) {
    use ErrorCode::{
        AuthFailed, Internal, InvalidArgument, NetworkTimeout, RateLimited, ServiceUnavailable,
    };
    match code {
        // SQLITE_READONLY_DBMOVED
        1032 => (
            ServiceUnavailable,
            "the file was moved or removed while it was open; restart all processes that use it",
        ),
        _ => match code & PRIMARY {
            1 if text.contains(NO_TABLE) => (
                InvalidArgument,
                "a table does not exist; run `setup_schema`",
            ),
            1 => (InvalidArgument, "SQLite rejected the statement"),
            3 | 23 => (AuthFailed, "permission denied"),
            5 | 6 | 15 => (
                NetworkTimeout,
                "another connection kept a lock on the file until the deadline; look for a long \
                 transaction on it",
            ),
            7 => (RateLimited, "out of memory"),
            8 => (
                AuthFailed,
                "the file is read-only here; this process needs permission to write to the file and \
                 to create files in its folder",
            ),
            9 => (NetworkTimeout, "the statement was interrupted"),
            10 => (
                ServiceUnavailable,
                "reading or writing the file failed; check the disk and the kernel's log",
            ),
            11 => (
                Internal,
                "the file is corrupted; run `PRAGMA integrity_check`, and replace it while no process \
                 uses it",
            ),
            13 => (RateLimited, "the disk is full, or the file may not grow"),
            14 => (
                ServiceUnavailable,
                "the file or one of its companions (`-wal`, `-shm`) cannot be opened; check the \
                 permissions of its folder and the limit of open files",
            ),
            19 => (InvalidArgument, "SQLite rejected the row"),
            26 => (
                InvalidArgument,
                "the file is not an SQLite database; choose another path",
            ),
            _ => (Internal, "SQLite reported an unexpected error"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorCode::*;

    #[test]
    fn each_result_code_has_its_code() {
        let table = [
            (1, InvalidArgument),
            (3, AuthFailed),
            (5, NetworkTimeout),
            (261, NetworkTimeout),
            (517, NetworkTimeout),
            (6, NetworkTimeout),
            (262, NetworkTimeout),
            (7, RateLimited),
            (8, AuthFailed),
            (1544, AuthFailed),
            (1032, ServiceUnavailable),
            (10, ServiceUnavailable),
            (1034, ServiceUnavailable),
            (11, Internal),
            (13, RateLimited),
            (14, ServiceUnavailable),
            (19, InvalidArgument),
            (2067, InvalidArgument),
            (26, InvalidArgument),
            (21, Internal),
            (0, Internal),
        ];
        for (result, code) in table {
            assert_eq!(classify(result, "").0, code, "{result}");
        }
        let no_table = classify(1, "no such table: locks");
        assert!(no_table.1.contains("setup_schema"));
    }

    #[test]
    fn only_a_script_that_writes_can_have_an_unknown_outcome() {
        let lost = || sqlx::Error::WorkerCrashed;
        assert!(map(lost(), Stage::Committing).outcome_unknown());
        assert!(map(lost(), Stage::Writing).outcome_unknown());
        assert!(!map(lost(), Stage::Reading).outcome_unknown());
        assert!(!map(lost(), Stage::Connecting).outcome_unknown());
        assert!(!map(sqlx::Error::PoolTimedOut, Stage::Writing).outcome_unknown());
    }

    #[test]
    fn a_commit_that_is_busy_or_refused_has_not_happened() {
        for (code, refuses) in [
            (5, true),
            (262, true),
            (531, true),
            (9, false),
            (778, false),
            (13, false),
        ] {
            assert_eq!(refuses_commit(code), refuses, "{code}");
        }
    }
}
