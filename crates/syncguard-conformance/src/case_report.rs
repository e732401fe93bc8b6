//! [`CaseReport`]: the result of one case.

use std::fmt;

use serde::Serialize;

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The backend did all that the case asked for.
    Passed,
    /// It did not.
    Failed,
    /// The case does not apply to this backend or harness.
    Skipped,
}

impl Status {
    /// The status as the report spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The result of one case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CaseReport {
    /// The case's name, such as `acquire::contention_changes_nothing`.
    pub name: &'static str,
    /// The clauses of the contract that it proves.
    pub clauses: &'static [&'static str],
    /// How it ended.
    pub status: Status,
    /// How long it took, in milliseconds.
    pub ms: u64,
    /// Why it failed or was skipped. Absent from the JSON of a case that passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What a skipped case leaves open: the [faults](mod@crate::mutants) that it is known to detect. Absent from
    /// the JSON of other cases.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leaves_open: Vec<&'static str>,
}
