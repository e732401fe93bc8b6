//! [`Process`]: a server as a child process that does not outlive its parent.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::install::on_path;

/// Time between two checks of a server that is starting or stopping.
const POLL: Duration = Duration::from_millis(10);
/// How long a signal may take to have its effect.
const SIGNALLED: Duration = Duration::from_secs(5);
/// How many lines of a server's log an error quotes when the server fails to start.
const LOG_TAIL_LINES: usize = 15;

/// A running server. Dropping it kills the server and its children.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command made by [`command`], its output appended to a file.
    pub(crate) fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C reaches the parent alone, which stops its servers.
            .process_group(0);
        let child =
            spawn_from_lasting_thread(command).with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_path_buf(),
        })
    }

    /// Waits until `answers` returns true. Fails if the server exits first, or after `timeout`.
    pub(crate) fn wait_until(
        &mut self,
        timeout: Duration,
        mut answers: impl FnMut() -> bool,
    ) -> Result<()> {
        let started = Instant::now();
        while !answers() {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "{} exited at once ({status}):\n{}",
                    self.name,
                    self.log_tail()
                );
            }
            ensure!(
                started.elapsed() < timeout,
                "{} did not answer within {timeout:?}:\n{}",
                self.name,
                self.log_tail()
            );
            thread::sleep(POLL);
        }
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal to the server alone.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }

    /// Stops the server and its children (`SIGSTOP`), so that they no longer answer.
    pub(crate) fn pause(&self) -> Result<()> {
        signal_all(&self.stopped()?, Signal::STOP);
        Ok(())
    }

    /// Stops the server alone, so that it starts no more children, and lists those that it has.
    fn stopped(&self) -> Result<Vec<Pid>> {
        self.signal(Signal::STOP)?;
        let pid = Pid::from_child(&self.child);
        wait_while(|| stat_field(pid, 0).is_some_and(|state| state != "T" && state != "Z"));
        Ok(descendants(self.pid()))
    }

    /// Continues the server and its children (`SIGCONT`).
    pub(crate) fn resume(&self) -> Result<()> {
        signal_all(&descendants(self.pid()), Signal::CONT);
        self.signal(Signal::CONT)
    }

    /// Sends the server its signal for a shutdown, and waits until it has exited.
    pub(crate) fn stop(&mut self, signal: Signal, timeout: Duration) -> Result<ExitStatus> {
        self.resume()?;
        self.signal(signal)?;
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if started.elapsed() >= timeout {
                self.kill();
                bail!(
                    "{} did not stop within {timeout:?} and was killed",
                    self.name
                );
            }
            thread::sleep(POLL);
        }
    }

    /// Kills the server and its children (`SIGKILL`) and waits until they have ended.
    pub(crate) fn kill(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // It has not ended, so a signal reaches it.
        let children = self.stopped().unwrap_or_default();
        let _ = self.child.kill();
        signal_all(&children, Signal::KILL);
        let _ = self.child.wait();
        // Another process inherits the orphans, so we cannot wait for them and poll instead.
        wait_while(|| children.iter().any(|pid| runs(*pid)));
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command whose process the system kills when its parent dies, optionally as another user.
///
/// `setpriv` sets up both and then becomes the server, in the same process. Where there is no
/// `setpriv` (outside Linux), the server stops only if its parent ends in an orderly way.
pub(crate) fn command(program: impl AsRef<OsStr>, user: Option<&str>) -> Result<Command> {
    let Some(setpriv) = on_path("setpriv") else {
        ensure!(
            user.is_none(),
            "running as another user needs setpriv: install the package util-linux"
        );
        return Ok(Command::new(program));
    };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL"]);
    if let Some(user) = user {
        command.args(["--reuid", user, "--regid", user, "--init-groups"]);
    }
    command.arg("--").arg(program);
    Ok(command)
}

/// Spawns from a thread that lives as long as the process: the system kills the child when the thread
/// that spawned it ends, and a test's thread ends with the test.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();

    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, reply) in queue {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let gone = || io::Error::other("the thread that spawns servers has ended");
    let (reply, answer) = mpsc::channel();
    spawner
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, reply))
        .map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// The children of a process, their children, and so on, where the system lists them (`/proc`).
fn descendants(pid: u32) -> Vec<Pid> {
    let parents: Vec<(Pid, Pid)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let parent = Pid::from_raw(stat_field(pid, 1)?.parse().ok()?)?;
            Some((pid, parent))
        })
        .collect();
    let mut family: Vec<Pid> = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .into_iter()
        .collect();
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(pid, _)| *pid),
        );
        next += 1;
    }
    family.into_iter().skip(1).collect()
}

/// Waits for the effect of a signal.
fn wait_while(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while condition() && started.elapsed() < SIGNALLED {
        thread::sleep(POLL);
    }
}

/// Whether a process runs: it exists and is no zombie.
fn runs(pid: Pid) -> bool {
    stat_field(pid, 0).is_some_and(|state| state != "Z" && state != "X")
}

/// One of the fields that follow a process's name: 0 is its state, 1 its parent.
fn stat_field(pid: Pid, index: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name is in parentheses and may contain anything.
    let fields = stat.rsplit_once(')')?.1;
    fields
        .split_whitespace()
        .nth(index)
        .map(ToString::to_string)
}

fn signal_all(pids: &[Pid], signal: Signal) {
    for pid in pids {
        // A process that has ended needs no signal.
        let _ = kill_process(*pid, signal);
    }
}
