//! Maps fred's errors to [`LockError`]s.

use fred::error::{Error, ErrorKind};
use syncguard_core::backend::Redacted;
use syncguard_core::observe::Operation;
use syncguard_core::{ErrorCode, LockError};

pub(crate) const MISSING_PERMISSION: &str = "the Redis user lacks a permission; `syncguard doctor` \
     and the crate's documentation list what is needed";

const CONNECTION_ENDED: &str = "the task of the Redis connection has ended, usually with its Tokio \
     runtime; connect in a runtime that runs for as long as the backend is used";

/// fred's errors for a command after its task has ended.
const NOT_QUEUED: [&str; 2] = [
    "Failed to send command to router.",
    "Client is not initialized.",
];

/// The error for a permission that is denied in the middle of a script, in Redis 7.0, and in later versions
/// and Valkey.
const IN_SCRIPT: [&str; 2] = ["user executing the script", "ACL failure in script"];

pub(crate) const NOT_A_LOCK: &str =
    "the value at the lock's storage key in Redis is not a lock; it was left unchanged";

/// Why a command has no reply.
#[derive(Debug, Clone)]
pub(crate) enum CommandError {
    /// Nothing was sent.
    NotSent {
        code: ErrorCode,
        message: &'static str,
    },
    /// The driver's error, which may be an error reply of the server.
    Driver(Error),
}

impl CommandError {
    pub(crate) const NO_RUNTIME: Self = Self::NotSent {
        code: ErrorCode::Internal,
        message: "there is no Tokio runtime to run the call on",
    };
    pub(crate) const PAST_DEADLINE: Self = Self::NotSent {
        code: ErrorCode::NetworkTimeout,
        message: "the deadline passed before the command could be sent",
    };
    pub(crate) const BACKEND_CLOSED: Self = Self::NotSent {
        code: ErrorCode::ServiceUnavailable,
        message: "the backend was closed",
    };
    pub(crate) const RUNTIME_ENDED: Self = Self::NotSent {
        code: ErrorCode::ServiceUnavailable,
        message: "the Tokio runtime that was to send the command ended; retry",
    };
    pub(crate) const CONNECTION_ENDED: Self = Self::NotSent {
        // Do not retry: the backend stays closed.
        code: ErrorCode::InvalidArgument,
        message: CONNECTION_ENDED,
    };
    pub(crate) const EMPTY_POOL: Self = Self::NotSent {
        code: ErrorCode::InvalidArgument,
        message: "the Redis pool has no clients",
    };

    /// Maps the error of a command that may have written.
    pub(crate) fn of_write(&self) -> LockError {
        match self {
            Self::NotSent { code, message } => LockError::new(*code, *message),
            Self::Driver(error) => write_error(error),
        }
    }

    /// Maps the error of a command that writes nothing, so that its outcome is known.
    pub(crate) fn of_read(&self) -> LockError {
        match self {
            Self::NotSent { code, message } => LockError::new(*code, *message),
            Self::Driver(error) => read_error(error),
        }
    }

    /// Whether it failed before anything was sent.
    pub(crate) fn was_not_sent(&self) -> bool {
        match self {
            Self::NotSent { .. } => true,
            Self::Driver(error) => {
                matches!(error.kind(), ErrorKind::Canceled) || NOT_QUEUED.contains(&error.details())
            }
        }
    }

    /// Whether the server does not know a script by its digest.
    pub(crate) fn is_noscript(&self) -> bool {
        self.reply_code() == Some("NOSCRIPT")
    }

    /// Whether the server denies this user a command, or lacks the command: managed services hide some.
    pub(crate) fn is_denied(&self) -> bool {
        self.reply_code() == Some("NOPERM") || self.details().contains("unknown command")
    }

    /// Whether the server is a replica, or the wrong node for a clustered client (which follows
    /// redirections itself). Another connection may lead to the right server.
    pub(crate) fn is_from_wrong_server(&self, clustered: bool) -> bool {
        match self.reply_code() {
            Some("READONLY" | "MASTERDOWN") => true,
            Some("MOVED") => clustered,
            _ => false,
        }
    }

    /// Whether the server cannot read a script at all.
    pub(crate) fn is_unreadable_script(&self) -> bool {
        self.details().contains("compiling script")
    }

    fn reply_code(&self) -> Option<&str> {
        match self {
            Self::NotSent { .. } => None,
            Self::Driver(error) => reply_code(error),
        }
    }

