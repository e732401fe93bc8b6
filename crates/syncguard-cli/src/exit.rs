//! Exit codes, and the failure that ends a command with one.
//!
//! The codes are stable; `docs/command.md` lists them.

use std::error::Error;
use std::fmt::{Display, Write as _};
use std::iter;

use syncguard_core::{ErrorCode, LockError};

/// The result is no: the key is free, the id holds no lock, the doctor found errors.
pub(crate) const NO: u8 = 1;
/// The call is wrong: an option, a key, an id or a URL.
pub(crate) const USAGE: u8 = 64;
/// The store cannot be reached, or does not answer.
pub(crate) const UNAVAILABLE: u8 = 69;
/// A condition that should not occur, in the store or in this program.
pub(crate) const INTERNAL: u8 = 70;
/// Someone else holds the key.
pub(crate) const BUSY: u8 = 75;
/// The lease was lost while the command ran.
pub(crate) const LOST: u8 = 76;
/// The store refuses the credentials, or a permission is missing.
pub(crate) const DENIED: u8 = 77;
/// The command was found and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// The exit code for a process that a signal ended, as in shells.
pub(crate) fn of_signal(number: i32) -> u8 {
    u8::try_from(number).map_or(INTERNAL, |number| number.saturating_add(128))
}

/// Why a command of `syncguard` failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    pub(crate) error: Option<LockError>,
    /// The store, if the store failed and the arguments are right.
    pub(crate) store: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            error: None,
            store: None,
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// Adds the store, if the store failed.
    pub(crate) fn of_store(mut self, store: &impl Display) -> Self {
        self.store = matches!(self.code, UNAVAILABLE | DENIED).then(|| store.to_string());
        self
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        // A wait through failures ends with the last one as its cause.
        let cause = error
            .source()
            .and_then(|cause| cause.downcast_ref::<LockError>());
        let code = match (error.code(), cause) {
            (ErrorCode::AcquisitionTimeout, Some(cause)) => cause.code(),
            (code, _) => code,
        };
        Self {
            code: code_of(code),
            // Replaces advice for programs by advice for a shell.
            message: chain(&error)
                .replace(
                    "run `setup_schema`",
                    "`syncguard run` and `syncguard acquire` create it",
                )
                .replace(
                    "set `PostgresOptions::transaction_pooler`",
                    "use `--transaction-pooler`",
                ),
            error: Some(error),
            store: None,
        }
    }
}

// `ErrorCode` is `#[non_exhaustive]`, so the compiler accepts a match that lacks a code.
#[deny(clippy::wildcard_enum_match_arm)]
fn code_of(code: ErrorCode) -> u8 {
    match code {
        ErrorCode::InvalidArgument => USAGE,
        ErrorCode::ServiceUnavailable | ErrorCode::RateLimited | ErrorCode::NetworkTimeout => {
            UNAVAILABLE
        }
        ErrorCode::AuthFailed => DENIED,
        ErrorCode::AcquisitionTimeout => BUSY,
        ErrorCode::LockLost => LOST,
        // `Aborted` does not get here: a command that a signal ends has the signal's code.
        ErrorCode::Aborted | ErrorCode::Internal => INTERNAL,
        _ => INTERNAL,
    }
}

/// An error and its causes, in a line.
pub(crate) fn chain(error: &LockError) -> String {
    let mut text = error.to_string();
    for cause in iter::successors(error.source(), |cause| (*cause).source()) {
        // Some drivers repeat the cause in their own text.
        let cause = cause.to_string();
        if !text.contains(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_code() {
        for (code, expected) in [
            (ErrorCode::InvalidArgument, 64),
            (ErrorCode::ServiceUnavailable, 69),
            (ErrorCode::NetworkTimeout, 69),
            (ErrorCode::RateLimited, 69),
            (ErrorCode::Internal, 70),
            (ErrorCode::Aborted, 70),
            (ErrorCode::AcquisitionTimeout, 75),
            (ErrorCode::LockLost, 76),
            (ErrorCode::AuthFailed, 77),
        ] {
            assert_eq!(Failure::from(LockError::new(code, "x")).code, expected);
        }
        let failing = LockError::new(ErrorCode::NetworkTimeout, "x");
        let waited = LockError::new(ErrorCode::AcquisitionTimeout, "y").with_source(failing);
        assert_eq!(Failure::from(waited).code, 69);
        assert_eq!(of_signal(9), 137);
    }
}
