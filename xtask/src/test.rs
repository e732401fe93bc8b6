//! `cargo xtask test`: all set-up and all tests.

use std::{fs, thread};

use anyhow::Result;
use syncguard_testkit::install;
use tempfile::NamedTempFile;

use crate::backends::{BACKENDS, Store, ensure_installed, obtain_all};
use crate::step::{cargo, cargo_has, run_saying, run_tests};
use crate::tally::Tally;
use crate::{Conclusion, Done, chaos, conformance};

/// The cases with which the command is tried on each store: the tests of each store's crate run them all.
const SUITE_PART: &str = "acquire::";

/// Long enough for every kind of fault.
const CHAOS_SECONDS: u64 = 10;

/// Tests at once for each core: nearly all of their time is waiting.
const TESTS_PER_CORE: usize = 6;

/// The result of each step.
type Results = Vec<(&'static str, Tally)>;

pub(crate) fn run() -> Done {
    Ok(summarise(&all()?))
}

/// Runs all tests.
pub(crate) fn all() -> Result<Results> {
    ensure_installed(install::ALL)?;
    let backends: Vec<_> = BACKENDS.iter().collect();
    let stores = obtain_all(&backends);
    let variables = variables(&stores);

    Ok(vec![
        (
            "unit and integration tests",
            unit_and_integration(&variables)?,
        ),
        ("documentation tests", documentation(&variables)?),
        ("quickstart on each store", quickstart(&stores)?),
        (
            "conformance command on each store",
            conformance::run_on(&stores, SUITE_PART)?,
        ),
        ("chaos on each store", chaos::run_all(CHAOS_SECONDS)),
    ])
}

/// Prints the result of each step, and the sum in the last line.
pub(crate) fn summarise(results: &[(&str, Tally)]) -> Conclusion {
    let mut total = Tally::default();
    println!();
    for (what, tally) in results {
        println!("{what}: {tally}");
        total += *tally;
    }
    println!("{total}");
    total.conclusion()
}

fn unit_and_integration(variables: &Variables) -> Result<Tally> {
    let (mut command, read): (_, fn(&str) -> Tally) = if cargo_has("nextest") {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut command = cargo(["nextest", "run", "--workspace", "--no-fail-fast"]);
        command.args(["--test-threads", &(cores * TESTS_PER_CORE).to_string()]);
        (command, Tally::from_nextest)
    } else {
        let arguments = [
            "test",
            "--workspace",
            "--no-fail-fast",
            "--lib",
            "--bins",
            "--tests",
        ];
        (cargo(arguments), Tally::from_libtest)
    };
    // A skipped case passes its test, and the runner hides what that says.
    let skipped = NamedTempFile::new()?;
    command
        .envs(variables.iter().cloned())
        .env("SYNCGUARD_CONFORMANCE_SKIPPED", skipped.path());
    let tally = run_tests("unit and integration tests", command, read)?;
    let skipped = fs::read_to_string(skipped.path())?;
    eprint!("{skipped}");
    Ok(tally.without(skipped.lines().count()))
}

fn documentation(variables: &Variables) -> Result<Tally> {
    let mut command = cargo(["test", "--workspace", "--no-fail-fast", "--doc"]);
    command.envs(variables.iter().cloned());
    run_tests("documentation tests", command, Tally::from_libtest)
}

fn quickstart(stores: &[Store]) -> Result<Tally> {
    let mut tally = Tally::default();
    for (backend, store) in stores {
        let mut command = cargo(["run", "--quiet", "--example", "quickstart"]);
        for other in BACKENDS
            .iter()
            .filter_map(|backend| backend.service.as_ref())
        {
            command.env_remove(other.variable);
        }
        if let (Some(service), Ok(store)) = (&backend.service, store) {
            command.env(service.variable, &store.address);
        }
        let begins = format!("store: {}\n", backend.name);
        tally += run_saying(
            &format!("quickstart on {}", backend.name),
            &mut command,
            &begins,
        )?;
    }
    Ok(tally)
}

/// Names and values of environment variables.
type Variables = Vec<(&'static str, String)>;

/// The variables by which the tests find the servers.
fn variables(stores: &[Store]) -> Variables {
    stores
        .iter()
        .filter_map(|(backend, store)| {
            let variable = backend.service.as_ref()?.variable;
            Some((variable, store.as_ref().ok()?.address.clone()))
        })
        .collect()
}
