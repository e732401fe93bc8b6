//! [`LockError`]: one opaque error type, one code per reaction an operator can have.

use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::ser::{Serialize, SerializeMap as _, Serializer};

mod code;
mod redact;

pub use self::code::{ErrorCode, Operation};
pub use self::redact::Redacted;
use crate::{LockId, LockKey};

/// How a wait for a contended key went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WaitSummary {
    /// How many attempts were sent to the store. Zero if the wait ended before its turn in the line.
    pub attempts: u32,
    /// Attempts that were made because a delay had passed.
    pub polls: u32,
    /// Attempts that were made because the store reported a release.
    pub wake_ups: u32,
    /// Attempts that were made because this process had released the key.
    pub hand_overs: u32,
    /// Time from the call to the end of the wait.
    pub waited: Duration,
}

/// A lock operation that failed.
///
/// Contention and a lock that is gone are not failures: they are values, such as
/// [`Attempt`](crate::Attempt), [`ReleaseResult`](crate::ReleaseResult) and
/// [`ExtendResult`](crate::ExtendResult).
///
/// `Display`, `Debug` and `Serialize` never show a raw key, a raw lock id or a password. Only
/// [`key`](Self::key) and [`lock_id`](Self::lock_id) return the raw key and id.
///
/// ```
/// use syncguard_core::{ErrorCode, LockKey};
///
/// let error = LockKey::new("").unwrap_err();
/// assert_eq!(error.code(), ErrorCode::InvalidArgument);
/// assert!(!error.is_retryable());
/// ```
#[derive(Clone)]
pub struct LockError(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: ErrorCode,
    message: Cow<'static, str>,
    operation: Option<Operation>,
    key: Option<LockKey>,
    lock_id: Option<LockId>,
    outcome_unknown: bool,
    wait: Option<WaitSummary>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl LockError {
    /// An error with a message for the operator.
    ///
    /// The message must contain no raw key, lock id or credential: it is logged.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            code,
            message: message.into(),
            operation: None,
            key: None,
            lock_id: None,
            outcome_unknown: false,
            wait: None,
            source: None,
        }))
    }

    /// Shorthand for an [`ErrorCode::InvalidArgument`].
    #[must_use]
    pub fn invalid_argument(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// Keeps the driver's error as [`source`](Error::source).
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self.redact_source();
        self
    }

    /// Marks that the store may have applied the operation although it failed here.
    #[must_use]
    pub fn with_outcome_unknown(mut self) -> Self {
        self.0.outcome_unknown = true;
        self
    }

    /// Names the operation.
    #[must_use]
    pub fn with_operation(mut self, operation: Operation) -> Self {
        self.0.operation = Some(operation);
        self
    }

    /// Attaches the key. No text shows it; a source that quotes it is redacted.
    #[must_use]
    pub fn with_key(mut self, key: &LockKey) -> Self {
        self.0.key = Some(key.clone());
        self.redact_source();
        self
    }

    /// Attaches the lock id. No text shows it; a source that quotes it is redacted.
    #[must_use]
    pub fn with_lock_id(mut self, lock_id: &LockId) -> Self {
        self.0.lock_id = Some(*lock_id);
        self.redact_source();
        self
    }

    pub(crate) fn with_wait(mut self, wait: WaitSummary) -> Self {
        self.0.wait = Some(wait);
        self
    }

    /// The kind of failure.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// What happened, without the code, the operation and the source.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The operation that failed, if the error is of an operation.
    #[must_use]
    pub fn operation(&self) -> Option<Operation> {
        self.0.operation
    }

    /// The key. Its raw text ([`LockKey::as_str`]) is sensitive.
    #[must_use]
    pub fn key(&self) -> Option<&LockKey> {
        self.0.key.as_ref()
    }

    /// The raw lock id. Sensitive: a process that knows it can release the lock.
    #[must_use]
    pub fn lock_id(&self) -> Option<&LockId> {
        self.0.lock_id.as_ref()
    }

    /// The figures of the wait, if a [`lock`](crate::Locks::lock) request had begun to wait.
    #[must_use]
    pub fn wait(&self) -> Option<WaitSummary> {
        self.0.wait
    }

    /// Whether the store may have applied the operation although it failed here.
    ///
    /// SyncGuard releases in the background whatever such an acquire may have acquired, and retries such a
    /// release. Calling a release or an extend again with the same id is harmless.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.0.outcome_unknown
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.code,
            ErrorCode::ServiceUnavailable
                | ErrorCode::RateLimited
                | ErrorCode::NetworkTimeout
                | ErrorCode::AcquisitionTimeout
        )
    }

    /// A driver may quote the identifiers of a call.
    fn redact_source(&mut self) {
        let Some(source) = &self.0.source else {
            return;
        };
        let identifiers = [
            self.0.key.as_ref().map(LockKey::as_str),
            self.0.lock_id.as_ref().map(LockId::as_str),
        ];
        let mut identifiers = identifiers.into_iter().flatten();
        if identifiers.any(|raw| redact::quotes(source.as_ref(), raw)) {
            let shown = "driver error redacted: its text quotes the key or the lock id";
            self.0.source = Some(Arc::new(Redacted::of(Arc::clone(source), shown)));
        }
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(operation) = self.0.operation {
            write!(f, "{operation}: ")?;
        }
        write!(f, "{} [{}]", self.0.message, self.0.code)?;
        if self.0.outcome_unknown {
            f.write_str("; the store may have applied it")?;
        }
        if f.alternate() {
            let mut cause = self.source();
            while let Some(error) = cause {
                write!(f, ": {error}")?;
                cause = error.source();
            }
        }
        Ok(())
    }
}

