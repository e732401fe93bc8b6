//! `cargo xtask mutants`: cargo-mutants on the code that every store relies on, with the suite as the test.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::step::{announced, cargo, workspace};
use crate::{Done, Verdict};

/// The version of cargo-mutants: another makes other mutants.
const VERSION: &str = "27.1.0";

/// The files that are mutated by default: the shortest backend, and the rule for live leases.
const FILES: &[&str] = &[
    "crates/syncguard-memory/src/backend.rs",
    "crates/syncguard-core/src/time.rs",
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Files to mutate, from the workspace's folder [default: the memory backend, and
    /// the core's rule of time]
    files: Vec<PathBuf>,
    /// How many mutants to test at once
    #[arg(long, short, default_value_t = 1)]
    jobs: usize,
    /// List the mutants, and test none
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(options: &Options) -> Done {
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
    } else {
        command
            .args(["--output", "target"])
            .args(["--jobs", &options.jobs.to_string()])
            // Longer than the suite takes on a busy machine. A mutant that hangs counts as killed.
            .args(["--timeout", "240", "--build-timeout", "600"])
            // The suite on memory is the test: not the tests beside the code.
            .args([
                "--test-package",
                "syncguard-conformance",
                "--baseline",
                "run",
            ])
            .args(["--", "--test", "memory"]);
    }
    // A survivor is a failure. The page of mutants has the reason of each that is known.
    Ok(match command.status()?.success() {
        true => Verdict::Passed,
        false => Verdict::Failed,
    })
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
