//! The list of cases against the contract, and against the cases' own pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use syncguard_conformance::cases;
use syncguard_core::backend::clauses;

#[test]
fn every_clause_of_the_contract_has_a_case() {
    let proven: BTreeSet<_> = cases()
        .iter()
        .flat_map(|case| case.clauses)
        .copied()
        .collect();
    let open: Vec<_> = clauses()
        .into_iter()
        .filter(|clause| !proven.contains(clause.id))
        .collect();
    assert!(open.is_empty(), "clauses without a case: {open:?}");
}

#[test]
fn every_case_names_clauses_of_the_contract() {
    let known: BTreeSet<_> = clauses().into_iter().map(|clause| clause.id).collect();
    for case in cases() {
        assert!(!case.clauses.is_empty(), "{} proves nothing", case.name);
        let named: BTreeSet<_> = case.clauses.iter().copied().collect();
        assert_eq!(
            named.len(),
            case.clauses.len(),
            "{} repeats a clause",
            case.name
        );
        assert!(
            named.is_subset(&known),
            "{} names an unknown clause: {named:?}",
            case.name
        );
    }
}

#[test]
fn names_are_unique_and_a_path_of_group_and_case() {
    let names: BTreeSet<_> = cases().into_iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases().len());
    assert!(
        names.iter().all(|name| name.split("::").count() == 2),
        "{names:?}"
    );
    assert!(
        names.len() >= 60,
        "the suite shrank to {} cases",
        names.len()
    );
}

/// A case that is written but not listed would never run, and its page would promise what nobody
/// proves.
#[test]
fn the_list_is_what_the_pages_say() {
    let mut pages = BTreeMap::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cases");
    for file in fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        let group = file.file_stem().unwrap().display();
        let source = fs::read_to_string(&file).unwrap();
        let mut page: Vec<&str> = Vec::new();
        for line in source.lines() {
            if let Some(text) = line.strip_prefix("///") {
                page.push(text.trim());
            } else if let Some(rest) = line.strip_prefix("pub async fn ") {
                let case = rest.split('<').next().unwrap();
                let proves = page.iter().find_map(|line| line.strip_prefix("Proves "));
                let proves = proves.unwrap_or_else(|| panic!("{group}::{case} proves nothing"));
                let clauses = proves
                    .split('.')
                    .next()
                    .unwrap()
                    .split(", ")
                    .map(str::to_owned)
                    .collect();
                let first = page.split(|line| line.is_empty()).next().unwrap().join(" ");
                assert!(
                    first.ends_with('.') && !first.starts_with("Proves "),
                    "the page of {group}::{case} does not begin with a sentence"
                );
                pages.insert(format!("{group}::{case}"), clauses);
                page.clear();
            } else {
                page.clear();
            }
        }
    }
    let list = cases().into_iter().map(|case| {
        let clauses: Vec<_> = case.clauses.iter().map(ToString::to_string).collect();
        (case.name.to_owned(), clauses)
    });
    assert_eq!(list.collect::<BTreeMap<_, _>>(), pages);
}