impl fmt::Debug for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("LockError");
        out.field("code", &self.0.code)
            .field("message", &self.0.message);
        if let Some(operation) = self.0.operation {
            out.field("operation", &operation);
        }
        if let Some(key) = &self.0.key {
            out.field("key_hash", &key.hash_id());
        }
        if let Some(lock_id) = &self.0.lock_id {
            out.field("lock_id_hash", &lock_id.hash_id());
        }
        out.field("outcome_unknown", &self.0.outcome_unknown);
        if let Some(wait) = &self.0.wait {
            out.field("wait", wait);
        }
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

/// `code`, `message`, `operation`, `outcomeUnknown`, `retryable`, and if they are known `keyHash`,
/// `lockIdHash`, `attempts` and `waitedMs`.
impl Serialize for LockError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(None)?;
        out.serialize_entry("code", &self.0.code)?;
        out.serialize_entry("message", &self.0.message)?;
        if let Some(operation) = self.0.operation {
            out.serialize_entry("operation", &operation)?;
        }
        out.serialize_entry("outcomeUnknown", &self.0.outcome_unknown)?;
        out.serialize_entry("retryable", &self.is_retryable())?;
        if let Some(key) = &self.0.key {
            out.serialize_entry("keyHash", &key.hash_id())?;
        }
        if let Some(lock_id) = &self.0.lock_id {
            out.serialize_entry("lockIdHash", &lock_id.hash_id())?;
        }
        if let Some(wait) = &self.0.wait {
            out.serialize_entry("attempts", &wait.attempts)?;
            out.serialize_entry("waitedMs", &wait.waited.as_millis())?;
        }
        out.end()
    }
}

impl Error for LockError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source: &(dyn Error + 'static) = self.0.source.as_deref()?;
        Some(source)
    }
}

impl From<Infallible> for LockError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

pub(crate) fn parse<T, A>(argument: A) -> Result<T, LockError>
where
    A: TryInto<T>,
    LockError: From<A::Error>,
{
    argument.try_into().map_err(LockError::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Driver(String);
    impl fmt::Display for Driver {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "driver says {}", self.0)
        }
    }
    impl Error for Driver {}

    #[test]
    fn a_source_that_quotes_the_key_is_redacted_in_either_order() {
        let key = LockKey::new("customer:secret").unwrap();
        let quoting = || Driver("duplicate customer:secret".into());
        let first = LockError::new(ErrorCode::Internal, "x")
            .with_source(quoting())
            .with_key(&key);
        let last = LockError::new(ErrorCode::Internal, "x")
            .with_key(&key)
            .with_source(quoting());
        for error in [first, last] {
            let redacted: &Redacted = error.source().unwrap().downcast_ref().unwrap();
            assert!(!format!("{error:#} {error:?}").contains("secret"));
            let unredacted: &Driver = redacted.get_ref().downcast_ref().unwrap();
            assert_eq!(unredacted.0, quoting().0);
        }
    }

    #[test]
    fn an_innocent_source_is_kept_for_downcasting() {
        let key = LockKey::new("customer:secret").unwrap();
        let error = LockError::new(ErrorCode::Internal, "x")
            .with_source(Driver("connection reset".into()))
            .with_key(&key);
        assert!(error.source().unwrap().downcast_ref::<Driver>().is_some());
    }

    #[test]
    fn a_source_that_quotes_the_key_as_json_is_redacted() {
        for raw in [
            "a\u{1}b",
            "\u{8}\u{c}",
            "\r\n\t",
            "\"\\",
            "\u{1f}\u{7f}\u{e9}",
        ] {
            let body = Driver(format!("body {}", serde_json::json!({ "id": raw })));
            let error = LockError::new(ErrorCode::Internal, "x")
                .with_source(body)
                .with_key(&LockKey::new(raw).unwrap());
            assert!(error.source().unwrap().is::<Redacted>(), "{raw:?}");
        }
    }

    #[test]
    fn display_does_not_repeat_the_source() {
        let error = LockError::new(ErrorCode::ServiceUnavailable, "the store went away")
            .with_operation(Operation::Release)
            .with_source(Driver("connection reset".into()))
            .with_outcome_unknown();
        assert_eq!(
            error.to_string(),
            "release: the store went away [ServiceUnavailable]; the store may have applied it"
        );
    }

    #[test]
    fn alternate_display_shows_every_cause_and_no_identifier() {
        let refused = || {
            LockError::new(ErrorCode::ServiceUnavailable, "the store went away")
                .with_source(Driver("no to customer:secret".into()))
        };
        let wait = LockError::new(ErrorCode::AcquisitionTimeout, "gave up").with_source(refused());
        assert_eq!(
            format!("{wait:#}"),
            "gave up [AcquisitionTimeout]: the store went away [ServiceUnavailable]: \
             driver says no to customer:secret"
        );
        let key = LockKey::new("customer:secret").unwrap();
        for error in [refused().with_key(&key), wait.with_key(&key)] {
            let shown = format!("{error:#}");
            assert!(shown.ends_with("quotes the key or the lock id"), "{shown}");
            assert!(!shown.contains("secret"), "{shown}");
        }
    }
}
