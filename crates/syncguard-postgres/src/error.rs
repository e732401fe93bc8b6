//! From what the driver and the server say to a [`LockError`].

use std::error::Error;
use std::fmt;
use std::io;

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;
use syncguard_core::{ErrorCode, LockError};

const POOLER: &str = "prepared statements do not keep to this connection: behind a pooler in \
                      transaction mode, set `PostgresOptions::with_transaction_pooler`";

/// How the driver says that it was built without TLS. It has no code for that.
const NO_TLS_BUILT_IN: &str = "without TLS support";

const NO_TLS: &str = "the URL's `sslmode` asks for TLS; enable one of the crate's `tls-*` features, \
                      such as `tls-rustls-ring-native-roots`";

/// How far an operation had come when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It had no connection yet.
    Connecting {
        /// Whether all connections that the pool may have were in use.
        exhausted: bool,
    },
    /// It had been sent, and would have changed nothing.
    Reading,
    /// It had been sent, and the server may have carried it out.
    Writing,
}

/// Maps an error of the driver.
pub(crate) fn map(error: sqlx::Error, stage: Stage) -> LockError {
    use ErrorCode::{InvalidArgument, NetworkTimeout, RateLimited, ServiceUnavailable};

    let (code, message, unknown) = match &error {
        sqlx::Error::Database(database) => {
            let state = database.code().unwrap_or_default();
            let (code, message) = classify(&state);
            (code, message, is_outcome_unknown(&state))
        }
        sqlx::Error::Io(io) if io.kind() == io::ErrorKind::TimedOut => {
            (NetworkTimeout, "the server does not answer", true)
        }
        sqlx::Error::Io(_) => (ServiceUnavailable, "the connection failed", true),
        sqlx::Error::Tls(cause) if cause.to_string().contains(NO_TLS_BUILT_IN) => {
            (InvalidArgument, NO_TLS, false)
        }
        sqlx::Error::Tls(_) => (ServiceUnavailable, "TLS could not be set up", false),
        sqlx::Error::PoolTimedOut => match stage {
            Stage::Connecting { exhausted: true } => (
                RateLimited,
                "all connections of the pool stayed in use",
                false,
            ),
            _ => (
                ServiceUnavailable,
                "no connection could be opened in time",
                false,
            ),
        },
        sqlx::Error::PoolClosed => (ServiceUnavailable, "the pool is closed", false),
        sqlx::Error::Configuration(_) => {
            (InvalidArgument, "the connection URL is not valid", false)
        }
        sqlx::Error::BeginFailed => (ServiceUnavailable, "no transaction was begun", false),
        sqlx::Error::RowNotFound | sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
            return wrong_answer(stage);
        }
        sqlx::Error::Protocol(_) => (
            ServiceUnavailable,
            "the connection is out of step with the server",
            true,
        ),
        _ => (ErrorCode::Internal, "the driver failed", true),
    };
    let mapped = LockError::new(code, message);
    let mapped = match Quoted::of(&error) {
        Some(quoted) => mapped.with_source(quoted),
        None => mapped.with_source(error),
    };
    if unknown && stage == Stage::Writing {
        mapped.with_outcome_unknown()
    } else {
        mapped
    }
}

/// The error of an answer to something that we did not ask.
pub(crate) fn wrong_answer(stage: Stage) -> LockError {
    let error = LockError::new(
        ErrorCode::InvalidArgument,
        format!("the answer is to another statement: {POOLER}"),
    );
    if stage == Stage::Writing {
        error.with_outcome_unknown()
    } else {
        error
    }
}

/// Whether the server gave the statement up for the sake of another transaction.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    has_state(error, &["40001", "40P01"])
}

/// Whether the server named one of these SQLSTATEs.
pub(crate) fn has_state(error: &sqlx::Error, states: &[&str]) -> bool {
    let state = error.as_database_error().and_then(DatabaseError::code);
    state.is_some_and(|state| states.contains(&state.as_ref()))
}

