//! [`Finding`]: a result of [`preflight`](crate::Locks::preflight).

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

/// How much a [`Finding`] matters.
///
/// Ordered: `Info < Warning < Error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// For information, or something that could not be checked.
    Info,
    /// A promise holds while nothing fails, and may break when something fails.
    Warning,
    /// With this configuration operations fail, or a promise does not hold.
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

/// Something that an operator should know about a store's configuration, and the fix.
///
/// `Display` shows everything in one line. It contains no password and no user's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    /// Neither text may contain a user's key or a credential: they are printed.
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

    /// What was found, and its consequence.
    #[must_use]
    pub fn found(&self) -> &str {
        &self.found
    }

    /// What to do.
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
