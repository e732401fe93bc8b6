//! `--from`: recorded figures as tables of a page, as charts, and under `--check`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Recorded by `--backend memory --json`, and shortened; the spreads and 64 tasks are made up.
const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/figures.json");

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_syncguard-bench"))
        .args(arguments)
        .output()
        .unwrap()
}

fn tables_from(figures: &str, page: &Path) -> Output {
    bench(&["--from", figures, "--tables", page.to_str().unwrap()])
}

fn tables(page: &Path) -> Output {
    tables_from(FIGURES, page)
}

fn page(folder: &Path, text: &str) -> PathBuf {
    let page = folder.join("page.md");
    std::fs::write(&page, text).unwrap();
    page
}

/// Of the workspace's folder.
macro_rules! docs {
    ($file:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/", $file)
    };
}

#[test]
fn the_performance_page_has_the_tables_of_its_recorded_figures() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(docs!("performance.md")).unwrap();
    let page = page(folder.path(), &text);
    let output = tables_from(docs!("performance.json"), &page);
    assert!(output.status.success(), "{output:?}");
    assert!(
        std::fs::read_to_string(&page).unwrap() == text,
        "run `cargo xtask bench --from docs/performance.json --tables docs/performance.md`"
    );
}

#[test]
fn the_tables_between_the_markers_are_replaced_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let text = "Before.\n\n<!-- bench: redis -->\nof redis\n<!-- /bench -->\n\n\
                <!-- bench: memory -->\nan old table\n<!-- /bench -->\n\nAfter.\n";
    let page = page(folder.path(), text);
    let output = tables(&page);
    assert!(output.status.success(), "{output:?}");
    let once = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = once.split_once("<!-- bench: memory -->").unwrap();
    let (within, after) = rest.split_once("<!-- /bench -->").unwrap();
    assert_eq!(before, text.split_once("<!-- bench: memory -->").unwrap().0);
    assert_eq!(after, "\n\nAfter.\n");
    assert!(!within.contains("an old table"), "{within}");
    let rows: Vec<_> = within
        .lines()
        .filter(|line| line.starts_with("| "))
        .collect();
    let cells =
        |row: &str| -> Vec<String> { row.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let row = |name: &str| rows.iter().map(|row| cells(row)).find(|row| row[1] == name);
    let extend = [
        "",
        "extend",
        "1",
        "107981 (3 %)",
        "1.74 (2 %)",
        "3.24 (18 %)",
        "1.03 (3 %)",
    ];
    assert_eq!(row("extend").unwrap()[..7], extend);
    let hand_over = row("hand-over in one process").unwrap();
    assert_eq!(
        hand_over[2..8],
        [
            "319 (5 %)",
            "sections/s",
            "one alone",
            "413 (4 %)",
            "0.77 (3 %)",
            "≥ 0.95 **missed**"
        ]
    );
    assert_eq!(row("wait in four handles, p99").unwrap()[7], "≤ 4.00");
    assert_eq!(row("memory of a lock").unwrap()[2], "254", "of one run");
    assert_eq!(
        row("in one process").unwrap()[2..4],
        ["319 (1 %)", "33.5 (1 %)"]
    );
    assert!(within.contains("medians of 5 runs of 50 ms"), "{within}");

    assert!(tables(&page).status.success());
    assert_eq!(
        std::fs::read_to_string(&page).unwrap(),
        once,
        "a second run changes nothing"
    );
}

#[test]
fn what_was_disturbed_says_so_in_place_of_figures() {
    let folder = tempfile::tempdir().unwrap();
    let page = page(folder.path(), "<!-- bench: memory -->\n<!-- /bench -->\n");
    assert!(tables(&page).status.success());
    let page = std::fs::read_to_string(&page).unwrap();
    let row = |begin: &str| {
        let row = page.lines().find(|line| line.starts_with(begin)).unwrap();
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        cells.join("|")
    };
    assert_eq!(
        row("| wait in one process, p99"),
        "|wait in one process, p99|disturbed|ms|a fair share|disturbed|disturbed (41 %)|≤ 1.50|"
    );
    assert_eq!(
        row("| extend              |    64"),
        "|extend|64|disturbed|disturbed|disturbed|disturbed|||||"
    );
    // Both sides were slowed down, and their ratio was not.
    let pair = row("| acquire and release |    16");
    assert!(
        pair.starts_with("|acquire and release|16|24119 (21 %)|"),
        "{pair}"
    );
    assert!(pair.ends_with("|0.35 (3 %)|"), "{pair}");
}

#[test]
fn a_chart_has_no_point_where_it_was_disturbed_and_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let charts = folder.path().to_str().unwrap();
    assert!(
        bench(&["--from", FIGURES, "--charts", charts])
            .status
            .success()
    );
    let chart = std::fs::read_to_string(folder.path().join("memory-extend-rate.svg")).unwrap();
    assert!(chart.contains("(disturbed: 64 tasks)"), "{chart}");
    assert_eq!(chart.matches("<circle").count(), 2, "{chart}");
}

#[test]
fn a_check_names_what_it_cannot_judge_and_fails() {
    let checked = bench(&["--from", FIGURES, "--check"]);
    let (printed, told) = (checked.stdout, String::from_utf8_lossy(&checked.stderr));
    assert!(!checked.status.success());
    let printed = String::from_utf8_lossy(&printed);
    assert!(
        printed.contains("targets: 2 met, 1 missed, 1 disturbed"),
        "{printed}"
    );
    let disturbed = "memory: wait in one process, p99, beside a fair share: disturbed (41 %)";
    assert!(told.contains(disturbed), "{told}");
    assert!(
        told.contains("hand-over in one process, beside one alone: 0.77"),
        "{told}"
    );
    assert!(told.contains("the machine was not idle"), "{told}");

    // Nothing is missed, and one target is neither met nor missed.
    let folder = tempfile::tempdir().unwrap();
    let changed = |from: &str, to: &str| {
        let text = std::fs::read_to_string(FIGURES).unwrap();
        assert!(text.contains(from));
        let file = folder.path().join("figures.json");
        std::fs::write(&file, text.replace(from, to)).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let none_missed = changed(r#""at_least": 0.95"#, r#""at_least": 0.75"#);
    let checked = bench(&["--from", &none_missed, "--check"]);
    assert!(!checked.status.success(), "{checked:?}");
    assert!(bench(&["--from", &none_missed]).status.success());

    // All runs were quiet, and one target is missed.
    let quiet = changed(r#""spread": 0.41"#, r#""spread": 0.14"#);
    let checked = bench(&["--from", &quiet, "--check"]);
    assert!(!checked.status.success(), "{checked:?}");
    let told = String::from_utf8_lossy(&checked.stderr);
    assert!(!told.contains("not idle"), "{told}");
}

#[test]
fn a_page_without_a_marker_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let text = "<!-- bench: memory -->\nan old table\n";
    let page = page(folder.path(), text);
    let output = tables(&page);
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("has no <!-- /bench --> after <!-- bench: memory -->"),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(&page).unwrap(), text);
}

#[test]
fn the_page_on_performance_has_the_markers_of_every_store() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance.md");
    let page = std::fs::read_to_string(page).unwrap();
    for store in ["redis", "postgres", "firestore", "sqlite", "memory"] {
        let begin = format!("<!-- bench: {store} -->");
        let parts: Vec<_> = page.split(&begin).collect();
        assert_eq!(parts.len(), 2, "{begin}");
        assert!(parts[1].contains("<!-- /bench -->"), "{begin} has no end");
    }
}
