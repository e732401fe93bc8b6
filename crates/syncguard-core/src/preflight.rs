//! [`Preflight`]: whether a store is set up so that it can keep the promises.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;

use crate::managed::{current_runtime, timed_out};
use crate::{Answer, LockBackend, LockError, Managed, ManagedBackend as _, Operation};

/// How much a [`Finding`] matters.
///
/// Ordered: `Info < Warning < Error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know, or something that could not be checked.
    Info,
    /// A promise holds as long as nothing fails, and may break when something does.
    Warning,
    /// Operations fail, or a promise does not hold, as the store is set up.
    Error,
}

impl Severity {
    /// The severity in lower case, for labels and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Something about a store's set-up that an operator should know, and what to do about it.
///
/// `Display` is one line with all of it. It holds no password and no key of a user's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    severity: Severity,
    code: &'static str,
    found: Cow<'static, str>,
    fix: Cow<'static, str>,
}

impl Finding {
    /// A finding of a backend.
    ///
    /// The code is in kebab case, begins with the backend's name, and never changes its meaning.
    /// Neither text may hold a user's key or a credential: they are printed.
    #[must_use]
    pub fn new(
        severity: Severity,
        code: &'static str,
        found: impl Into<Cow<'static, str>>,
        fix: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            severity,
            code,
            found: found.into(),
            fix: fix.into(),
        }
    }

    /// How much it matters.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// Its stable name for programs, such as `redis-persistence-off`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// What was found, and what follows from it.
    #[must_use]
    pub fn found(&self) -> &str {
        &self.found
    }

    /// What to do about it.
    #[must_use]
    pub fn fix(&self) -> &str {
        &self.fix
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            severity,
            code,
            found,
            fix,
        } = self;
        write!(f, "{severity} [{code}]: {found}. Fix: {fix}")
    }
}

/// A backend that can tell whether its store is set up for locks.
///
/// Ask once when a program starts, or by `cargo xtask doctor` from a terminal, not at every
/// operation: it takes a few round trips.
///
/// ```
/// use syncguard_core::{Preflight as _, Severity};
/// use syncguard_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
/// let backend = MemoryBackend::default();
/// let findings = backend.preflight().await?;
/// for finding in &findings {
///     println!("{finding}");
/// }
/// assert!(findings.iter().all(|finding| finding.severity() < Severity::Error));
/// # Ok(()) }
/// ```
///
/// # Implementing
///
/// It may send more than reads, but no lock, no fence counter and no setting of the store may be
/// different afterwards. What the store does not let its user see is a finding that says so, not an error.
pub trait Preflight {
    /// Looks at the store's set-up. Without findings, or with none above `Info`, it is in order.
    ///
    /// # Errors
    /// A failure of the store: what keeps every operation from working, such as a server that
    /// cannot be reached or a wrong password, with the code that operations fail with.
    ///
    /// # Cancel safety
    /// Safe: it changes nothing.
    fn preflight(&self) -> impl Future<Output = Result<Vec<Finding>, LockError>> + Send;
}

/// The policy's operation timeout bounds it as a whole. The gravest findings come first.
impl<B: LockBackend + Preflight> Preflight for Managed<B> {
    async fn preflight(&self) -> Result<Vec<Finding>, LockError> {
        current_runtime()?;
        let timeout = self.policy().operation_timeout();
        let answer = tokio::time::timeout(timeout, self.get_ref().preflight()).await;
        let mut findings = answer
            .unwrap_or_else(|_| Err(timed_out(timeout)))
            .map_err(|error| error.with_operation(Operation::Setup))?;
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity()));
        Ok(findings)
    }
}

impl Answer for Vec<Finding> {
    const OF_A_WRITE: bool = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn severities_are_ordered_and_a_finding_is_one_line() {
        assert!(Severity::Info < Severity::Warning && Severity::Warning < Severity::Error);
        let finding = Finding::new(Severity::Warning, "x-y", "it is so", "make it otherwise");
        assert_eq!(
            finding.to_string(),
            "warning [x-y]: it is so. Fix: make it otherwise"
        );
    }
}
