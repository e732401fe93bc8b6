//! Running commands as steps, with a line when they begin and one when they end.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::tally::Tally;

/// The cargo that runs this program, in the workspace's folder.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    // What `cargo run` says of xtask. The build script of `ring` would run again because of it, and all that
    // depends on `ring` be built again.
    for (name, _) in std::env::vars_os() {
        let described = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        if described {
            command.env_remove(name);
        }
    }
    command
}

/// A command that runs this program, even if a build has replaced its file since it started.
pub(crate) fn this_program() -> Result<Command> {
    // Resolved by the child while it still is this program, so it needs no file of that name.
    let running = Path::new("/proc/self/exe");
    let program = if running.exists() {
        running.to_path_buf()
    } else {
        std::env::current_exe()?
    };
    Ok(Command::new(program))
}

/// The workspace's folder.
pub(crate) fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Whether cargo has a subcommand, such as `nextest`.
pub(crate) fn cargo_has(subcommand: &str) -> bool {
    cargo([subcommand, "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Runs something that may take a while, with a line before and after it.
pub(crate) fn announced<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    announced_as(what, work, |_| "done".to_owned())
}

/// Runs a command to its end; it counts as one test.
pub(crate) fn run(what: &str, command: &mut Command) -> Result<Tally> {
    let work = || {
        let status = command
            .status()
            .with_context(|| format!("cannot run {command:?}"))?;
        Ok(Tally::of(status.success()))
    };
    announced_as(what, work, ToString::to_string)
}

/// Runs a command whose output must begin with certain words; it counts as one test.
pub(crate) fn run_saying(what: &str, command: &mut Command, begins: &str) -> Result<Tally> {
    let work = || {
        let output = command
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot run {command:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        eprint!("{text}");
        Ok(Tally::of(
            output.status.success() && text.starts_with(begins),
        ))
    };
    announced_as(what, work, ToString::to_string)
}

/// Runs a test runner to its end and counts by its lines. A failure without a line, such as a compile
/// error, counts as one.
pub(crate) fn run_tests(
    what: &str,
    mut command: Command,
    read: impl Fn(&str) -> Tally,
) -> Result<Tally> {
    let work = || {
        let (output, writer) = io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        // The command also holds writers; the output ends when all are closed.
        drop(command);
        let mut tally = Tally::default();
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            eprintln!("{line}");
            tally += read(&line);
        }
        if !child.wait()?.success() && tally.failed == 0 {
            tally += Tally::of(false);
        }
        Ok(tally)
    };
    announced_as(what, work, ToString::to_string)
}

fn announced_as<T>(
    what: &str,
    work: impl FnOnce() -> Result<T>,
    outcome: impl Fn(&T) -> String,
) -> Result<T> {
    eprintln!("==> {what}");
    let started = Instant::now();
    let result = work();
    let outcome = result.as_ref().map_or("FAILED".to_owned(), outcome);
    eprintln!("    {what}: {outcome}, in {:.1?}", started.elapsed());
    result
}
