//! The step between `syncguard` and the command on Linux: a second process of this program. It asks the
//! system for a signal when its parent ends, and then becomes the command.

use std::env::ArgsOs;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use super::child::not_started;
use crate::exit;
use crate::output::Output;

/// The first argument of the shim.
pub(super) const NAME: &str = "__become";

/// This program, even if its file was replaced.
pub(super) const SELF: &str = "/proc/self/exe";

/// The argument of a shim that prints its messages as JSON.
const JSON: &str = "json";

/// Starts a command that gets TERM when this process dies.
pub(super) fn command(command: &[OsString], output: Output) -> Command {
    let mut shim = Command::new(SELF);
    shim.arg0("syncguard")
        .arg(NAME)
        .arg(if output.is_json() { JSON } else { "text" })
        .arg(getpid().as_raw_nonzero().to_string())
        .args(command);
    shim
}

/// The shim's main function: becomes the command, or returns the exit code if that fails.
pub(super) fn shim(mut arguments: ArgsOs) -> u8 {
    let is_json = arguments.next().is_some_and(|form| form == JSON);
    let parent = arguments.next().unwrap_or_default();
    let command: Vec<OsString> = arguments.collect();
    let [program, rest @ ..] = &command[..] else {
        return exit::USAGE;
    };
    // Without this signal, the command gets no TERM. Everything else works.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    let is_alive =
        getppid().is_some_and(|pid| parent == OsString::from(pid.as_raw_nonzero().to_string()));
    if !is_alive {
        // The parent died before the signal was requested.
        return exit::LOST;
    }
    let error = Command::new(program).args(rest).exec();
    let failure = not_started(&command, &error);
    Output::of_messages(is_json).failure(&failure);
    failure.code
}
