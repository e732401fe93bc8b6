//! `--tables`: a page gets the tables of recorded figures.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Recorded by `--quick --backend memory --json`, and shortened.
const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/figures.json");

fn tables(page: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_syncguard-bench"))
        .args(["--from", FIGURES, "--tables"])
        .arg(page)
        .output()
        .unwrap()
}

fn page(folder: &Path, text: &str) -> PathBuf {
    let page = folder.join("page.md");
    std::fs::write(&page, text).unwrap();
    page
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
    let extend = ["", "extend", "16", "107981", "1.74", "3.24", "1.03"];
    assert_eq!(row("extend").unwrap()[..7], extend);
    let hand_over = row("hand-over in one process").unwrap();
    assert_eq!(
        hand_over[2..8],
        [
            "319",
            "sections/s",
            "one alone",
            "413",
            "0.77",
            "≥ 0.95 **missed**"
        ]
    );
    assert_eq!(row("wait in four handles, p99").unwrap()[7], "≤ 4.00");
    assert_eq!(row("in one process").unwrap()[2..4], ["319", "33.5"]);
    assert!(within.contains("medians of 1 runs of 50 ms"), "{within}");

    assert!(tables(&page).status.success());
    assert_eq!(
        std::fs::read_to_string(&page).unwrap(),
        once,
        "a second run changes nothing"
    );
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
