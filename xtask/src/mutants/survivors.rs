//! The mutants by machine that are known to survive: the table of the suite's page of mutants.

/// The page, from the workspace's folder.
pub(super) const PAGE: &str = "crates/syncguard-conformance/src/mutants.md";

const HEADING: &str = "# Mutants by machine that survive";

/// What a run says about the known survivors.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Mutants that survived, and that the page does not list.
    pub(super) unlisted: Vec<String>,
    /// What the page lists, and the tests killed.
    pub(super) killed: Vec<String>,
    /// What the page lists, and is no mutant.
    pub(super) absent: Vec<String>,
}

/// The texts that the page lists. Each is part of the descriptions of the mutants that it stands for.
pub(super) fn listed(page: &str) -> Vec<String> {
    let after = page.split_once(HEADING).map_or("", |(_, after)| after);
    let section = after.split("\n# ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    // The first column; each text in it is between two backticks.
    let columns = rows.filter_map(|row| row.split(" | ").next());
    columns
        .flat_map(|column| column.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

/// Compares the page's list with the mutants that survived and those that were killed.
pub(super) fn compare(listed: &[String], missed: &[String], killed: &[String]) -> Comparison {
    let mut comparison = Comparison::default();
    for mutant in missed {
        if !listed.iter().any(|text| stands_for(text, mutant)) {
            comparison.unlisted.push(mutant.clone());
        }
    }
    for text in listed {
        let among = |mutants: &[String]| mutants.iter().any(|mutant| stands_for(text, mutant));
        if !among(missed) {
            let list = match among(killed) {
                true => &mut comparison.killed,
                false => &mut comparison.absent,
            };
            list.push(text.clone());
        }
    }
    comparison
}

/// Whether a text is part of a mutant's description, and ends there where a word ends.
fn stands_for(text: &str, mutant: &str) -> bool {
    let continues = |next: char| next.is_alphanumeric() || next == '_';
    mutant
        .match_indices(text)
        .any(|(at, _)| !mutant[at + text.len()..].starts_with(continues))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn the_pages_table_is_the_list() {
        let page = include_str!("../../../crates/syncguard-conformance/src/mutants.md");
        let listed = listed(page);
        assert!(listed.len() >= 5, "{listed:?}");
        assert!(
            listed
                .iter()
                .all(|text| text.contains("::") && !text.contains(" | ")),
            "{listed:?}"
        );
    }

    #[test]
    fn a_row_may_list_several_texts_and_other_tables_are_no_lists() {
        let page = "| `a::b` | 1 |\n\
            # Mutants by machine that survive\n\n| survivor | reason |\n|---|---|\n\
            | `c::d`, `e::f` | `g::h` |\n\n# Another\n\n| `i::j` | 2 |\n";
        assert_eq!(listed(page), owned(&["c::d", "e::f"]));
    }

    #[test]
    fn each_side_is_compared_with_the_other() {
        let listed = owned(&["in State::sweep", "in State::held_by", "in State::gone"]);
        let missed = owned(&[
            "src/a.rs:1:2: replace + with - in State::sweep",
            "src/a.rs:3:2: replace + with - in State::sweep_sometimes",
        ]);
        let killed = owned(&["src/a.rs:5:2: replace == with != in State::held_by"]);
        let expected = Comparison {
            unlisted: owned(&["src/a.rs:3:2: replace + with - in State::sweep_sometimes"]),
            killed: owned(&["in State::held_by"]),
            absent: owned(&["in State::gone"]),
        };
        assert_eq!(compare(&listed, &missed, &killed), expected);
    }
}
