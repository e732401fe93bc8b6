//! [`CommandServer`]: any server that a command starts.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::Server;
use crate::process::{Process, command};
use crate::slot::Slot;

/// Any server that a command starts, for stores that this crate does not know.
///
/// It gets a loopback port and a folder of its own. On drop, it and all of its child processes are
/// killed.
///
/// ```no_run
/// use std::net::TcpStream;
/// use std::time::Duration;
///
/// use syncguard_testkit::{CommandServer, Server};
///
/// # fn main() -> anyhow::Result<()> {
/// let server = CommandServer::start(
///     "etcd",
///     |port, folder| {
///         vec![
///             format!("--listen-client-urls=http://127.0.0.1:{port}").into(),
///             format!("--advertise-client-urls=http://127.0.0.1:{port}").into(),
///             format!("--data-dir={}", folder.display()).into(),
///         ]
///     },
///     |port| TcpStream::connect(("127.0.0.1", port)).is_ok(),
///     Duration::from_secs(20),
/// )?;
/// server.pause()?;
/// # Ok(()) }
/// ```
pub struct CommandServer {
    process: Process,
    slot: Slot,
    launch: Launch,
}

type Launch = Box<dyn Fn(&Slot) -> Result<Process> + Send + Sync>;

impl CommandServer {
    /// Starts a program from the `PATH` and waits until it answers. Blocks.
    ///
    /// `arguments` makes the arguments from the port and the folder; `answers` says whether the
    /// server answers at the port. The program must stay in the foreground and keep its data, if any,
    /// in the folder.
    ///
    /// # Errors
    /// If the program cannot be started, exits, or does not answer within `timeout`. The error has
    /// the end of its output.
    pub fn start(
        program: &str,
        arguments: impl Fn(u16, &Path) -> Vec<OsString> + Send + Sync + 'static,
        answers: impl Fn(u16) -> bool + Send + Sync + 'static,
        timeout: Duration,
    ) -> Result<Self> {
        let program = program.to_owned();
        let launch = move |slot: &Slot| {
            let mut command = command(&program, None)?;
            command.args(arguments(slot.port(), slot.folder()));
            let log = slot.folder().join("server.log");
            let mut process = Process::spawn(&program, command, &log)?;
            process.wait_until(timeout, || answers(slot.port()))?;
            Ok(process)
        };
        let slot = Slot::claim()?;
        Ok(Self {
            process: launch(&slot)?,
            slot,
            launch: Box::new(launch),
        })
    }
}

impl Server for CommandServer {
    fn port(&self) -> u16 {
        self.slot.port()
    }

    fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    fn kill(&mut self) {
        self.process.kill();
    }

    fn restart(&mut self) -> Result<()> {
        self.process.kill();
        self.process = (self.launch)(&self.slot)?;
        Ok(())
    }
}

impl fmt::Debug for CommandServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandServer")
            .field("process", &self.process)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}
