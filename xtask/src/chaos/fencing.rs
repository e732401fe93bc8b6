//! The classic experiment: holders that are paused past their TTL, and write when they wake.
//!
//! They are correct: they hold the lock, read a number, wait, and write it increased by one. While one is
//! paused, its lease ends and others continue. When it wakes, it writes an old value. A register that
//! accepts the write loses the updates of the others; a register that has seen a higher fence refuses it.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, kill_process};
use syncguard_chaos::Rng;
use syncguard_core::{LockKey, Locks};

use super::Settings;
use super::store::Store;
use super::worker::{Process, Start};
use crate::step::announced;
use crate::{Conclusion, Done};

const TTL: Duration = Duration::from_secs(2);
const KEY: &str = "chaos:register";

/// How long a paused worker sleeps, in milliseconds: longer than the TTL and the tolerance.
const PAUSE_MS: std::ops::Range<u64> = 3_200..4_500;
/// How long it runs in between.
const RUN_MS: std::ops::Range<u64> = 200..3_000;

const WORKERS_END_WITHIN: Duration = Duration::from_secs(30);
const PROGRESS: Duration = Duration::from_secs(5);

/// Only by chance does a pause hit a holder between its read and its write. The experiment continues until
/// one does, up to this many times its planned duration.
const PATIENCE: u32 = 4;

/// The registers' answer once the experiment is over.
const OVER: &str = "over";

pub(super) fn run(store: &Store, settings: Settings) -> Done {
    let site = announced(&format!("start a server for {}", store.name), store.start)?;
    let address = site.address();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on((store.prepare)(address.clone()))?;
    let registers = Registers::serve()?;
    let what = format!(
        "pause holders on {}: {} s, {} processes, seed {}",
        store.name, settings.seconds, settings.workers, settings.seed
    );
    let pauses = announced(&what, || experiment(store, &address, &registers, settings))?;

    let [fenced, unfenced] = registers.read();
    println!(
        "{}: {pauses} pauses of {} processes; updates, of which lost:",
        store.name, settings.workers
    );
    for (name, register) in [("with fences", &fenced), ("without", &unfenced)] {
        println!(
            "  {name:<12} {:>5} updates, {:>4} lost, {:>4} refused as stale",
            register.updates,
            register.lost(),
            register.refused
        );
    }
    if fenced.lost() == 0 && unfenced.lost() > 0 && fenced.updates > 0 {
        return Ok(Conclusion::Passed);
    }
    println!(
        "  FAILED: {}",
        if fenced.lost() > 0 {
            "a fence let a stale write through"
        } else {
            "nothing was lost without fences either: nothing is shown; run it longer"
        }
    );
    Ok(Conclusion::Failed)
}

