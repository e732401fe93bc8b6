//! Maps the errors of sqlx and the server to [`LockError`]s.

use std::error::Error as _;
use std::io;

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;
use syncguard_core::backend::Redacted;
use syncguard_core::{ErrorCode, LockError};

const POOLER: &str = "a prepared statement is missing on the server connection; \
                      behind a pooler in transaction mode, set `PostgresOptions::transaction_pooler`";

/// The text by which sqlx reports that it was built without TLS. It has no code for that.
const NO_TLS_BUILT_IN: &str = "without TLS support";

const NO_TLS: &str = "the URL's `sslmode` asks for TLS; enable one of the crate's `tls-*` features, \
                      such as `tls-rustls-ring-native-roots`";

const NO_POSTGRESQL: &str = "the server broke PostgreSQL's protocol; check that the address is that of a \
                             PostgreSQL server";

/// The length of a SQLSTATE. A server that is no PostgreSQL can send an error without one.
const STATE_LENGTH: usize = 5;

/// What an acquire fails with, as a text that is no number, if the lease that it wrote began too late.
pub(crate) const BEGAN_LATE: &str = "SyncGuard tries again: the lease began late";

/// How far an operation was when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The operation had no connection yet.
    Connecting {
        /// Whether all connections that the pool may have were in use.
        exhausted: bool,
    },
    /// A statement that only reads had been sent.
    Reading,
    /// A statement that writes had been sent; the server may have executed it.
    Writing,
}

/// Maps an error of sqlx.
pub(crate) fn map(error: sqlx::Error, stage: Stage) -> LockError {
    use ErrorCode::{InvalidArgument, NetworkTimeout, RateLimited, ServiceUnavailable};

    let (code, message, unknown) = match &error {
        sqlx::Error::Database(_) if began_late(&error) => (
            ServiceUnavailable,
            "the server wrote each lease too late, retries exhausted",
            false,
        ),
        sqlx::Error::Database(database) => {
            let state = database.code().unwrap_or_default();
            let (code, message) = classify(&state);
            (code, message, is_outcome_unknown(&state))
        }
        sqlx::Error::Io(io) if io.kind() == io::ErrorKind::TimedOut => {
            (NetworkTimeout, "the server did not answer", true)
        }
        sqlx::Error::Io(_) => (ServiceUnavailable, "the connection failed", true),
        sqlx::Error::Tls(cause) if cause.to_string().contains(NO_TLS_BUILT_IN) => {
            (InvalidArgument, NO_TLS, false)
        }
        sqlx::Error::Tls(_) => (ServiceUnavailable, "the TLS handshake failed", false),
        sqlx::Error::PoolTimedOut => match stage {
            Stage::Connecting { exhausted: true } => {
                (RateLimited, "all connections of the pool are in use", false)
            }
            _ => (
                ServiceUnavailable,
                "no connection could be opened before the deadline",
                false,
            ),
        },
        sqlx::Error::PoolClosed => (ServiceUnavailable, "the pool is closed", false),
        sqlx::Error::Configuration(_) => {
            (InvalidArgument, "the connection URL is not valid", false)
        }
        sqlx::Error::BeginFailed => (ServiceUnavailable, "BEGIN failed", false),
        sqlx::Error::RowNotFound | sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
            return wrong_reply(stage);
        }
        sqlx::Error::Protocol(_) => (ServiceUnavailable, NO_POSTGRESQL, true),
        _ => (ErrorCode::Internal, "the database driver failed", true),
    };
    let mapped = LockError::new(code, message);
    let mapped = match without_row(&error) {
        Some(shown) => mapped.with_source(Redacted::new(error, shown)),
        None => mapped.with_source(error),
    };
    if unknown && stage == Stage::Writing {
        mapped.with_outcome_unknown()
    } else {
        mapped
    }
}

/// The error of an operation that sent no statement before its deadline.
pub(crate) fn too_late() -> LockError {
    LockError::new(
        ErrorCode::NetworkTimeout,
        "no connection was ready before the deadline; nothing was sent",
    )
}

/// The error of a reply that belongs to another statement.
pub(crate) fn wrong_reply(stage: Stage) -> LockError {
    let error = LockError::new(
        ErrorCode::InvalidArgument,
        format!("the reply does not match the query: {POOLER}"),
    );
    if stage == Stage::Writing {
        error.with_outcome_unknown()
    } else {
        error
    }
}

/// Whether the server rolled the statement back because of another transaction: a serialization
/// failure, a deadlock, or a lease that began late.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    has_state(error, &["40001", "40P01"]) || began_late(error)
}

fn began_late(error: &sqlx::Error) -> bool {
    let database = error.as_database_error();
    database.is_some_and(|error| error.message().contains(BEGAN_LATE))
}

/// Whether the server stops, or is read-only: after a failover its address may lead to another server.
pub(crate) fn serves_no_longer(error: &sqlx::Error) -> bool {
    has_state(error, &["25006", "57P01", "57P02", "57P03"])
}

