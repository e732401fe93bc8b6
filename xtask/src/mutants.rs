//! `cargo xtask mutants`: cargo-mutants on the code that every store relies on, with the suite as the test; and the
//! mutants by hand, each against its own case many times.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use self::survivors::PAGE;
use crate::step::{announced, cargo, run_tests, workspace};
use crate::tally::Tally;
use crate::{Conclusion, Done};

mod by_hand;
mod survivors;

/// The version of cargo-mutants: another makes other mutants.
const VERSION: &str = "27.1.0";

/// The files that are mutated by default: the shortest backend, and the rule for live leases. The page of mutants says
/// why no others.
const FILES: &[&str] = &[
    "crates/syncguard-memory/src/backend.rs",
    "crates/syncguard-core/src/time.rs",
];

/// The suite on memory is the test: not the tests beside the code.
const SUITE: &str = "syncguard-conformance";
const SUITE_TESTS: [&str; 3] = ["--test", "integration", "memory::"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Files to mutate, from the workspace's folder [default: the memory backend, and
    /// the core's rule of time]
    files: Vec<PathBuf>,
    /// How many mutants to test at once
    #[arg(long, short, default_value_t = 1)]
    jobs: usize,
    /// Stop after so many minutes, which counts as a failure. The next run skips what this one caught
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Forget what earlier runs caught
    #[arg(long)]
    afresh: bool,
    /// List the mutants, and test none
    #[arg(long)]
    list: bool,
    /// Instead, run each mutant of the page of mutants against its own case, so many times
    #[arg(long, value_name = "TIMES", conflicts_with_all = ["files", "jobs", "minutes", "afresh", "list"])]
    cases: Option<u32>,
    /// With --cases: keep all cores busy meanwhile
    #[arg(long, requires = "cases")]
    busy: bool,
    /// With --cases: run the whole suite on each mutant
    #[arg(long, requires = "cases")]
    whole: bool,
}

pub(crate) fn run(options: &Options) -> Done {
    if let Some(times) = options.cases {
        return by_hand::run(times, options.busy, options.whole);
    }
    let program = installed()?;
    let mut command = Command::new(program);
    command.arg("mutants").current_dir(workspace());
    if options.files.is_empty() {
        command.args(FILES.iter().flat_map(|file| ["--file", *file]));
    }
    for file in &options.files {
        command.arg("--file").arg(file);
    }
    if options.list {
        command.arg("--list");
        return Ok(conclusion(command.status()?.success()));
    }
    command
        .args(["--output", "target"])
        .args(["--jobs", &options.jobs.to_string()])
        // Longer than the suite takes on a busy machine. A mutant that hangs counts as killed.
        .args(["--timeout", "240", "--build-timeout", "600"]);
    if !options.afresh {
        command.arg("--iterate");
    }
    // Its own first run would be of the mutated packages' tests, and none has the name of the suite's.
    let mut unmutated = cargo(["test", "--package", SUITE]);
    unmutated.args(SUITE_TESTS);
    let suite = run_tests("the suite without a mutant", unmutated, Tally::from_libtest)?;
    anyhow::ensure!(
        suite.passed > 0 && suite.failed == 0,
        "the suite does not pass without a mutant: {suite}"
    );
    command
        .args(["--test-package", SUITE])
        .args(["--baseline", "skip", "--"])
        .args(SUITE_TESTS);
    let limit = Duration::from_secs(options.minutes.saturating_mul(60));
    let status = wait_for(command.spawn()?, limit)?;
    let output = workspace().join("target/mutants.out");
    let listed = |name: &str| lines(&output.join(name)).collect::<Vec<_>>();
    let missed = listed("missed.txt");
    let killed = [listed("caught.txt"), listed("timeout.txt")].concat();
    println!("{} mutants killed, {} survived", killed.len(), missed.len());
    let page = fs::read_to_string(workspace().join(PAGE))
        .with_context(|| format!("cannot read {PAGE}"))?;
    let earlier = listed("previously_caught.txt");
    let all_killed = [killed.as_slice(), earlier.as_slice()].concat();
    let comparison = survivors::compare(&survivors::listed(&page), &missed, &all_killed);
    for mutant in &comparison.unlisted {
        println!("survived, and is not in {PAGE}: {mutant}");
    }
    for text in &comparison.killed {
        println!("killed, and is a survivor in {PAGE}: {text}");
    }
    let Some(status) = status else {
        let all = fs::read(output.join("mutants.json")).context("no list of mutants")?;
        let all: Vec<serde_json::Value> = serde_json::from_slice(&all)?;
        let tested = killed.len() + missed.len() + listed("unviable.txt").len();
        println!(
            "unfinished: {} mutants were not tested within {} minutes; run it again to continue",
            all.len().saturating_sub(tested),
            options.minutes
        );
        return Ok(Conclusion::Failed);
    };
    if options.files.is_empty() {
        for text in &comparison.absent {
            println!("no mutant, and is a survivor in {PAGE}: {text}");
        }
    }
    // The statuses of cargo-mutants if it has tested all mutants: it saw each killed, some survive, or some hang. A
    // mutant that hangs is killed.
    const TESTED: [i32; 3] = [0, 2, 3];
    let tested = status.code().is_some_and(|code| TESTED.contains(&code));
    Ok(conclusion(tested && comparison.unlisted.is_empty()))
}

fn conclusion(passed: bool) -> Conclusion {
    match passed {
        true => Conclusion::Passed,
        false => Conclusion::Failed,
    }
}

/// How it ended; `None` if it was interrupted after so long.
fn wait_for(mut child: Child, limit: Duration) -> Result<Option<ExitStatus>> {
    const POLL: Duration = Duration::from_millis(500);
    let began = Instant::now();
    while began.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(POLL);
    }
    // It ends the tests that it has started, and keeps what it found.
    kill_process(Pid::from_child(&child), Signal::INT)?;
    child.wait()?;
    Ok(None)
}

fn lines(path: &Path) -> impl Iterator<Item = String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.into_iter()
}

/// The program of that version, in a folder of its own.
fn installed() -> Result<PathBuf> {
    let root = workspace().join("target/tools").join(VERSION);
    let program = root.join("bin/cargo-mutants");
    if !program.exists() {
        announced(&format!("install cargo-mutants {VERSION}"), || {
            let mut install = cargo(["install", "cargo-mutants", "--locked", "--version", VERSION]);
            let status = install.arg("--root").arg(&root).status()?;
            anyhow::ensure!(
                status.success(),
                "cargo-mutants {VERSION} cannot be installed"
            );
            Ok(())
        })?;
    }
    Ok(program)
}
