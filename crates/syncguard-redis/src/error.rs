//! The one place where fred's errors become [`LockError`]s.

use std::borrow::Cow;

use fred::error::{Error, ErrorKind};
use syncguard_core::{ErrorCode, LockError, Operation};

const MISSING_RIGHT: &str =
    "the Redis user lacks a right; the crate's documentation lists what is needed";

/// How a right is refused in the middle of a script: by 7.0, and by later versions and Valkey.
const IN_SCRIPT: [&str; 2] = ["user executing the script", "ACL failure in script"];

const NO_RUNTIME: &str = "there is no Tokio runtime to run the call on";

/// Maps the error of a command.
pub(crate) fn command_error(error: &Error) -> LockError {
    let verdict = classify(error);
    let mapped = LockError::new(verdict.code, verdict.message).with_source(quotable(error));
    match verdict.applied {
        Applied::No => mapped,
        Applied::Unknown => mapped.with_outcome_unknown(),
    }
}

/// Maps the error of connecting or of looking around, where there is nothing that could have been
/// applied.
pub(crate) fn connect_error(error: &Error) -> LockError {
    let verdict = classify(error);
    LockError::new(verdict.code, verdict.message)
        .with_source(quotable(error))
        .with_operation(Operation::Setup)
}

/// The error of a call that was made outside a runtime, so that nothing was sent.
pub(crate) fn no_runtime() -> Error {
    Error::new(ErrorKind::Unknown, NO_RUNTIME)
}

/// Whether the server does not know a script by its digest.
pub(crate) fn is_noscript(error: &Error) -> bool {
    reply_code(error) == Some("NOSCRIPT")
}

/// Whether the server does not let this user run a command, or does not have it, as managed
/// services hide some.
pub(crate) fn is_withheld(error: &Error) -> bool {
    reply_code(error) == Some("NOPERM") || error.details().contains("unknown command")
}

