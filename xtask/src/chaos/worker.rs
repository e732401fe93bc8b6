//! Worker processes: this program again, under a task that is not shown.

use std::io::{self, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use syncguard_chaos::{Call, Mutant, Recorder, Work, read_calls};
use syncguard_core::{AnyBackend, LockKey};
use syncguard_telemetry::{TelemetryOptions, with_telemetry};

use super::fencing;
use super::store::{Store, chosen, names};
use crate::step::this_program;
use crate::{Done, Verdict};

/// Workers on one backend each, with as many clients.
const CLIENTS: u32 = 3;

const CONNECTS_WITHIN: Duration = Duration::from_secs(30);
const FLUSHES_WITHIN: Duration = Duration::from_secs(30);

/// What a worker process is told on its command line.
#[derive(clap::Args)]
pub(crate) struct Assignment {
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(names()))]
    store: String,
    /// Of the store, or a proxy before it.
    address: String,
    /// Its number, from 1.
    #[arg(long)]
    worker: u32,
    #[arg(long)]
    seed: u64,
    /// On the machine's monotonic clock.
    #[arg(long)]
    until_us: i64,
    #[arg(long, value_delimiter = ',')]
    keys: Vec<String>,
    #[arg(long)]
    mutant: Option<Mutant>,
    /// Where the registers of the fencing experiment are, if it is that.
    #[arg(long)]
    registers: Option<String>,
}

/// The work of one process. Its standard output is the record.
pub(crate) fn work(assignment: &Assignment) -> Done {
    // It may be paused when its parent is killed, and would never know.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let names = std::slice::from_ref(&assignment.store);
        let store = *chosen(names).first().context("no such store")?;
        let backend = connect(store, &assignment.address, assignment.mutant).await?;
        let keys = assignment.keys.iter().map(|key| LockKey::new(key));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        if let Some(registers) = &assignment.registers {
            let key = keys.first().context("no key to lock")?;
            fencing::contend(&backend, key, registers).await?;
        } else {
            let work = Work {
                worker: assignment.worker,
                clients: CLIENTS,
                seed: assignment.seed,
                keys,
                until_us: assignment.until_us,
            };
            observed(backend, work).await?;
        }
        Ok(Verdict::Passed)
    })
}

/// Works through the telemetry decorator, which must tell of every call once, whatever became of it.
async fn observed(backend: AnyBackend, work: Work) -> Result<()> {
    let told = Arc::<AtomicU64>::default();
    let telling = Arc::clone(&told);
    let options = TelemetryOptions::new().with_on_event(move |_| {
        telling.fetch_add(1, Ordering::Relaxed);
    });
    let backend = with_telemetry(backend, options);
    let recorder = Recorder::new(io::stdout());
    let calls = syncguard_chaos::work(backend.clone(), work, recorder).await?;
    ensure!(
        backend.flush(FLUSHES_WITHIN).await,
        "telemetry events are stuck"
    );
    let events = told.load(Ordering::Relaxed) + backend.dropped_events();
    ensure!(
        events == calls,
        "{events} telemetry events of {calls} calls"
    );
    Ok(())
}

/// Connects, although the faults may have begun.
pub(super) async fn connect(
    store: &Store,
    address: &str,
    mutant: Option<Mutant>,
) -> Result<AnyBackend> {
    let started = Instant::now();
    loop {
        match (store.connect)(address.to_owned(), mutant).await {
            Ok(backend) => return Ok(backend),
            Err(error) if started.elapsed() >= CONNECTS_WITHIN => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A worker process that is running.
pub(super) struct Process {
    child: Child,
    calls: Option<JoinHandle<io::Result<Vec<Call>>>>,
}

/// What to start it with, beside the store and its address.
pub(super) struct Start<'a> {
    pub(super) store: &'a Store,
    pub(super) address: &'a str,
    pub(super) worker: u32,
    pub(super) seed: u64,
    pub(super) until_us: i64,
    pub(super) keys: &'a [&'a str],
    pub(super) mutant: Option<Mutant>,
    pub(super) registers: Option<&'a str>,
}

impl Process {
    pub(super) fn start(start: &Start<'_>) -> Result<Self> {
        let mut command = this_program()?;
        command
            .args(["chaos-worker", start.store.name, start.address])
            .args(["--worker", &start.worker.to_string()])
            .args(["--seed", &start.seed.to_string()])
            .args(["--until-us", &start.until_us.to_string()])
            .args(["--keys", &start.keys.join(",")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(mutant) = start.mutant {
            command.args(["--mutant", mutant.name()]);
        }
        if let Some(registers) = start.registers {
            command.args(["--registers", registers]);
        }
        let mut child = command.spawn().context("cannot start a worker")?;
        let output = child.stdout.take().context("a worker without output")?;
        let calls = thread::spawn(move || read_calls(BufReader::new(output)));
        Ok(Self {
            child,
            calls: Some(calls),
        })
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until it has ended by itself, or ends it.
    pub(super) fn finish(mut self, deadline: Instant) -> Result<Finished> {
        let mut status = self.child.try_wait()?;
        while status.is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
            status = self.child.try_wait()?;
        }
        let failure = match status {
            Some(status) if status.success() => None,
            Some(status) => Some(format!("a worker failed ({status})")),
            None => Some("a worker did not come to an end".to_owned()),
        };
        self.end();
        let calls = self.calls.take().context("the record was read already")?;
        let read = calls
            .join()
            .map_err(|_| anyhow!("reading a record panicked"))?;
        let calls = read.context("the record of a worker cannot be read")?;
        Ok(Finished { calls, failure })
    }

    fn end(&mut self) {
        // Of one that has ended there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a worker process leaves.
pub(super) struct Finished {
    pub(super) calls: Vec<Call>,
    /// How it ended, if not as it should.
    pub(super) failure: Option<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
