//! The command on systems without signals: it can only be killed.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::{self, Command, ExitStatus};
use std::time::Duration;

use tokio::time::sleep;

use crate::exit::{self, Failure};
use crate::output::Output;

/// How often to check whether the command has ended.
const POLL: Duration = Duration::from_millis(20);

/// The command while it runs.
pub(super) struct Child(process::Child);

impl Child {
    pub(super) fn start(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, String)>,
        _grace: Duration,
        _output: Output,
    ) -> Result<Self, Failure> {
        let [program, arguments @ ..] = command else {
            return Err(Failure::usage("name a command"));
        };
        let started = Command::new(program)
            .args(arguments)
            .envs(environment)
            .spawn();
        started.map(Self).map_err(|error| {
            let code = match error.kind() {
                ErrorKind::NotFound => exit::NOT_FOUND,
                _ => exit::NOT_EXECUTABLE,
            };
            Failure::new(code, format!("the command cannot be started: {error}"))
        })
    }

    pub(super) async fn ended(&mut self) {
        while matches!(self.0.try_wait(), Ok(None)) {
            sleep(POLL).await;
        }
    }

    /// The console sends Ctrl-C to all of its processes.
    pub(super) fn is_reached_by_the_terminal(&self) -> bool {
        true
    }

    pub(super) fn pass_on(&self, _number: i32) {}

    pub(super) fn tell_to_end(&self) {}

    pub(super) fn kill(&mut self) {
        // The command has ended already.
        let _ = self.0.kill();
    }

    pub(super) fn reap(&mut self, _kill_the_rest: bool) -> Result<ExitStatus, Failure> {
        self.0.wait().map_err(|error| {
            let message = format!("the command's exit status is unknown: {error}");
            Failure::new(exit::INTERNAL, message)
        })
    }
}

/// The signal that ended the command: here there are none.
pub(super) fn signal(_status: ExitStatus) -> Option<i32> {
    None
}

/// The exit code of `syncguard` for the command's exit status.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(exit::NO)
}
