//! Worker processes: this program again, with a hidden task.

use std::io::{self, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use syncguard_chaos::{Call, Mutant, Recorder, Work, read_calls};
use syncguard_core::{LockError, LockKey, Locks};
use syncguard_telemetry::{Telemetry, TelemetryOptions};

use super::fencing;
use super::store::{Job, Store, named, names};
use crate::step::this_program;
use crate::{Conclusion, Done};

/// Workers on one backend each, with as many clients.
const CLIENTS: u32 = 3;

const CONNECTS_WITHIN: Duration = Duration::from_secs(30);
const FLUSHES_WITHIN: Duration = Duration::from_secs(30);

/// The command-line arguments of a worker process.
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
    /// The address of the registers, in the fencing experiment.
    #[arg(long)]
    registers: Option<String>,
}

/// The work of one process. Its standard output is the record.
pub(crate) fn work(assignment: &Assignment) -> Done {
    // If it is paused when its parent is killed, it would never notice.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let store = named(&assignment.store)?;
        let keys = assignment.keys.iter().map(|key| LockKey::new(key));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        if let Some(registers) = &assignment.registers {
            let key = keys.first().context("no key to lock")?;
            let locks = connect(store, &assignment.address, assignment.mutant).await?;
            fencing::contend(&locks, key, registers).await?;
        } else {
            let work = Work {
                worker: assignment.worker,
                clients: CLIENTS,
                seed: assignment.seed,
                keys,
                until_us: assignment.until_us,
            };
            observed(store, assignment, work).await?;
        }
        Ok(Conclusion::Passed)
    })
}

/// Works with telemetry on, which must emit one event for each operation, with any outcome.
async fn observed(store: &Store, assignment: &Assignment, work: Work) -> Result<()> {
    let emitted = Arc::<AtomicU64>::default();
    let counting = Arc::clone(&emitted);
    let options = TelemetryOptions::new().on_event(move |_| {
        counting.fetch_add(1, Ordering::Relaxed);
    });
    let telemetry = Telemetry::new(options);
    let job = Job {
        work,
        recorder: Recorder::new(io::stdout()),
        telemetry: telemetry.clone(),
        mutant: assignment.mutant,
    };
    let operations = (store.work)(assignment.address.clone(), job).await?;
    ensure!(
        telemetry.flush(FLUSHES_WITHIN).await,
        "telemetry events are stuck"
    );
    let events = emitted.load(Ordering::Relaxed) + telemetry.dropped_events();
    ensure!(
        events == operations,
        "{events} telemetry events of {operations} operations"
    );
    Ok(())
}

/// Connects to a store, although faults may have started.
pub(super) async fn connect(store: &Store, address: &str, mutant: Option<Mutant>) -> Result<Locks> {
    insistently(|| (store.connect)(address.to_owned(), mutant)).await
}

/// Connects, with retries.
pub(super) async fn insistently<T, O>(connect: impl Fn() -> O) -> Result<T>
where
    O: Future<Output = Result<T, LockError>>,
{
    let started = Instant::now();
    loop {
        match connect().await {
            Ok(connected) => return Ok(connected),
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

/// The arguments of a worker, besides the store and its address.
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

    /// Kills it. Returns the calls that it has recorded.
    pub(super) fn kill(mut self) -> Result<Vec<Call>> {
        self.end();
        self.read()
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
        let calls = self.read()?;
        Ok(Finished { calls, failure })
    }

    fn read(&mut self) -> Result<Vec<Call>> {
        let calls = self.calls.take().context("the record was read already")?;
        let read = calls
            .join()
            .map_err(|_| anyhow!("reading a record panicked"))?;
        read.context("the record of a worker cannot be read")
    }

    fn end(&mut self) {
        // A process that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The results of a worker process.
pub(super) struct Finished {
    pub(super) calls: Vec<Call>,
    /// How it ended, if it failed.
    pub(super) failure: Option<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
