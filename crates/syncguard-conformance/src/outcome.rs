//! The result of a case.

use std::error::Error;
use std::fmt;
use std::panic::Location;

use syncguard_core::LockError;

/// The result of a case that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The backend did all that the case asked for.
    Passed,
    /// The case does not apply to this backend or harness, or could not decide, for the reason given.
    Skipped(&'static str),
}

impl Outcome {
    pub(crate) const NO_FENCES: Self = Self::Skipped("the backend has no fences");
    pub(crate) const NO_COUNTER: Self =
        Self::Skipped("the harness cannot set a fence counter (Harness::set_fence_counter)");
    pub(crate) const NO_VIEW: Self =
        Self::Skipped("the harness cannot read the store (Harness::stored)");
    pub(crate) const NO_WAKE_UPS: Self =
        Self::Skipped("the backend gives no wake-ups (LockBackend::watch)");
}

/// Why a case failed: what was expected, what was seen, and where the case says so.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    message: String,
    /// The source locations, from the failing step outwards to the case.
    places: Vec<&'static Location<'static>>,
}

/// What a case returns.
pub type CaseResult = Result<Outcome, Failure>;

impl Failure {
    /// A failure with a message.
    #[must_use]
    #[track_caller]
    pub fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            places: vec![Location::caller()],
        }
    }

    /// A failure without a location: the case did not end.
    pub(crate) fn unplaced(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            places: Vec::new(),
        }
    }

    /// Adds what failed.
    pub(crate) fn about(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl From<LockError> for Failure {
    #[track_caller]
    fn from(error: LockError) -> Self {
        let mut message = format!("expected an answer, saw the error: {error}");
        let mut link = error.source();
        while let Some(cause) = link {
            message.push_str(&format!(": {cause}"));
            link = cause.source();
        }
        Self::new(message)
    }
}

/// The message, then the line of the case, then its steps.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let places = self.places.iter().rev();
        let places: Vec<_> = places
            .map(|place| format!("{}:{}", place.file(), place.line()))
            .collect();
        if places.is_empty() {
            return Ok(());
        }
        write!(f, " ({})", places.join(", by "))
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for Failure {}

/// Adds the caller's location to a failure of `work`.
///
/// For functions that return a future. An `async fn` cannot do so: its body runs where it is
/// polled, not where it is called.
#[track_caller]
pub(crate) fn step<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> impl Future<Output = Result<T, Failure>> {
    let place = Location::caller();
    async move {
        work.await.map_err(|mut failure| {
            failure.places.push(place);
            failure
        })
    }
}

/// Fails with `message` unless `condition` holds.
#[track_caller]
pub(crate) fn require(condition: bool, message: impl fmt::Display) -> Result<(), Failure> {
    if condition {
        Ok(())
    } else {
        Err(Failure::new(message))
    }
}

/// Fails unless what was seen is what was expected.
#[track_caller]
#[expect(
    clippy::needless_pass_by_value,
    reason = "cases read better without a reference at every argument"
)]
pub(crate) fn same<T: PartialEq + fmt::Debug>(
    what: &str,
    seen: T,
    expected: T,
) -> Result<(), Failure> {
    require(
        seen == expected,
        format_args!("{what}: expected {expected:?}, saw {seen:?}"),
    )
}