/// Whether the server cancelled the statement because it waited for another transaction.
pub(crate) fn is_lock_timeout(error: &sqlx::Error) -> bool {
    has_state(error, &["55P03"])
}

/// Whether the server reported one of these SQLSTATEs.
pub(crate) fn has_state(error: &sqlx::Error, states: &[&str]) -> bool {
    let state = error.as_database_error().and_then(DatabaseError::code);
    state.is_some_and(|state| states.contains(&state.as_ref()))
}

/// Whether a mapped error has one of these SQLSTATEs.
pub(crate) fn is_of_state(error: &LockError, states: &[&str]) -> bool {
    let Some(source) = error.source() else {
        return false;
    };
    let driver = match source.downcast_ref::<Redacted>() {
        Some(redacted) => redacted.get_ref().downcast_ref(),
        None => source.downcast_ref(),
    };
    driver.is_some_and(|error| has_state(error, states))
}

/// The code and message of a SQLSTATE. An exact match comes before that of its class.
fn classify(state: &str) -> (ErrorCode, &'static str) {
    use ErrorCode::{
        AuthFailed, Internal, InvalidArgument, NetworkTimeout, RateLimited, ServiceUnavailable,
    };
    let class = state.get(..2).unwrap_or_default();
    match state {
        _ if state.len() != STATE_LENGTH => (ServiceUnavailable, NO_POSTGRESQL),
        "25006" => (ServiceUnavailable, "the server is read-only"),
        "26000" | "42P05" => (InvalidArgument, POOLER),
        "40001" | "40P01" => (
            ServiceUnavailable,
            "serialization failure or deadlock, retries exhausted",
        ),
        "42501" => (AuthFailed, "permission denied"),
        "42P01" => (
            InvalidArgument,
            "a table does not exist; run `setup_schema`",
        ),
        "55P03" => (
            NetworkTimeout,
            "another transaction keeps a lock on the key's row or table, or its advisory lock: see \
             `pg_blocking_pids`",
        ),
        "57014" => (
            NetworkTimeout,
            "statement cancelled by the server (statement_timeout)",
        ),
        "25P03" => (ServiceUnavailable, "the server ended the idle session"),
        _ if state.starts_with("57P0") => (
            ServiceUnavailable,
            "the server is starting, stopping or ending the session",
        ),
        _ => match class {
            "08" => (ServiceUnavailable, "the connection failed"),
            "28" => (AuthFailed, "the server rejected the credentials"),
            "22" | "23" | "42" => (InvalidArgument, "the server rejected the statement"),
            "3D" | "3F" => (InvalidArgument, "the database or schema does not exist"),
            "40" => (ServiceUnavailable, "the transaction was rolled back"),
            "53" => (
                RateLimited,
                "the server is out of connections, memory or disk space",
            ),
            "58" => (ServiceUnavailable, "the server's operating system failed"),
            _ => (Internal, "the server reported an unexpected error"),
        },
    }
}

/// Whether the transaction may have been committed although the server reported this SQLSTATE.
fn is_outcome_unknown(state: &str) -> bool {
    let lost = state.starts_with("08") || state.starts_with("57P0") || state == "40003";
    lost || state.len() != STATE_LENGTH
}

/// What to show instead of a server's error that quotes a row: the row can hold a key that the operation does
/// not know.
fn without_row(error: &sqlx::Error) -> Option<String> {
    let error = error
        .as_database_error()?
        .try_downcast_ref::<PgDatabaseError>()?;
    if error.detail().is_none() && error.r#where().is_none() {
        return None;
    }
    let of_constraint = error.constraint().map(|name| format!(" of {name}"));
    Some(format!(
        "SQLSTATE {}{}; the rest is redacted, it quotes a row",
        error.code(),
        of_constraint.unwrap_or_default()
    ))
}

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
            ("Äbcd", Internal),
            ("", ServiceUnavailable),
            ("ä", ServiceUnavailable),
        ];
        for (state, code) in table {
            assert_eq!(classify(state).0, code, "{state}");
        }
        assert!(classify("42P01").1.contains("setup_schema"));
    }

    #[test]
    fn only_a_write_that_was_sent_has_an_unknown_outcome() {
        let lost = || sqlx::Error::Io(io::ErrorKind::ConnectionReset.into());
        assert!(map(lost(), Stage::Writing).outcome_unknown());
        assert!(!map(lost(), Stage::Reading).outcome_unknown());
        assert!(!map(lost(), Stage::Connecting { exhausted: false }).outcome_unknown());
        assert!(!map(sqlx::Error::PoolClosed, Stage::Writing).outcome_unknown());
    }

    #[test]
    fn missing_tls_and_failed_tls_have_different_codes() {
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
    fn a_full_pool_and_an_unreachable_server_have_different_codes() {
        let code =
            |exhausted| map(sqlx::Error::PoolTimedOut, Stage::Connecting { exhausted }).code();
        assert_eq!(code(true), RateLimited);
        assert_eq!(code(false), ServiceUnavailable);
    }
}
