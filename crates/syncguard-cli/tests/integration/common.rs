//! A store, and `syncguard` on it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use syncguard_testkit::RedisServer;
use tempfile::TempDir;

/// How long anything may take that will happen.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A store of its own, and a folder for what commands write.
pub(crate) struct Stage {
    pub(crate) store: String,
    pub(crate) folder: TempDir,
    pub(crate) server: Option<RedisServer>,
}

impl Stage {
    pub(crate) fn sqlite() -> Self {
        let folder = TempDir::new().unwrap();
        Self {
            store: format!("sqlite:{}", folder.path().join("locks.db").display()),
            folder,
            server: None,
        }
    }

    pub(crate) fn redis() -> Self {
        let server = RedisServer::start().unwrap();
        Self {
            store: server.url(),
            folder: TempDir::new().unwrap(),
            server: Some(server),
        }
    }

    pub(crate) fn each() -> [Self; 2] {
        [Self::sqlite(), Self::redis()]
    }

    /// `syncguard` on this store, in the folder, and without a terminal, wherever the tests run.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("setsid");
        command
            .arg(env!("CARGO_BIN_EXE_syncguard"))
            .args(arguments)
            .env("SYNCGUARD_STORE", &self.store)
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs `syncguard` to its end.
    pub(crate) fn syncguard(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The exit code of `syncguard`, and all that it prints.
    pub(crate) fn outcome(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.syncguard(arguments);
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        (
            output.status.code().expect("it was killed"),
            String::from_utf8(text).unwrap(),
        )
    }

    /// Starts `syncguard`. Nobody reads what it prints.
    pub(crate) fn start(&self, arguments: &[&str]) -> Started {
        let mut command = self.command(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Started(command.spawn().unwrap())
    }

    /// Starts `syncguard` with `--json`. Read its [`events`](Started::events).
    pub(crate) fn start_json(&self, arguments: &[&str]) -> Started {
        let mut command = self.command(&[&["--json"][..], arguments].concat());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        Started(command.spawn().unwrap())
    }

    /// Starts a shell's script under a lock on a key.
    pub(crate) fn start_script(&self, key: &str, options: &[&str], script: &str) -> Started {
        let arguments = [&["run", key][..], options, &["--", "sh", "-c", script]].concat();
        self.start(&arguments)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The lines that commands have written to a file.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// The same without repetitions: Linux sends the signal of a parent's death once for each thread of
    /// `syncguard` that it takes for the parent.
    pub(crate) fn distinct_lines(&self, name: &str) -> Vec<String> {
        let mut lines = self.lines(name);
        lines.dedup();
        lines
    }

    pub(crate) fn count(&self, name: &str, line: &str) -> usize {
        let lines = self.lines(name);
        lines.iter().filter(|it| *it == line).count()
    }

    /// Waits until a command has written a line.
    pub(crate) fn wait_for(&self, name: &str, line: &str) {
        eventually(&format!("{line} in {name}"), || self.count(name, line) > 0);
    }

    pub(crate) fn touch(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    /// Whether a key is free.
    pub(crate) fn is_free(&self, key: &str) -> bool {
        let (code, text) = self.outcome(&["status", key]);
        assert!(code < 2, "{text}");
        code == 1
    }
}

/// A process that is killed if the test ends before it does.
pub(crate) struct Started(pub(crate) Child);

impl Started {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Its events, as they come.
    pub(crate) fn events(&mut self) -> impl Iterator<Item = serde_json::Value> + use<> {
        let lines = BufReader::new(self.0.stderr.take().unwrap()).lines();
        lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap())
    }

    /// Its status, once it has ended.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the end of the process", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Its exit code.
    pub(crate) fn code(&mut self) -> i32 {
        self.end().code().expect("it was killed")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < LONG, "waited for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process runs, by the number in a file.
pub(crate) fn runs(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
}

pub(crate) fn kill(pid: &str) {
    let pid = pid.parse().ok().and_then(Pid::from_raw).expect(pid);
    let _ = kill_process(pid, Signal::KILL);
}
