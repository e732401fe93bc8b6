//! Tests of cases that are skipped.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::report::Plain;

/// Makes the test the one that it starts.
const INNER: &str = "SYNCGUARD_INNER_TEST";

#[test]
fn a_skipped_case_is_listed_in_a_file_or_fails() {
    if env::var_os(INNER).is_some() {
        let case = "fencing::great_fences_are_exact";
        return syncguard_conformance::__run_test(case, case, async { Plain::default() });
    }
    let passes = |variable, value: &Path| {
        let mut tests = Command::new(env::current_exe().unwrap());
        tests
            .args([
                "--exact",
                "skips::a_skipped_case_is_listed_in_a_file_or_fails",
            ])
            .envs([(INNER, Path::new("1")), (variable, value)]);
        let output = tests.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("running 1 test"), "{text}");
        output.status.success()
    };
    let name = format!("skipped-{}", std::process::id());
    let list = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let listed_in = "SYNCGUARD_CONFORMANCE_SKIPPED";
    assert!(passes(listed_in, &list) && passes(listed_in, &list));
    let lines = fs::read_to_string(&list).unwrap();
    fs::remove_file(&list).unwrap();
    let begins = "skipped: fencing::great_fences_are_exact: the harness cannot set";
    let listed = lines.lines().filter(|line| line.starts_with(begins));
    assert_eq!(listed.count(), 2, "one line a run: {lines}");
    assert!(!passes("SYNCGUARD_CONFORMANCE_SKIPS", Path::new("deny")));
}
