//! [`Report`]: the result of a run, for people and as JSON.

use std::fmt;

use serde::Serialize;
use syncguard_core::backend::{Capabilities, Clause, FenceToken, clauses};

use crate::diagnosis::causes;
use crate::{CaseReport, Cause, Mutants, Status};

/// The result of a run. `Display` is for people; `Serialize` is the report to publish.
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
    /// How many did not run or could not decide.
    pub skipped: usize,
    /// The clauses that this run proves: one of their cases passed, and none failed. In the order of the
    /// contract.
    pub proven: Vec<&'static str>,
    /// The clauses that this run tested and does not prove: one of their cases failed, or all were skipped.
    /// In the order of the contract.
    pub unproven: Vec<&'static str>,
    /// The clauses that are probably broken, likeliest first; each with the failed cases that it explains.
    pub causes: Vec<Cause>,
    /// How strong the run was.
    pub mutants: Mutants,
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
            proven: judged(&cases, |passed, failed, _| passed && !failed),
            unproven: judged(&cases, |passed, failed, skipped| {
                failed || skipped && !passed
            }),
            causes: causes(&cases),
            mutants: Mutants::of(&cases),
            cases,
        }
    }

    /// Whether the backend conforms as far as it was tested: some cases passed and none failed.
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

/// The clauses that a predicate selects. It gets whether cases of the clause passed, failed and were skipped.
fn judged(cases: &[CaseReport], holds: impl Fn(bool, bool, bool) -> bool) -> Vec<&'static str> {
    let holds = |clause: &&'static str| {
        let any = |status| {
            let of_status = |case: &&CaseReport| case.status == status;
            let mut of_status = cases.iter().filter(of_status);
            of_status.any(|case| case.clauses.contains(clause))
        };
        holds(
            any(Status::Passed),
            any(Status::Failed),
            any(Status::Skipped),
        )
    };
    clauses()
        .into_iter()
        .map(|clause| clause.id)
        .filter(holds)
        .collect()
}

/// Each case on a line; then why some failed, by cause; what was skipped; and how strong the run was.
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
        }
        self.fmt_causes(f)?;
        self.fmt_skipped(f)?;
        write!(
            f,
            "{} passed, {} failed, {} skipped; {} of {} clauses proven; {} of {} known faults would \
             have been detected",
            self.passed,
            self.failed,
            self.skipped,
            self.proven.len(),
            clauses().len(),
            self.mutants.caught,
            self.mutants.known
        )?;
        if !self.unproven.is_empty() {
            f.write_str("\nclauses not proven:")?;
        }
        for clause in clauses() {
            if self.unproven.contains(&clause.id) {
                write!(f, "\n  {}", Line(&clause))?;
            }
        }
        Ok(())
    }
}

impl Report {
    fn fmt_causes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.causes.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\n{} of {} cases failed. The clauses that are probably broken, likeliest first:",
            self.failed,
            self.cases.len()
        )?;
        for cause in &self.causes {
            let Cause { clause, text, .. } = *cause;
            let clause = Clause { id: clause, text };
            writeln!(f, "\n{}", Line(&clause))?;
            for name in &cause.cases {
                let detail = self.case(name).and_then(|case| case.detail.as_deref());
                writeln!(f, "    {name}: {}", detail.unwrap_or_default())?;
            }
        }
        writeln!(f)
    }

    fn fmt_skipped(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.skipped == 0 {
            return Ok(());
        }
        writeln!(f, "\nNot run, so not passed:")?;
        let skipped = |case: &&CaseReport| case.status == Status::Skipped;
        for case in self.cases.iter().filter(skipped) {
            let reason = case.detail.as_deref().unwrap_or_default();
            writeln!(f, "    {}: {reason}", case.name)?;
            if !case.leaves_open.is_empty() {
                let open = case.leaves_open.join("; ");
                writeln!(f, "        known faults that it detects: {open}")?;
            }
        }
        writeln!(f)
    }
}

/// A clause on a line: its text is the first line of its paragraph.
struct Line<'a>(&'a Clause);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Clause { id, text } = self.0;
        let rest = if text.ends_with('.') { "" } else { " ..." };
        write!(f, "{id}  {text}{rest}")
    }
}