/// Runs the workers and pauses them at random. Gives the number of pauses.
fn experiment(
    store: &Store,
    address: &str,
    registers: &Registers,
    settings: Settings,
) -> Result<u64> {
    let workers = (1..=settings.workers)
        .map(|worker| {
            Process::start(&Start {
                store,
                address,
                worker,
                seed: settings.seed,
                until_us: i64::MAX,
                keys: &[KEY],
                mutant: settings.mutant,
                registers: Some(&registers.address),
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let time = Duration::from_secs(settings.seconds);
    let pauses = pause_at_random(&workers, registers, settings.seed, time)?;
    registers.over.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + WORKERS_END_WITHIN;
    for worker in workers {
        if let Some(failure) = worker.finish(deadline)?.failure {
            bail!(failure);
        }
    }
    Ok(pauses)
}

fn pause_at_random(
    workers: &[Process],
    registers: &Registers,
    seed: u64,
    time: Duration,
) -> Result<u64> {
    let started = Instant::now();
    let mut rng = Rng::new(seed);
    let mut told = started;
    let mut pauses = 0;
    // For each worker: whether it is paused, and notifications of changes.
    let mut states: Vec<_> = workers
        .iter()
        .map(|_| (false, started + Duration::from_millis(rng.within(RUN_MS))))
        .collect();
    let shown = || registers.read()[1].lost() > 0;
    while started.elapsed() < time || (!shown() && started.elapsed() < time * PATIENCE) {
        for (worker, (paused, changes)) in workers.iter().zip(&mut states) {
            if Instant::now() < *changes {
                continue;
            }
            signal(worker, if *paused { Signal::CONT } else { Signal::STOP })?;
            pauses += u64::from(!*paused);
            *paused = !*paused;
            let next = rng.within(if *paused { PAUSE_MS } else { RUN_MS });
            *changes = Instant::now() + Duration::from_millis(next);
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            let [fenced, unfenced] = registers.read();
            eprintln!(
                "    {:.0?}: {pauses} pauses, {} and {} updates lost",
                started.elapsed(),
                fenced.lost(),
                unfenced.lost()
            );
        }
        thread::sleep(Duration::from_millis(10));
    }
    for (worker, (paused, _)) in workers.iter().zip(&states) {
        if *paused {
            signal(worker, Signal::CONT)?;
        }
    }
    Ok(pauses)
}

fn signal(worker: &Process, signal: Signal) -> Result<()> {
    kill_process(worker.pid(), signal).context("a worker ended before its time")
}

/// A worker: repeatedly adds one to each number, under the lock.
pub(super) async fn contend(locks: &Locks, key: &LockKey, registers: &str) -> Result<()> {
    let mut registers = Client::connect(registers)?;
    loop {
        // An acquire during which it was paused may fail.
        let Ok(Some(guard)) = locks.try_lock(key).ttl(TTL).await else {
            if registers.ask("wait", 0, [0, 0])?.is_none() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let fence = guard.fence().get();
        let Some([fenced, unfenced]) = registers.ask("read", fence, [0, 0])? else {
            return Ok(());
        };
        // It waits. A check whether its lease is still valid would not help: it could be paused after the
        // check.
        tokio::time::sleep(Duration::from_millis(100)).await;
        registers.ask("write", fence, [fenced + 1, unfenced + 1])?;
        // Whether the lock was still there to be released is the question, not the answer.
        let _ = guard.release().await;
    }
}

/// A number that others read and write.
#[derive(Debug, Clone, Copy, Default)]
struct Register {
    checks_fences: bool,
    value: u64,
    /// The writes that it accepted. Each one adds one.
    updates: u64,
    refused: u64,
    highest_fence: u64,
}

impl Register {
    fn lost(&self) -> u64 {
        self.updates.saturating_sub(self.value)
    }

    /// A holder with a lower fence than the greatest seen is late, for reads as well as for writes: what a
    /// holder has read must not change under it.
    fn admits(&mut self, fence: u64) -> bool {
        if self.checks_fences && fence < self.highest_fence {
            self.refused += 1;
            return false;
        }
        self.highest_fence = self.highest_fence.max(fence);
        true
    }

    fn read(&mut self, fence: u64) -> u64 {
        self.admits(fence);
        self.value
    }

    fn write(&mut self, fence: u64, value: u64) {
        if self.admits(fence) {
            self.value = value;
            self.updates += 1;
        }
    }
}

/// The two registers, at an address of their own.
struct Registers {
    address: String,
    state: Arc<Mutex<[Register; 2]>>,
    over: Arc<AtomicBool>,
}

impl Registers {
    fn serve() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?.to_string();
        let fenced = Register {
            checks_fences: true,
            ..Register::default()
        };
        let state = Arc::new(Mutex::new([fenced, Register::default()]));
        let over = Arc::new(AtomicBool::new(false));
        let shared = (Arc::clone(&state), Arc::clone(&over));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (state, over) = shared.clone();
                // A client that leaves does no harm.
                thread::spawn(move || drop(attend(client, &state, &over)));
            }
        });
        Ok(Self {
            address,
            state,
            over,
        })
    }

    fn read(&self) -> [Register; 2] {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers requests: `read FENCE _ _` or `write FENCE VALUE VALUE`, each for both registers, and
/// `wait _ _ _`. A write that was under way when the experiment ended still counts.
fn attend(client: TcpStream, state: &Mutex<[Register; 2]>, over: &AtomicBool) -> Result<()> {
    let mut replies = client.try_clone()?;
    for line in BufReader::new(client).lines() {
        let line = line?;
        let (operation, numbers) = line.split_once(' ').context("an empty request")?;
        let [fence, fenced, unfenced] = parse(numbers)?;
        let values = {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            match operation {
                "read" => state.each_mut().map(|register| register.read(fence)),
                "write" => {
                    let [first, second] = state.each_mut();
                    first.write(fence, fenced);
                    second.write(fence, unfenced);
                    [0, 0]
                }
                "wait" => [0, 0],
                _ => bail!("neither read, write nor wait"),
            }
        };
        if operation != "write" && over.load(Ordering::Relaxed) {
            replies.write_all(format!("{OVER}\n").as_bytes())?;
            continue;
        }
        replies.write_all(format!("{} {}\n", values[0], values[1]).as_bytes())?;
    }
    Ok(())
}

fn parse<const N: usize>(line: &str) -> Result<[u64; N]> {
    let numbers = line.split_whitespace().map(str::parse);
    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>()?;
    numbers
        .try_into()
        .ok()
        .context("too few or too many numbers")
}

/// A worker's connection to the registers.
struct Client {
    requests: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Client {
    fn connect(address: &str) -> Result<Self> {
        let requests = TcpStream::connect(address)?;
        requests.set_nodelay(true)?;
        let replies = BufReader::new(requests.try_clone()?);
        Ok(Self { requests, replies })
    }

    /// The answer, or none if the experiment is over.
    fn ask(&mut self, operation: &str, fence: u64, values: [u64; 2]) -> Result<Option<[u64; 2]>> {
        let [first, second] = values;
        let request = format!("{operation} {fence} {first} {second}\n");
        self.requests.write_all(request.as_bytes())?;
        let mut reply = String::new();
        self.replies.read_line(&mut reply)?;
        if reply.trim_end() == OVER {
            return Ok(None);
        }
        parse(&reply).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A holder reads, the next one reads and writes, and the first wakes and writes.
    fn overtaken(checks_fences: bool) -> Register {
        let mut register = Register {
            checks_fences,
            ..Register::default()
        };
        let stale = register.read(1);
        let current = register.read(2);
        register.write(2, current + 1);
        register.write(1, stale + 1);
        register
    }

    #[test]
    fn a_late_write_is_lost_on_the_register_that_takes_it() {
        let register = overtaken(false);
        assert_eq!(
            (register.updates, register.value, register.lost()),
            (2, 1, 1)
        );
    }

    #[test]
    fn a_late_write_is_refused_by_the_register_that_checks() {
        let register = overtaken(true);
        assert_eq!(
            (register.updates, register.refused, register.lost()),
            (1, 1, 0)
        );
    }

    #[test]
    fn a_write_between_a_later_read_and_its_write_is_refused_too() {
        let mut register = Register {
            checks_fences: true,
            ..Register::default()
        };
        let stale = register.read(1);
        let current = register.read(2);
        register.write(1, stale + 1);
        register.write(2, current + 1);
        assert_eq!(
            (register.updates, register.refused, register.lost()),
            (1, 1, 0)
        );
    }
}
