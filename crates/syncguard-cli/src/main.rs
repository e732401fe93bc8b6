//! `syncguard`: runs a command under a distributed lock, and looks at, extends and releases locks.
//!
//! `docs/command.md` is its manual. `syncguard-core` implements the locks. This crate has the command line,
//! the process that runs under the lock, and the output.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod args;
mod commands;
mod doctor;
mod duration;
mod exit;
mod hold;
mod list;
mod manual;
mod output;
mod run;
mod signals;
mod store;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};

use crate::args::{Cli, Command, OnStore};
use crate::exit::Failure;
use crate::output::Output;
use crate::store::Store;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = run::as_helper() {
        return code.into();
    }
    let parsed = manual::command().try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
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
        Command::Man { command } => print_manual(command.as_deref()).map(|()| 0),
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

/// Prints the parser's message, which may be the help, and returns the exit code.
fn refused(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        // If the message cannot be printed, the exit code says the same.
        let _ = error.print();
        return 0;
    }
    // What follows `--` is the command's.
    let own = || {
        std::env::args_os()
            .skip(1)
            .take_while(|argument| argument != "--")
    };
    let is_given = |word: &str| own().any(|argument| argument == word);
    let lacks_dashes = is_given("run") && own().count() + 1 == std::env::args_os().count();
    let hint = "the command follows `--`: syncguard run KEY -- COMMAND...";
    if is_given("--json") {
        let text = error.to_string();
        // The first paragraph; the usage and tips follow.
        let text = text.split("\n\n").next().unwrap_or_default();
        let mut message = match error.kind() {
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                "a command is missing; `syncguard --help` lists them".to_owned()
            }
            _ => {
                let words: Vec<_> = text.split_whitespace().skip(1).collect();
                words.join(" ")
            }
        };
        if lacks_dashes {
            message = format!("{message}; {hint}");
        }
        Output::of_messages(true).failure(&Failure::usage(message));
    } else {
        let _ = error.print();
        if lacks_dashes {
            let _ = output::hint(hint);
        }
    }
    exit::USAGE
}

fn print_manual(of: Option<&str>) -> Result<(), Failure> {
    let page = manual::page(of).ok_or_else(|| {
        let name = of.unwrap_or_default();
        Failure::usage(format!(
            "there is no command {name}: see `syncguard --help`"
        ))
    })?;
    let page = page.map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    output::print(&page)
}

fn execute(command: OnStore, store: &Store, output: Output) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // A second thread renews the lease while the main thread is busy.
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
    // Nobody needs the tasks that still run.
    runtime.shutdown_background();
    done
}
