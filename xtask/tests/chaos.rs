//! The proof proved: a run over a broken store fails, by what is broken.

use std::env;
use std::process::Command;

fn chaos(arguments: &[&str]) -> (bool, String) {
    // target/PROFILE/deps/chaos-HASH
    let this = env::current_exe().unwrap();
    let profile = this.ancestors().nth(2).unwrap();
    let output = Command::new(profile.join("examples/xtask"))
        .arg("chaos")
        .args(arguments)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    (output.status.success(), format!("{printed}\n{told}"))
}

#[test]
fn a_run_over_a_broken_store_is_flagged() {
    // Which of its consequences shows first is a matter of timing.
    for (mutant, reasons) in [
        (
            "steals-keys",
            ["another lease was live", "although it was held"],
        ),
        (
            "repeats-fences",
            ["fence is not above", "the fence of a lock changed"],
        ),
    ] {
        let arguments = ["--backend", "redis", "--seconds", "3", "--seed", "1"];
        let (passed, text) = chaos(&[&arguments[..], &["--mutant", mutant]].concat());
        assert!(!passed, "{mutant} passed: {text}");
        let found = reasons.iter().any(|reason| text.contains(reason));
        assert!(found, "{mutant}: {text}");
        let again = format!("--seconds 3 --seed 1 --workers 4 --mutant {mutant}");
        assert!(text.contains(&again), "{mutant}: {text}");
    }
}

#[test]
fn a_run_in_which_too_little_struck_is_no_proof() {
    let (passed, text) = chaos(&["--backend", "redis", "--seconds", "1", "--seed", "1"]);
    assert!(!passed && text.contains("kinds of fault struck"), "{text}");
    assert!(text.contains("violations: 0"), "{text}");
}
