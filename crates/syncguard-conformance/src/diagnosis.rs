//! Groups failures by cause: one broken clause fails many cases.

use std::collections::BTreeSet;

use serde::Serialize;
use syncguard_core::backend::clauses;

use crate::{CaseReport, Status};

/// A clause that is probably broken, and the failed cases that it explains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Cause {
    /// The clause's number, such as `F1`.
    pub clause: &'static str,
    /// The first line of its text.
    pub text: &'static str,
    /// The failed cases. Those that name the clause come first.
    pub cases: Vec<&'static str>,
}

/// The simplest cases of the clauses on which all others depend. If one of them fails, the failures of other cases
/// say little.
const FOUNDATIONS: [(&str, &str); 3] = [
    ("A1", "acquire::a_free_key_is_granted_to_the_given_id"),
    ("R1", "release::it_frees_the_key_at_once"),
    ("A2", "acquire::a_held_key_is_locked_for_everyone_else"),
];

/// The probable causes of a run's failures, likeliest first. Each failed case is in one of them.
pub(crate) fn causes(cases: &[CaseReport]) -> Vec<Cause> {
    let mut unexplained: Vec<_> = cases
        .iter()
        .filter(|case| case.status == Status::Failed)
        .collect();
    let mut causes = Vec::new();
    while let Some((clause, text)) = likeliest(cases, &unexplained) {
        let names = |case: &&CaseReport| case.clauses.contains(&clause);
        let (mut explained, mut others): (Vec<_>, Vec<_>) =
            unexplained.into_iter().partition(names);
        // Failures with the same text have the same reason, whatever their cases prove.
        let symptoms: BTreeSet<_> = explained.iter().map(|case| symptom(case)).collect();
        explained.extend(others.extract_if(.., |case| symptoms.contains(symptom(case))));
        explained.sort_by_key(|case| std::cmp::Reverse(weight(case, clause)));
        causes.push(Cause {
            clause,
            text,
            cases: explained.iter().map(|case| case.name).collect(),
        });
        unexplained = others;
    }
    causes
}

/// A clause that all others rest on, if its simplest case failed; else the clause whose cases come closest to
/// being the ones that failed.
fn likeliest(
    cases: &[CaseReport],
    unexplained: &[&CaseReport],
) -> Option<(&'static str, &'static str)> {
    let failed = |name: &str| unexplained.iter().any(|case| case.name == name);
    let foundation = FOUNDATIONS.iter().find(|(_, name)| failed(name));
    if let Some((id, _)) = foundation {
        let of_id = clauses().into_iter().find(|clause| clause.id == *id);
        return of_id.map(|clause| (clause.id, clause.text));
    }
    let sum = |of: &mut dyn Iterator<Item = &CaseReport>, id| -> usize {
        of.map(|case| weight(case, id)).sum()
    };
    let score = |id| {
        let failed = sum(&mut unexplained.iter().copied(), id);
        let mut all_passed = cases.iter().filter(|case| case.status == Status::Passed);
        let should_have = 2 * unexplained.len() + sum(&mut all_passed, id);
        (failed, should_have)
    };
    let scored = clauses()
        .into_iter()
        .map(|clause| (score(clause.id), clause));
    let explaining = scored.filter(|((failed, _), _)| *failed > 0);
    // As fractions, compared crosswise: what the clause explains, of all that failed or should have.
    let best = explaining.reduce(|best, next| {
        let better = next.0.0 * best.0.1 > best.0.0 * next.0.1;
        if better { next } else { best }
    });
    best.map(|(_, clause)| (clause.id, clause.text))
}

/// How much a case says about a clause: most about the one that it names first.
fn weight(case: &CaseReport, clause: &str) -> usize {
    match case.clauses.iter().position(|named| *named == clause) {
        Some(0) => 2,
        Some(_) => 1,
        None => 0,
    }
}

/// What a failure is about: the words before what was expected and seen.
fn symptom(case: &CaseReport) -> &str {
    let detail = case.detail.as_deref().unwrap_or_default();
    match detail.split_once("expected") {
        Some((what, _)) if !what.is_empty() => what,
        _ => detail
            .rsplit_once(" (")
            .map_or(detail, |(message, _)| message),
    }
}
