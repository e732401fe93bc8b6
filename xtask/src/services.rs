//! `cargo xtask services`: servers that run in the background until they are stopped.
//!
//! `up` starts this program once more, in the background, to hold the servers. The holder locks the state
//! file. While it is locked, the process id in the file is that of the holder, and `down` ends that
//! process. The servers end with their holder.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use crate::backends::{chosen, names, obtain_all};
use crate::step::{this_program, workspace};
use crate::{Conclusion, Done};

const TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start servers, if they do not run, and print the variables that lead to them
    ///
    /// `eval "$(cargo xtask services up)"` exports them.
    Up(Stores),
    /// Stop the servers
    Down,
    /// Hold servers in the foreground, until interrupted
    Hold(Stores),
}

#[derive(clap::Args)]
struct Stores {
    /// Stores, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    backend: Vec<String>,
}

/// The content of the state file.
#[derive(Serialize, Deserialize)]
struct State {
    pid: i32,
    variables: BTreeMap<String, String>,
}

pub(crate) fn run(options: &Options) -> Done {
    match &options.command {
        Action::Up(stores) => up(stores)?,
        Action::Down => down()?,
        Action::Hold(stores) => hold(stores)?,
    }
    Ok(Conclusion::Passed)
}

fn up(stores: &Stores) -> Result<()> {
    let state = match running()? {
        Some(state) => {
            eprintln!("the servers run already");
            state
        }
        None => start(stores)?,
    };
    for (variable, address) in state.variables {
        println!("export {variable}={address}");
    }
    Ok(())
}

fn start(stores: &Stores) -> Result<State> {
    fs::create_dir_all(folder())?;
    let path = folder().join("log");
    let log = File::create(&path)?;
    let mut command = this_program()?;
    command.args(["services", "hold"]);
    if !stores.backend.is_empty() {
        command.args(["--backend", &stores.backend.join(",")]);
    }
    let mut holder = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Not the terminal's group: Ctrl-C there must not stop the servers.
        .process_group(0)
        .spawn()?;
    eprintln!("==> start servers");
    let started = Instant::now();
    loop {
        if let Some(state) = running()? {
            return Ok(state);
        }
        let log = || fs::read_to_string(&path).unwrap_or_default();
        if holder.try_wait()?.is_some() {
            bail!("the servers did not start:\n{}", log());
        }
        ensure!(
            started.elapsed() < TIMEOUT,
            "no servers within {TIMEOUT:?}:\n{}",
            log()
        );
        thread::sleep(POLL);
    }
}

fn down() -> Result<()> {
    let Some(state) = running()? else {
        eprintln!("no servers run");
        return Ok(());
    };
    let pid = Pid::from_raw(state.pid).context("the state file holds no process id")?;
    kill_process(pid, Signal::TERM)?;
    let started = Instant::now();
    while running()?.is_some() {
        ensure!(
            started.elapsed() < TIMEOUT,
            "the servers did not stop within {TIMEOUT:?}"
        );
        thread::sleep(POLL);
    }
    eprintln!("the servers are stopped");
    Ok(())
}

fn hold(stores: &Stores) -> Result<()> {
    fs::create_dir_all(folder())?;
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(state_file())?;
    file.try_lock()
        .context("servers run already, or are starting")?;
    file.set_len(0)?;

    let mut servers = Vec::new();
    let mut variables = BTreeMap::new();
    for (backend, running) in obtain_all(&chosen(&stores.backend)) {
        let running = running?;
        if let Some(service) = &backend.service {
            variables.insert(service.variable.to_owned(), running.address.clone());
        }
        servers.push(running);
    }
    let state = State {
        pid: i32::try_from(std::process::id())?,
        variables,
    };
    file.write_all(&serde_json::to_vec_pretty(&state)?)?;

    tokio::runtime::Runtime::new()?.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            _ = terminated.recv() => Ok(()),
            interrupted = tokio::signal::ctrl_c() => interrupted,
        }
    })?;
    drop(servers);
    file.set_len(0)?;
    Ok(())
}

/// The state of running servers. The file alone proves nothing; its lock does.
fn running() -> Result<Option<State>> {
    let mut file = match File::open(state_file()) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match file.try_lock_shared() {
        Ok(()) => return Ok(None),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    // Empty or in part while the servers are starting.
    Ok(serde_json::from_str(&text).ok())
}

fn folder() -> PathBuf {
    workspace().join(".services")
}

fn state_file() -> PathBuf {
    folder().join("state.json")
}
