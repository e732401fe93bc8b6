//! `syncguard`: runs a command under a distributed lock, and looks at, extends and releases locks.
//!
//! `docs/command.md` is its manual. Everything that a lock is comes from `syncguard-core`; here are the
//! command line, the process that runs under the lock, and what is printed.

mod args;
mod commands;
mod doctor;
mod duration;
mod exit;
mod hold;
mod list;
mod output;
mod run;
mod signals;
mod store;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::args::{Cli, Command, OnStore};
use crate::exit::Failure;
use crate::output::Output;
use crate::store::Store;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = run::as_helper() {
        return code.into();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refused(&error).into(),
    };
    let output = Output::new(cli.output);
    let done = match cli.command {
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "syncguard", &mut script);
            output::print(&script).map(|()| 0)
        }
        Command::Man { command } => manual(command.as_deref()).map(|()| 0),
        Command::OnStore(command) => match Store::named(&cli.store) {
            Ok(store) => {
                execute(command, &store, output).map_err(|failure| failure.of_store(&store))
            }
            Err(failure) => Err(failure),
        },
    };
    let code = done.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    });
    code.into()
}

/// Prints what the parser says, which may be the help, and returns the exit code.
fn refused(error: &clap::Error) -> u8 {
    // If it cannot be printed, the exit code says the same.
    let _ = error.print();
    if !error.use_stderr() {
        return 0;
    }
    let is_given = |word: &str| std::env::args_os().any(|argument| argument == word);
    if is_given("run") && !is_given("--") {
        let _ = output::hint("the command follows `--`: syncguard run KEY -- COMMAND...");
    }
    exit::USAGE
}

fn manual(of: Option<&str>) -> Result<(), Failure> {
    let mut cli = Cli::command();
    // Names the commands in full, and gives them the global options.
    cli.build();
    let command = match of {
        None => &cli,
        Some(name) => cli.find_subcommand(name).ok_or_else(|| {
            Failure::usage(format!(
                "there is no command {name}: see `syncguard --help`"
            ))
        })?,
    };
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command.clone()).render(&mut page);
    rendered.map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    output::print(&page)
}

fn execute(command: OnStore, store: &Store, output: Output) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // It renews the lease while the main thread is busy.
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(exit::INTERNAL, format!("cannot start: {error}")))?;
    let done = runtime.block_on(async {
        match command {
            OnStore::Run(args) => run::run(&args, store, output).await,
            OnStore::Status(args) => commands::status(&args, store, output).await,
            OnStore::List(args) => list::list(&args, store, output).await,
            OnStore::Acquire(args) => commands::acquire(&args.hold, store, output).await,
            OnStore::Extend(args) => commands::extend(&args, store, output).await,
            OnStore::Release(args) => commands::release(&args, store, output).await,
            OnStore::Purge => commands::purge(store, output).await,
            OnStore::Doctor => doctor::doctor(store, output).await,
        }
    });
    // What still runs is of no use to anybody.
    runtime.shutdown_background();
    done
}
