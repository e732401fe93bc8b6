//! The mutants by clause and kind of fault: each cell has one, or the reason why it has none.

use super::MUTANTS;

const KINDS: [&str; 11] = [
    "early",
    "late",
    "lost",
    "doubled",
    "wrong key",
    "wrong owner",
    "by one",
    "after extend",
    "after expiry",
    "in tolerance",
    "raced",
];

/// Why a cell has no mutant, by the letters of [`ROWS`].
const REASONS: &[(char, &str)] = &[
    ('a', "The clause says nothing about time."),
    (
        'b',
        "The clause is about one key or id: there is no other one to confuse it with.",
    ),
    ('c', "The clause counts and measures nothing."),
    (
        'd',
        "The operation returns one of two answers, or one value: nothing else can be lost or repeated.",
    ),
    (
        'e',
        "It makes no difference whether the lock was extended, whether its lease has ended, or which other calls run \
         meanwhile.",
    ),
    (
        'f',
        "Such a fault breaks another clause first, and is counted there.",
    ),
    (
        'h',
        "The answers do not distinguish such a store from a correct one, or only by less than a clock's precision.",
    ),
    ('k', "The contract allows it."),
];

/// A clause, and a character for each kind: `*` where there are mutants, else a reason.
const ROWS: &[(&str, &str)] = &[
    ("K2", "aa*d***eee*"),
    ("K3", "aafd*b*efee"),
    ("K4", "aa*d*b*eeee"),
    ("I3", "a**k**ceeek"),
    ("T1", "***fbb**ffe"),
    ("A1", "f**f**ce*ff"),
    ("A2", "f***f***f*f"),
    ("A3", "aaf*bbcf*f*"),
    ("A4", "a*d*bbc*e*k"),
    ("A5", "*********f*"),
    ("A6", "**ddbb*e*e*"),
    ("R1", "***ff*c*ff*"),
    ("R2", "aad*ffce*ff"),
    ("R3", "aadd***e***"),
    ("R4", "aa**fbh****"),
    ("R5", "aaffbbc*ff*"),
    ("X1", "****ff**f*f"),
    ("X2", "*fddbb*efff"),
    ("X3", "aa**f*c**f*"),
    ("X4", "a*d*ff*ef**"),
    ("X5", "aaddb*ceeee"),
    ("L1", "f****bc**f*"),
    ("L2", "f*fd****ff*"),
    ("L3", "f*dfbbce*ff"),
    ("L4", "f*ffbb*ef**"),
    ("L5", "aadd*bceeee"),
    ("N1", "***f****ff*"),
    ("N2", "aad*ff**eef"),
    ("N3", "f*df**ff*ff"),
    ("N4", "aa*f*b*eeee"),
    ("N5", "f*d*bb*eeef"),
    ("N6", "f*ffbb*f***"),
    ("E1", "*f*dffh**f*"),
    ("E2", "f*ddbb**eff"),
    ("E3", "*fddbb**e**"),
    ("W1", "**kdbbh*e*h"),
    ("W2", "kh****c****"),
    ("F1", "aa**fbfffff"),
    ("F2", "aa*df*ce*e*"),
    ("F3", "a*d*fb*e*ef"),
    ("F4", "aa**fbf*f*k"),
    ("C1", "a**dbbceeef"),
    ("C4", "aa*dbbcefff"),
    ("O1", "aaddbbce***"),
    ("O2", "a*****c***e"),
    ("D1", "a**dbbceeee"),
    ("P1", "*f*dfbc*e**"),
    ("P2", "aah*bb**eeh"),
    ("S1", "a**db*c*eef"),
    ("G1", "f***f***ff*"),
    ("G2", "fa*dffc**f*"),
    ("G3", "f******e***"),
];

/// How many mutants are of a clause and a kind.
fn count(clause: &str, kind: &str) -> usize {
    let of_cell = |mutant: &&super::Mutant| {
        let (_, of_clause, of_kind, _) = **mutant;
        of_clause == clause && of_kind.replace('_', " ") == kind
    };
    MUTANTS.iter().filter(of_cell).count()
}

#[test]
fn every_kind_of_fault_of_every_clause_has_a_mutant_or_a_reason() {
    let mut mutants = 0;
    for (clause, row) in ROWS {
        assert_eq!(row.len(), KINDS.len(), "{clause}");
        for (kind, cell) in KINDS.iter().zip(row.chars()) {
            let count = count(clause, kind);
            mutants += count;
            let explained = REASONS.iter().any(|(letter, _)| *letter == cell);
            let expected = if count > 0 { cell == '*' } else { explained };
            assert!(expected, "{clause} {kind}: {count} mutants, and `{cell}`");
        }
    }
    assert_eq!(
        mutants,
        MUTANTS.len(),
        "mutants of an unlisted clause or kind"
    );
}

/// The tables that readers see are these.
#[test]
fn the_page_shows_the_kinds() {
    let mut table = String::new();
    for (clause, row) in ROWS {
        table.push_str(&format!("| **{clause}** |"));
        for (kind, cell) in KINDS.iter().zip(row.chars()) {
            match count(clause, kind) {
                0 => table.push_str(&format!(" {cell} |")),
                count => table.push_str(&format!(" {count} |")),
            }
        }
        table.push('\n');
    }
    for (letter, reason) in REASONS {
        table.push_str(&format!("- `{letter}`: {reason}\n"));
    }
    let page = include_str!("../../../src/mutants.md");
    let shown: String = page
        .lines()
        .filter(|line| line.starts_with("| **") || line.starts_with("- `"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(shown, table, "src/mutants.md should show:\n{table}");
}
