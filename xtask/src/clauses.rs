//! Whether every clause of the contract has a conformance case, and every case names clauses.

use std::collections::BTreeSet;

use syncguard_conformance::cases;
use syncguard_core::backend::clauses;

use crate::Verdict;

/// Prints the errors.
pub(crate) fn check() -> Verdict {
    let known: Vec<_> = clauses();
    let ids: BTreeSet<_> = known.iter().map(|clause| clause.id).collect();
    let cases = cases();
    let proven: BTreeSet<_> = cases
        .iter()
        .flat_map(|case| case.clauses)
        .copied()
        .collect();
    let mut verdict = Verdict::Passed;
    for clause in known.iter().filter(|clause| !proven.contains(clause.id)) {
        eprintln!("no case proves clause {}: {}", clause.id, clause.text);
        verdict = Verdict::Failed;
    }
    for case in &cases {
        for unknown in case.clauses.iter().filter(|id| !ids.contains(*id)) {
            eprintln!("case {} names {unknown}, which is no clause", case.name);
            verdict = Verdict::Failed;
        }
        if case.clauses.is_empty() {
            eprintln!("case {} names no clause", case.name);
            verdict = Verdict::Failed;
        }
    }
    eprintln!("{} cases for {} clauses", cases.len(), known.len());
    verdict
}
