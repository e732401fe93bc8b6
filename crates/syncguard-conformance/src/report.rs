//! [`Report`]: what came of a run, for people and as JSON.

use std::fmt;

use serde::Serialize;
use syncguard_core::backend::{Capabilities, FenceToken, clauses};

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

/// What came of one case.
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
}

/// What came of a run. `Display` is a page for people; `Serialize` is the report to publish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The backend's name. `None`, as the next two, if no client could be made.
    pub backend: Option<&'static str>,
    /// Whether its grants carry fences.
    pub supports_fencing: Option<bool>,
    /// Whose clock decides: `server` or `client`.
    pub time_authority: Option<&'static str>,
    /// The version of this suite.
    pub suite_version: &'static str,
    /// How many cases passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many do not apply.
    pub skipped: usize,
    /// The clauses that this run does not prove though it asked: one of their cases failed, or all
    /// were skipped. In the order of the contract.
    pub unproven: Vec<&'static str>,
    /// Each case, in the order of [`cases`](crate::cases()).
    pub cases: Vec<CaseReport>,
}

impl Report {
    pub(crate) fn new<F: FenceToken>(
        backend: Option<Capabilities>,
        cases: Vec<CaseReport>,
    ) -> Self {
        let count = |status| cases.iter().filter(|case| case.status == status).count();
        Self {
            backend: backend.as_ref().map(|backend| backend.backend),
            supports_fencing: backend.as_ref().map(|_| F::SUPPORTED),
            time_authority: backend.map(|backend| backend.time_authority.as_str()),
            suite_version: env!("CARGO_PKG_VERSION"),
            passed: count(Status::Passed),
            failed: count(Status::Failed),
            skipped: count(Status::Skipped),
            unproven: unproven(&cases),
            cases,
        }
    }

    /// Whether the backend conforms as far as it was asked: something passed and nothing failed.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }

    /// The case of this name, if it was run.
    #[must_use]
    pub fn case(&self, name: &str) -> Option<&CaseReport> {
        self.cases.iter().find(|case| case.name == name)
    }
}

fn unproven(cases: &[CaseReport]) -> Vec<&'static str> {
    let is_unproven = |clause: &&str| {
        let of_clause = || cases.iter().filter(|case| case.clauses.contains(clause));
        let any = |status| of_clause().any(|case| case.status == status);
        any(Status::Failed) || any(Status::Skipped) && !any(Status::Passed)
    };
    clauses()
        .into_iter()
        .map(|clause| clause.id)
        .filter(is_unproven)
        .collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.cases {
            writeln!(
                f,
                "{:7} {:>6} ms  {} [{}]",
                case.status,
                case.ms,
                case.name,
                case.clauses.join(" ")
            )?;
            if let Some(detail) = &case.detail {
                writeln!(f, "                   {detail}")?;
            }
        }
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )?;
        if !self.unproven.is_empty() {
            f.write_str("\nclauses not proven:")?;
        }
        for clause in clauses() {
            if self.unproven.contains(&clause.id) {
                let rest = if clause.text.ends_with('.') {
                    ""
                } else {
                    " ..."
                };
                write!(f, "\n  {}  {}{rest}", clause.id, clause.text)?;
            }
        }
        Ok(())
    }
}
