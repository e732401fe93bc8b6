//! The workspace's own commands: `cargo xtask --help`.
//!
//! Each task is a module with its options and a `run`. The stores are in [`backends`]: a new backend is a
//! file there and a line in its list.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

mod backends;
mod bench;
mod chaos;
mod ci;
mod conformance;
mod features;
mod mutants;
mod services;
mod step;
mod tally;
mod test;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "The workspace's own commands"
)]
enum Task {
    /// Everything: servers, unit, integration and doc tests, the suite on each store
    ///
    /// Installs missing programs as root on Debian or Ubuntu, and otherwise says what to install. Servers
    /// run on free loopback ports in temporary folders and are stopped at the end. If a store's variable is
    /// set (SYNCGUARD_REDIS_URL, ...), the tests use that store.
    Test,
    /// The conformance suite, as a matrix of cases by stores
    Conformance(conformance::Options),
    /// Mutate the code that every store relies on, with the suite as the test
    ///
    /// Installs cargo-mutants into target/tools if it is missing. It stops after an hour, and the next run
    /// continues. Fails if a mutant survives that the suite's page of mutants does not list, and if it was stopped.
    /// With --cases it runs the mutants of that page instead, each against its own case, many times.
    Mutants(mutants::Options),
    /// Run locks under faults (killed servers, lost replies, paused holders) and check the history
    ///
    /// Processes use a few locks while their server is killed, paused and cut off. Every call is recorded,
    /// and a checker decides whether a legal history of a lease lock explains the records. If none does, it
    /// fails with the smallest unexplained span and the seed that repeats the faults.
    Chaos(chaos::Options),
    Bench(bench::Options),
    #[command(hide = true)]
    ChaosWorker(chaos::Assignment),
    #[command(hide = true)]
    ChaosHolder(chaos::Holding),
    /// Servers for development, in the background
    Services(services::Options),
    /// Lints of each published crate with no features, with each alone, and with all
    ///
    /// Needs OpenSSL's headers (libssl-dev), for the features of native TLS.
    Features,
    /// The part of continuous integration that needs only Rust: formatting, lints, documentation, tests
    Ci,
}

fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Test => test::run(),
        Task::Conformance(options) => conformance::run(&options),
        Task::Mutants(options) => mutants::run(&options),
        Task::Chaos(options) => chaos::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::ChaosWorker(assignment) => chaos::work(&assignment),
        Task::ChaosHolder(holding) => chaos::hold(&holding),
        Task::Services(options) => services::run(&options),
        Task::Features => features::run(),
        Task::Ci => ci::run(),
    };
    match done {
        Ok(Conclusion::Passed) => ExitCode::SUCCESS,
        Ok(Conclusion::Failed) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The result of a task that ran to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
enum Conclusion {
    Passed,
    Failed,
}

type Done = Result<Conclusion>;
