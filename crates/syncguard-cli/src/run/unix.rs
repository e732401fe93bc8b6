//! The command as a Unix process.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{self, Command, ExitStatus};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use tokio::sync::oneshot;

use crate::exit::{self, Failure};
use crate::output::Output;
use crate::signals::ends;

/// The command while it runs.
///
/// With a terminal, the command stays in the process group of `syncguard`. Otherwise it could not read from
/// the terminal, which sends Ctrl-C to the whole group. Without a terminal it has its own group, so that
/// all its processes can be ended.
pub(super) struct Child {
    process: process::Child,
    pid: Pid,
    has_own_group: bool,
    ended: oneshot::Receiver<()>,
    #[cfg(target_os = "linux")]
    guard: Option<super::guard::Guard>,
}

impl Child {
    /// Starts a command. Call it on a thread that lives long enough: the system ends the command with that
    /// thread.
    pub(super) fn start(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, String)>,
        grace: Duration,
        output: Output,
    ) -> Result<Self, Failure> {
        let has_own_group = !has_terminal();
        let mut start = prepared(command, output)?;
        start.envs(environment);
        if has_own_group {
            start.process_group(0);
        }
        let process = start
            .spawn()
            .map_err(|error| not_started(command, &error))?;
        let pid = Pid::from_child(&process);
        let (sender, ended) = oneshot::channel();
        let waiting = move || {
            // The command stays a zombie, so no other process gets its number until it is reaped.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while waitid(WaitId::Pid(pid), options).is_err_and(|error| error == Errno::INTR) {}
            let _ = sender.send(());
        };
        let child = Self {
            process,
            pid,
            has_own_group,
            ended,
            #[cfg(target_os = "linux")]
            guard: super::guard::Guard::of(pid, has_own_group, grace),
        };
        #[cfg(not(target_os = "linux"))]
        let _ = grace;
        match thread::Builder::new().spawn(waiting) {
            Ok(_) => Ok(child),
            Err(error) => {
                child.kill();
                let message = format!("cannot wait for the command: {error}");
                Err(Failure::new(exit::INTERNAL, message))
            }
        }
    }

    /// Resolves once the command has ended.
    pub(super) async fn ended(&mut self) {
        let _ = (&mut self.ended).await;
    }

    /// Whether Ctrl-C in the terminal reaches the command by itself.
    pub(super) fn is_reached_by_the_terminal(&self) -> bool {
        !self.has_own_group
    }

    /// Passes a signal on. A signal that ends processes goes to the command's own group, if it has one.
    pub(super) fn pass_on(&self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        if ends(number) {
            self.send(signal);
        } else {
            // No process is left.
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Sends TERM, and CONT so that a stopped command gets it.
    pub(super) fn tell_to_end(&self) {
        self.send(Signal::TERM);
        self.send(Signal::CONT);
    }

    pub(super) fn kill(&self) {
        self.send(Signal::KILL);
    }

    /// The status of a command that has ended. With `kill_the_rest`, kills the rest of its own group first.
    pub(super) fn reap(&mut self, kill_the_rest: bool) -> Result<ExitStatus, Failure> {
        if kill_the_rest && self.has_own_group {
            self.kill();
        }
        #[cfg(target_os = "linux")]
        if let Some(guard) = &mut self.guard {
            guard.dismiss();
        }
        self.process.wait().map_err(|error| {
            let message = format!("the command's exit status is unknown: {error}");
            Failure::new(exit::INTERNAL, message)
        })
    }

    fn send(&self, signal: Signal) {
        // No process is left, or the number belongs to another user's process by now.
        let _ = match self.has_own_group {
            true => kill_process_group(self.pid, signal),
            false => kill_process(self.pid, signal),
        };
    }
}

/// The exit code of `syncguard` for the command's exit status.
pub(super) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(exit::INTERNAL),
        (None, Some(signal)) => exit::of_signal(signal),
        (None, None) => exit::INTERNAL,
    }
}

/// The signal that ended the command.
pub(super) fn signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// Why a command could not be started.
pub(super) fn not_started(command: &[OsString], error: &io::Error) -> Failure {
    let name = command.first().map(|name| name.to_string_lossy());
    let name = name.unwrap_or_default();
    match error.kind() {
        ErrorKind::NotFound => Failure::new(exit::NOT_FOUND, format!("{name}: command not found")),
        _ => Failure::new(
            exit::NOT_EXECUTABLE,
            format!("{name}: cannot be executed: {error}"),
        ),
    }
}

fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

#[cfg(target_os = "linux")]
fn prepared(command: &[OsString], output: Output) -> Result<Command, Failure> {
    Ok(super::shim::command(command, output))
}

#[cfg(not(target_os = "linux"))]
fn prepared(command: &[OsString], _output: Output) -> Result<Command, Failure> {
    let [program, arguments @ ..] = command else {
        return Err(Failure::usage("name a command"));
    };
    let mut start = Command::new(program);
    start.args(arguments);
    Ok(start)
}
