//! The broken backends that this version is known to detect, read from the page that lists them.

use serde::Serialize;

use crate::{CaseReport, Status};

/// The strength of a run: how many of the [broken backends](mod@crate::mutants) its cases detect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Mutants {
    /// How many broken backends this version of the suite is known to detect.
    pub known: usize,
    /// Those whose case ran and passed: it would have failed on a backend with that fault.
    pub caught: usize,
    /// The faults that only a skipped case is known to detect.
    pub unseen: Vec<&'static str>,
}

impl Mutants {
    pub(crate) fn of(cases: &[CaseReport]) -> Self {
        let status = |name| {
            let case = cases.iter().find(|case| case.name == name);
            case.map(|case| case.status)
        };
        let all: Vec<_> = all().collect();
        let passed = |mutant: &&Mutant| status(mutant.case) == Some(Status::Passed);
        let skipped = |mutant: &&Mutant| status(mutant.case) == Some(Status::Skipped);
        Self {
            known: all.len(),
            caught: all.iter().filter(passed).count(),
            unseen: all
                .iter()
                .filter(skipped)
                .map(|mutant| mutant.fault)
                .collect(),
        }
    }
}

/// The faults that this case is known to detect.
pub(crate) fn refused_by(case: &str) -> Vec<&'static str> {
    let of_case = all().filter(|mutant| mutant.case == case);
    of_case.map(|mutant| mutant.fault).collect()
}

/// A row of the table.
struct Mutant {
    fault: &'static str,
    case: &'static str,
}

fn all() -> impl Iterator<Item = Mutant> {
    include_str!("mutants.md").lines().filter_map(|line| {
        let (columns, link) = line.strip_prefix("| ")?.split_once("| [`")?;
        let (fault, _) = columns.split_once(" |")?;
        let (case, _) = link.split_once("`](crate::cases::")?;
        Some(Mutant { fault, case })
    })
}