    fn details(&self) -> &str {
        match self {
            Self::NotSent { message, .. } => message,
            Self::Driver(error) => error.details(),
        }
    }
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        Self::Driver(error)
    }
}

fn write_error(error: &Error) -> LockError {
    let classified = classify(error);
    let mapped = classified.describe(error);
    match classified.applied {
        Applied::No => mapped,
        Applied::Unknown => mapped.with_outcome_unknown(),
    }
}

fn read_error(error: &Error) -> LockError {
    classify(error).describe(error)
}

/// Maps the error of connecting.
pub(crate) fn connect_error(error: &Error) -> LockError {
    read_error(error).with_operation(Operation::Setup)
}

/// The error of a close when commands are still in flight at its deadline.
pub(crate) fn still_in_flight() -> LockError {
    LockError::new(
        ErrorCode::NetworkTimeout,
        "closed while commands were in flight; their outcome is unknown",
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applied {
    No,
    Unknown,
}

#[derive(Debug, Clone, Copy)]
struct Classified {
    code: ErrorCode,
    message: &'static str,
    applied: Applied,
}

impl Classified {
    fn describe(&self, error: &Error) -> LockError {
        let described = LockError::new(self.code, self.message);
        match before_arguments(error) {
            Some(shown) => described.with_source(Redacted::new(
                error.clone(),
                format!("{shown}; the rest is redacted, it quotes arguments"),
            )),
            None => described.with_source(error.clone()),
        }
    }
}

fn classify(error: &Error) -> Classified {
    match reply_code(error) {
        Some(code) => classify_reply(code, before_arguments(error).unwrap_or(error.details())),
        None => classify_kind(error),
    }
}

/// An error reply of the server. Usually nothing was written, because a script fails at its first write or
/// not at all. The exceptions are a permission that is missing in the middle of a script, and errors that
/// should not occur.
fn classify_reply(code: &str, details: &str) -> Classified {
    let mut applied = Applied::No;
    let (code, message) = match code {
        "LOADING" => (ErrorCode::ServiceUnavailable, "Redis is loading its data"),
        "READONLY" => (
            ErrorCode::ServiceUnavailable,
            "Redis is a read-only replica; a failover may be in progress",
        ),
        "CLUSTERDOWN" => {
            // The driver fails all commands on the connection with the same error.
            applied = Applied::Unknown;
            (ErrorCode::ServiceUnavailable, "the Redis cluster is down")
        }
        "MASTERDOWN" => (
            ErrorCode::ServiceUnavailable,
            "the Redis replica lost its primary",
        ),
        "MOVED" | "ASK" | "TRYAGAIN" => (
            ErrorCode::ServiceUnavailable,
            "the Redis cluster is moving the lock's slot",
        ),
        "MISCONF" => (
            ErrorCode::ServiceUnavailable,
            "Redis refuses writes: it cannot persist them (MISCONF)",
        ),
        "NOREPLICAS" => (
            ErrorCode::ServiceUnavailable,
            "Redis refuses writes: it has too few replicas (min-replicas-to-write)",
        ),
        "BUSY" => (
            ErrorCode::ServiceUnavailable,
            "Redis is busy with a long script",
        ),
        "NOSCRIPT" => (
            ErrorCode::ServiceUnavailable,
            "Redis did not keep a script that was just loaded",
        ),
        "NOAUTH" => (ErrorCode::AuthFailed, "Redis requires credentials"),
        "WRONGPASS" => (ErrorCode::AuthFailed, "Redis refuses the credentials"),
        "NOPERM" => (ErrorCode::AuthFailed, MISSING_PERMISSION),
        "WRONGTYPE" => (ErrorCode::InvalidArgument, NOT_A_LOCK),
        "CROSSSLOT" => (
            ErrorCode::InvalidArgument,
            "the lock's keys are on several cluster nodes; give the prefix a hash tag",
        ),
        "INVALID" => (
            ErrorCode::InvalidArgument,
            "Redis refuses the command as invalid",
        ),
        "OOM" => (ErrorCode::RateLimited, "Redis has reached its maxmemory"),
        _ if details.contains("max number of clients") => {
            (ErrorCode::RateLimited, "Redis has reached its maxclients")
        }
        _ if details.contains("without any password configured") => (
            ErrorCode::AuthFailed,
            "Redis has no password configured, but the client sent one",
        ),
        _ if details.contains("not an integer") => (
            ErrorCode::InvalidArgument,
            "the key's fence counter is not an integer; it was left unchanged",
        ),
        _ if details.contains("would overflow") => (
            ErrorCode::Internal,
            "the key's fence counter is used up; use a new key or prefix",
        ),
        _ if details.contains("DB index is out of range") => (
            ErrorCode::InvalidArgument,
            "Redis has no database of this number; see `databases` in its configuration",
        ),
        _ if details.contains("unknown command") => (
            ErrorCode::ServiceUnavailable,
            "the server lacks a command; is it Redis 6.2 or later, and not a Sentinel?",
        ),
        _ if details.contains("syntax error") => (
            ErrorCode::InvalidArgument,
            "Redis refuses the command's syntax; is the server older than 6.2?",
        ),
        _ if IN_SCRIPT.iter().any(|refusal| details.contains(refusal)) => {
            applied = Applied::Unknown;
            (ErrorCode::AuthFailed, MISSING_PERMISSION)
        }
        _ => {
            applied = Applied::Unknown;
            (
                ErrorCode::Internal,
                "Redis replied with an unexpected error",
            )
        }
    };
    Classified {
        code,
        message,
        applied,
    }
}

/// An error of the driver itself.
fn classify_kind(error: &Error) -> Classified {
    let (code, message, applied) = match error.kind() {
        // Because of `fail_fast`: the command never left the queue.
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
            "the Redis URL or client configuration is invalid",
            Applied::No,
        ),
        ErrorKind::InvalidArgument | ErrorKind::InvalidCommand => (
            ErrorCode::InvalidArgument,
            "the Redis client refuses the command",
            Applied::No,
        ),
        ErrorKind::Timeout => (
            ErrorCode::NetworkTimeout,
            "Redis did not answer before the timeout",
            Applied::Unknown,
        ),
        ErrorKind::IO | ErrorKind::Routing | ErrorKind::Cluster | ErrorKind::Sentinel => (
            ErrorCode::ServiceUnavailable,
            "the connection to Redis failed",
            Applied::Unknown,
        ),
        ErrorKind::Protocol | ErrorKind::Parse | ErrorKind::NotFound => (
            ErrorCode::ServiceUnavailable,
            "the reply is not in Redis's protocol; is there another kind of server at the address?",
            Applied::Unknown,
        ),
        _ if NOT_QUEUED.contains(&error.details()) => {
            (ErrorCode::InvalidArgument, CONNECTION_ENDED, Applied::No)
        }
        // `Unknown` includes a client that stopped during the call. The kinds that exist only with some
        // features are failures of the connection as well.
        _ => (
            ErrorCode::ServiceUnavailable,
            "the connection to Redis failed",
            Applied::Unknown,
        ),
    };
    Classified {
        code,
        message,
        applied,
    }
}

/// The code in front of an error reply, such as `WRONGTYPE`; `None` for the driver's own errors,
/// which are sentences.
fn reply_code(error: &Error) -> Option<&str> {
    let details = error.details();
    match error_in_script(details) {
        Some(error) => Some(first_code(error.trim_start_matches('-')).unwrap_or("ERR")),
        None => first_code(details),
    }
}

/// The error of a script without the places in the script that Redis 6 puts before it: one or two, after an introduction
/// if the script raised the error. Later versions put the place at the end, where it is not looked for, nor in quoted
/// arguments.
fn error_in_script(details: &str) -> Option<&str> {
    let placed = match details.strip_prefix("ERR Error running script") {
        Some(introduced) => introduced.split_once(": ")?.1,
        None => details,
    };
    let error = after_place(placed)?;
    Some(after_place(error).unwrap_or(error))
}

fn after_place(text: &str) -> Option<&str> {
    let (_, rest) = text.strip_prefix("@user_script:")?.split_once(": ")?;
    Some(rest)
}

fn first_code(text: &str) -> Option<&str> {
    let word = text.split_whitespace().next()?;
    let is_code = word.len() >= 3 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    is_code.then_some(word)
}

/// The start of an error that quotes the arguments of an unknown command. Redis truncates them, so a search for the
/// whole key would not find it.
fn before_arguments(error: &Error) -> Option<&str> {
    let (shown, _) = error.details().split_once(", with args")?;
    Some(shown)
}

#[cfg(test)]
mod tests;
