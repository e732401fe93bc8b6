//! Measures every store once, briefly, to check that the bench works.

use std::process::Command;

use serde_json::Value;

/// Runs the bench on one store and returns its JSON.
fn bench(store: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figures.json");
    let output = Command::new(env!("CARGO_BIN_EXE_syncguard-bench"))
        .args(["--quick", "--backend", store, "--json"])
        .arg(&file)
        .arg("--charts")
        .arg(folder.path())
        .output()
        .unwrap();
    let (printed, told) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{store}: {told}");
    let printed = String::from_utf8_lossy(&printed);
    assert!(printed.contains(&format!("### {store}\n")), "{printed}");
    let judged = ["targets:", "missed", "≥", "≤"];
    assert!(!judged.iter().any(|it| printed.contains(it)), "{printed}");
    if store != "sqlite" {
        let chart = folder.path().join(format!("{store}-extend-rate.svg"));
        let chart = std::fs::read_to_string(chart).unwrap();
        assert!(
            chart.contains("SyncGuard") && chart.contains("<polyline"),
            "{chart}"
        );
    }
    let mut report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(report["stores"].as_array().unwrap().len(), 1);
    report["stores"][0].take()
}

fn each<'a>(report: &'a Value, part: &str) -> &'a [Value] {
    report[part].as_array().unwrap()
}

/// Checks that each operation was measured, and that each comparison has two sides.
fn assert_complete(report: &Value, comparisons: &[&str]) {
    for operation in ["acquire and release", "extend", "lookup by id", "refusal"] {
        for tasks in [1, 16] {
            let rate = each(report, "load").iter().find_map(|load| {
                let this = load["operation"] == operation && load["tasks"] == tasks;
                this.then(|| load["ours"]["per_second"]["median"].as_f64())
                    .flatten()
            });
            assert!(rate.unwrap() > 0.0, "{operation} by {tasks}: {report}");
        }
    }
    for name in comparisons {
        let found = each(report, "comparisons").iter().any(|comparison| {
            let text = format!("{} {}", comparison["what"], comparison["beside"]);
            text.replace('"', "").contains(name)
        });
        assert!(found, "no {name}: {report}");
    }
    for comparison in each(report, "comparisons") {
        let ratio = comparison["ratio"]["median"].as_f64();
        assert!(ratio.is_some_and(|ratio| ratio > 0.0), "{comparison}");
    }
    for handover in each(report, "handover") {
        assert!(handover["sections_per_second"]["median"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(each(report, "handover").len(), 2);
}

#[test]
fn redis() {
    let parts = [
        "16 tasks redis-benchmark",
        "16 tasks rslock",
        "server time of acquire as specified",
        "server time of release as specified",
        "server CPU of a pair, 16 tasks rslock",
        "a call in the server, 64 tasks, p99.9 0.5 ms",
        "memory of lock, index and fence counter",
        "beside 2000 locks",
    ];
    assert_complete(&bench("redis"), &parts);
}

#[test]
fn postgres() {
    let parts = [
        "16 tasks pgbench",
        "16 tasks session advisory lock",
        "acquire, 16 tasks six statements",
        "server CPU of a pair, 16 tasks six statements, one DELETE",
        "asynchronous releases, 1 tasks synchronous, fsync on",
        "disk of lock and fence counter",
        "beside 2000 locks",
    ];
    assert_complete(&bench("postgres"), &parts);
}

#[test]
fn firestore() {
    let parts = [
        "16 tasks bare requests",
        "8 clients one client's transactions",
    ];
    assert_complete(&bench("firestore"), &parts);
}

#[test]
fn sqlite() {
    let parts = [
        "durable, 16 tasks the bare driver",
        "not durable, 16 tasks the bare driver",
        "BEGIN EXCLUSIVE",
        "flock",
    ];
    assert_complete(&bench("sqlite"), &parts);
}

#[test]
fn memory() {
    assert_complete(&bench("memory"), &["16 tasks a map behind a mutex"]);
}

#[test]
fn a_quick_run_cannot_be_checked() {
    let refused = Command::new(env!("CARGO_BIN_EXE_syncguard-bench"))
        .args(["--quick", "--check"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("cannot be used with"), "{told}");
}