/// What a SQLSTATE means. An exact code goes before its class.
fn classify(state: &str) -> (ErrorCode, &'static str) {
    use ErrorCode::{
        AuthFailed, Internal, InvalidArgument, NetworkTimeout, RateLimited, ServiceUnavailable,
    };
    let class = state.get(..2).unwrap_or_default();
    match state {
        "25006" => (ServiceUnavailable, "the server is read-only"),
        "26000" | "42P05" => (InvalidArgument, POOLER),
        "40001" | "40P01" => (ServiceUnavailable, "other transactions stayed in the way"),
        "42501" => (AuthFailed, "a right is missing"),
        "42P01" => (InvalidArgument, "a table is missing: run `setup_schema`"),
        "55P03" | "57014" => (NetworkTimeout, "the server gave the statement up"),
        "25P03" => (ServiceUnavailable, "the server ended the session"),
        _ if state.starts_with("57P0") => (ServiceUnavailable, "the server ends the session"),
        _ => match class {
            "08" => (ServiceUnavailable, "the connection failed"),
            "28" => (AuthFailed, "the server refuses the credentials"),
            "22" | "23" | "42" => (InvalidArgument, "the server refuses the statement"),
            "3D" | "3F" => (InvalidArgument, "the database or the schema does not exist"),
            "40" => (ServiceUnavailable, "the transaction was rolled back"),
            "53" => (RateLimited, "the server is out of a resource"),
            "58" => (ServiceUnavailable, "the server's system failed"),
            _ => (Internal, "the server failed"),
        },
    }
}

/// Whether the transaction may have been committed although the server reported this.
fn is_outcome_unknown(state: &str) -> bool {
    state.starts_with("08") || state.starts_with("57P0") || state == "40003"
}

/// Stands in for a server's error that quotes a row: it could hold a key that we do not know of.
struct Quoted {
    state: String,
    constraint: Option<String>,
}

impl Quoted {
    fn of(error: &sqlx::Error) -> Option<Self> {
        let error = error
            .as_database_error()?
            .try_downcast_ref::<PgDatabaseError>()?;
        let quotes = error.detail().is_some() || error.r#where().is_some();
        quotes.then(|| Self {
            state: error.code().to_owned(),
            constraint: error.constraint().map(str::to_owned),
        })
    }
}

impl fmt::Display for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SQLSTATE {}", self.state)?;
        if let Some(constraint) = &self.constraint {
            write!(f, " of {constraint}")?;
        }
        f.write_str("; the rest is withheld, it quotes a row")
    }
}

impl fmt::Debug for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for Quoted {}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorCode::*;

    #[test]
    fn each_sqlstate_has_its_code() {
        let table = [
            ("08000", ServiceUnavailable),
            ("08006", ServiceUnavailable),
            ("57P01", ServiceUnavailable),
            ("57P02", ServiceUnavailable),
            ("57P03", ServiceUnavailable),
            ("25006", ServiceUnavailable),
            ("40001", ServiceUnavailable),
            ("40P01", ServiceUnavailable),
            ("28000", AuthFailed),
            ("28P01", AuthFailed),
            ("42501", AuthFailed),
            ("22001", InvalidArgument),
            ("22P02", InvalidArgument),
            ("23505", InvalidArgument),
            ("42P01", InvalidArgument),
            ("42703", InvalidArgument),
            ("26000", InvalidArgument),
            ("42P05", InvalidArgument),
            ("3D000", InvalidArgument),
            ("53300", RateLimited),
            ("53100", RateLimited),
            ("57014", NetworkTimeout),
            ("55P03", NetworkTimeout),
            ("XX000", Internal),
            ("", Internal),
            ("ä", Internal),
        ];
        for (state, code) in table {
            assert_eq!(classify(state).0, code, "{state}");
        }
        assert!(classify("42P01").1.contains("setup_schema"));
    }

    #[test]
    fn only_what_was_sent_to_change_something_has_an_unknown_outcome() {
        let lost = || sqlx::Error::Io(io::ErrorKind::ConnectionReset.into());
        assert!(map(lost(), Stage::Writing).outcome_unknown());
        assert!(!map(lost(), Stage::Reading).outcome_unknown());
        assert!(!map(lost(), Stage::Connecting { exhausted: false }).outcome_unknown());
        assert!(!map(sqlx::Error::PoolClosed, Stage::Writing).outcome_unknown());
    }

    #[test]
    fn tls_that_was_not_built_in_is_told_from_tls_that_failed() {
        let code = |text: &str| {
            let error = sqlx::Error::Tls(text.into());
            map(error, Stage::Connecting { exhausted: false }).code()
        };
        let driver = "TLS upgrade required by connect options but SQLx was built without TLS \
                      support enabled";
        assert_eq!(code(driver), InvalidArgument);
        assert_eq!(code("server does not support TLS"), ServiceUnavailable);
    }

    #[test]
    fn a_full_pool_is_told_from_an_unreachable_server() {
        let code =
            |exhausted| map(sqlx::Error::PoolTimedOut, Stage::Connecting { exhausted }).code();
        assert_eq!(code(true), RateLimited);
        assert_eq!(code(false), ServiceUnavailable);
    }
}