/// Whether the server cannot read a script at all.
pub(crate) fn is_unreadable_script(error: &Error) -> bool {
    error.details().contains("compiling script")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applied {
    No,
    Unknown,
}

#[derive(Debug, Clone, Copy)]
struct Verdict {
    code: ErrorCode,
    message: &'static str,
    applied: Applied,
}

fn classify(error: &Error) -> Verdict {
    match reply_code(error) {
        Some(code) => classify_reply(code, error.details()),
        None => classify_kind(error),
    }
}

/// An error that the server replied. It says for itself that nothing was written, since each script
/// fails at its first write or not at all; unless a right is missing in the middle of one, or it is
/// an error that should not occur.
fn classify_reply(code: &str, details: &str) -> Verdict {
    let mut applied = Applied::No;
    let (code, message) = match code {
        "LOADING" => (ErrorCode::ServiceUnavailable, "Redis is loading its data"),
        "READONLY" => (
            ErrorCode::ServiceUnavailable,
            "Redis is a read-only replica; a failover may be under way",
        ),
        "CLUSTERDOWN" => {
            // The driver fails everything that shares the connection with the same error.
            applied = Applied::Unknown;
            (ErrorCode::ServiceUnavailable, "the Redis cluster is down")
        }
        "MASTERDOWN" => (
            ErrorCode::ServiceUnavailable,
            "the replica lost its primary",
        ),
        "MOVED" | "ASK" | "TRYAGAIN" => (
            ErrorCode::ServiceUnavailable,
            "the Redis cluster is moving the lock's slot",
        ),
        "MISCONF" => (
            ErrorCode::ServiceUnavailable,
            "Redis refuses writes: it cannot persist them",
        ),
        "NOREPLICAS" => (
            ErrorCode::ServiceUnavailable,
            "Redis refuses writes: it has too few replicas",
        ),
        "BUSY" => (
            ErrorCode::ServiceUnavailable,
            "Redis is busy with a long script",
        ),
        "NOSCRIPT" => (ErrorCode::ServiceUnavailable, "Redis did not keep a script"),
        "NOAUTH" => (ErrorCode::AuthFailed, "Redis requires credentials"),
        "WRONGPASS" => (ErrorCode::AuthFailed, "Redis refuses the credentials"),
        "NOPERM" => (ErrorCode::AuthFailed, MISSING_RIGHT),
        "WRONGTYPE" => (
            ErrorCode::InvalidArgument,
            "the value at the lock's place in Redis is no lock; it was left as it is",
        ),
        "CROSSSLOT" => (
            ErrorCode::InvalidArgument,
            "the lock's keys are on several cluster nodes; give the prefix a hash tag",
        ),
        "OOM" => (ErrorCode::RateLimited, "Redis has reached its maxmemory"),
        _ if details.contains("max number of clients") => {
            (ErrorCode::RateLimited, "Redis has reached its maxclients")
        }
        _ if details.contains("without any password configured") => (
            ErrorCode::AuthFailed,
            "Redis has no password, but one was sent",
        ),
        _ if details.contains("not an integer") => (
            ErrorCode::InvalidArgument,
            "the key's fence counter is no integer; it was left as it is",
        ),
        _ if details.contains("would overflow") => (
            ErrorCode::Internal,
            "the key's fence counter is used up; use a new key or prefix",
        ),
        _ if details.contains("syntax error") => (
            ErrorCode::InvalidArgument,
            "Redis refuses the command's syntax; it may be older than 6.2",
        ),
        _ if IN_SCRIPT.iter().any(|refusal| details.contains(refusal)) => {
            applied = Applied::Unknown;
            (ErrorCode::AuthFailed, MISSING_RIGHT)
        }
        _ => {
            applied = Applied::Unknown;
            (
                ErrorCode::Internal,
                "Redis replied with an unexpected error",
            )
        }
    };
    Verdict {
        code,
        message,
        applied,
    }
}

/// An error of the driver itself.
fn classify_kind(error: &Error) -> Verdict {
    let (code, message, applied) = match error.kind() {
        ErrorKind::Unknown if error.details() == NO_RUNTIME => {
            (ErrorCode::Internal, NO_RUNTIME, Applied::No)
        }
        // With `fail_fast`, and once the client was closed: the command never left the queue.
        ErrorKind::Canceled => (
            ErrorCode::ServiceUnavailable,
            "there is no connection to Redis",
            Applied::No,
        ),
        ErrorKind::Backpressure => (
            ErrorCode::RateLimited,
            "too many commands are waiting for Redis",
            Applied::No,
        ),
        ErrorKind::Auth => (
            ErrorCode::AuthFailed,
            "Redis refuses the credentials",
            Applied::No,
        ),
        ErrorKind::Url | ErrorKind::Config => (
            ErrorCode::InvalidArgument,
            "the Redis URL or client configuration is not usable",
            Applied::No,
        ),
        ErrorKind::InvalidArgument | ErrorKind::InvalidCommand => (
            ErrorCode::InvalidArgument,
            "the Redis client refuses the command",
            Applied::No,
        ),
        ErrorKind::Timeout => (
            ErrorCode::NetworkTimeout,
            "Redis did not answer in time",
            Applied::Unknown,
        ),
        ErrorKind::IO | ErrorKind::Routing | ErrorKind::Cluster | ErrorKind::Sentinel => (
            ErrorCode::ServiceUnavailable,
            "the connection to Redis failed",
            Applied::Unknown,
        ),
        ErrorKind::Protocol | ErrorKind::Parse | ErrorKind::NotFound => (
            ErrorCode::Internal,
            "the Redis client did not understand the reply",
            Applied::Unknown,
        ),
        // `Unknown` is, among others, a client that stopped in the middle; the kinds that exist
        // with some features only are failures of the connection as well.
        _ => (
            ErrorCode::ServiceUnavailable,
            "the connection to Redis failed",
            Applied::Unknown,
        ),
    };
    Verdict {
        code,
        message,
        applied,
    }
}

/// The code in front of an error reply, such as `WRONGTYPE`; `None` for the driver's own errors,
/// which are sentences.
fn reply_code(error: &Error) -> Option<&str> {
    let details = error.details();
    // Up to version 6, Redis puts what a script ran into behind a text of its own.
    let inner = details
        .split_once("@user_script:")
        .filter(|_| details.contains("Error running script"))
        .and_then(|(_, at)| at.trim_start().split_once(": "))
        .and_then(|(_, error)| first_code(error.trim_start_matches(['-', '@'])));
    inner.or_else(|| first_code(details))
}

fn first_code(text: &str) -> Option<&str> {
    let word = text.split_whitespace().next()?;
    let is_code = word.len() >= 3 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    is_code.then_some(word)
}

/// The driver's error as it may be shown. Of a command that it does not know, Redis quotes the
/// arguments, cut to a length; then no search for the whole key would find it.
fn quotable(error: &Error) -> Error {
    let details = error.details();
    let shown = details
        .find(", with args")
        .map_or(details, |end| &details[..end]);
    Error::new(error.kind().clone(), Cow::Owned(shown.to_owned()))
}

#[cfg(test)]
mod tests;
