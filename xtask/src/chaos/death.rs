//! Holders that die: one that gets SIGTERM and drains, and one that is killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use syncguard_core::Locks;

use tokio::signal::unix::{SignalKind, signal};

use super::store::{Store, named, names};
use super::worker::connect;
use crate::step::{announced, this_program};
use crate::{Conclusion, Done};

const KEY: &str = "chaos:death";
const TTL: Duration = Duration::from_secs(5);

/// A holder that drains is done in a round trip. The rest is room for a busy machine, and still
/// far from the TTL.
const DRAINED_WITHIN: Duration = Duration::from_secs(2);

/// The TTL, the tolerance, and room for a busy machine.
const EXPIRED_WITHIN: Duration = Duration::from_secs(8);

const HOLDS_WITHIN: Duration = Duration::from_secs(30);

/// The output of a holder once it holds the lock.
const HOLDING: &str = "holding";

/// The command-line arguments of a holder.
#[derive(clap::Args)]
pub(crate) struct Holding {
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(names()))]
    store: String,
    address: String,
}

/// The work of a holder: it holds the lock until SIGTERM.
pub(crate) fn hold(holding: &Holding) -> Done {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let store = named(&holding.store)?;
        let locks = connect(store, &holding.address, None).await?;
        let mut told = signal(SignalKind::terminate())?;
        let guard = locks
            .try_lock(KEY)
            .ttl(TTL)
            .await?
            .context("the key is held")?;
        println!("{HOLDING}");
        told.recv().await;
        drop(guard);
        locks.drain(TTL).await?;
        Ok(Conclusion::Passed)
    })
}

pub(super) fn run(store: &Store) -> Done {
    let (_server, address, runtime) = store.started()?;
    let locks = runtime.block_on(connect(store, &address, None))?;

    let what = format!("end holders on {}", store.name);
    let [drained, killed] = announced(&what, || {
        Ok([Signal::TERM, Signal::KILL]
            .map(|deadly| runtime.block_on(time_to_freedom(store, &address, &locks, deadly))))
    })?;
    let (drained, killed) = (drained?, killed?);
    // Other stores may be reported at the same time.
    let _lines = std::io::stdout().lock();
    println!(
        "{}: free {drained:.1?} after the holder was told to end, and {killed:.1?} after one with a \
         TTL of {TTL:?} was killed",
        store.name
    );
    if drained <= DRAINED_WITHIN && killed <= EXPIRED_WITHIN {
        return Ok(Conclusion::Passed);
    }
    println!("  FAILED: at most {DRAINED_WITHIN:?} and {EXPIRED_WITHIN:?} are allowed");
    Ok(Conclusion::Failed)
}

/// How long the key stays held after its holder got this signal.
async fn time_to_freedom(
    store: &Store,
    address: &str,
    locks: &Locks,
    deadly: Signal,
) -> Result<Duration> {
    let mut holder = Holder::start(store, address)?;
    if !locks.is_locked(KEY).await? {
        bail!("a holder that says it holds does not");
    }
    let struck = Instant::now();
    kill_process(holder.pid(), deadly)?;
    while locks.is_locked(KEY).await? {
        if struck.elapsed() > EXPIRED_WITHIN * 2 {
            bail!("the key stays held");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let free = struck.elapsed();
    holder.0.wait()?;
    Ok(free)
}

/// A process that holds the key.
struct Holder(Child);

impl Holder {
    /// Starts one, and waits until it holds.
    fn start(store: &Store, address: &str) -> Result<Self> {
        let started = Instant::now();
        while started.elapsed() < HOLDS_WITHIN {
            let mut command = this_program()?;
            command.args(["chaos-holder", store.name, address]);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            let mut holder = Self(command.spawn().context("cannot start a holder")?);
            let output = holder.0.stdout.take().context("a holder without output")?;
            if BufReader::new(output)
                .lines()
                .next()
                .transpose()?
                .as_deref()
                == Some(HOLDING)
            {
                return Ok(holder);
            }
        }
        bail!("no holder came to hold the key")
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // A process that has ended cannot be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
