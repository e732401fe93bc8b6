//! The mutants that people wrote: each against its own case, many times.

use std::collections::BTreeMap;
use std::hint::spin_loop;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::conclusion;
use crate::Done;
use crate::step::{cargo, workspace};

/// The tests' own crate: where they find their sources.
const FOLDER: &str = "crates/syncguard-conformance";

/// Makes the tests run the whole suite on each mutant.
const WHOLE: &str = "SYNCGUARD_MUTANTS_WHOLE_SUITE";

/// Mutants side by side: nearly all of their time is waiting.
const THREADS: usize = 16;

/// Runs every test of the list so many times, and says which did not see its mutant killed each time.
pub(super) fn run(times: u32, busy: bool, whole: bool) -> Done {
    let program = built()?;
    let idle = AtomicBool::new(!busy);
    let survived = thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..cores {
            scope.spawn(|| {
                while !idle.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        let rounds = (1..=times).try_fold(BTreeMap::new(), |mut survived, round| {
            let began = Instant::now();
            let (tests, failed) = test(&program, whole)?;
            let lost = failed.len();
            eprintln!(
                "    {round} of {times}: {tests} tests, {lost} failed, in {:.0?}",
                began.elapsed()
            );
            for name in failed {
                *survived.entry(name).or_insert(0_u32) += 1;
            }
            Ok::<_, anyhow::Error>(survived)
        });
        idle.store(true, Ordering::Relaxed);
        rounds
    })?;
    for (name, failed) in &survived {
        println!("{name}: killed {} times of {times}", times - failed);
    }
    if survived.is_empty() {
        println!("every mutant was killed {times} times of {times}");
    }
    Ok(conclusion(survived.is_empty()))
}

/// How many tests there were, and which failed. What these say goes to stderr.
fn test(program: &PathBuf, whole: bool) -> Result<(usize, Vec<String>)> {
    let mut command = std::process::Command::new(program);
    command
        .current_dir(workspace().join(FOLDER))
        .args(["mutants::", &format!("--test-threads={THREADS}")])
        .env("RUST_BACKTRACE", "0");
    if whole {
        command.env(WHOLE, "1");
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (mut tests, mut failed) = (0, Vec::new());
    for line in text.lines() {
        let Some((name, result)) = line
            .strip_prefix("test ")
            .and_then(|line| line.split_once(" ... "))
        else {
            continue;
        };
        tests += 1;
        if result != "ok" {
            failed.push(name.to_owned());
        }
    }
    ensure!(tests > 0, "no tests: {text}");
    if let Some((_, details)) = text.split_once("\nfailures:\n") {
        eprintln!("{details}");
    }
    Ok((tests, failed))
}

/// Builds the tests, once.
fn built() -> Result<PathBuf> {
    let arguments = [
        "test",
        "--package",
        "syncguard-conformance",
        "--test",
        "integration",
        "--no-run",
    ];
    let mut build = cargo(arguments);
    build.args(["--message-format", "json-render-diagnostics"]);
    let output = build.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the tests do not compile");
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = messages
        .filter(|message| message["target"]["name"] == "integration")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    program.context("cargo names no program of the tests")
}
