//! What is measured of every store: the operations, by tasks that share one backend.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use syncguard_core::{ExtendResult, LockId, LockKey, Lookup, ManagedBackend, Ttl};

use super::Settings;
use super::drive::{Sample, Stopwatch, Worker, drive};

/// Long enough that nothing expires while it is measured.
pub(crate) const TTL: Duration = Duration::from_secs(3600);

/// How many keys a task uses in turn.
const KEYS: u64 = 100;

/// What a task does over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Takes a free key (kind 0) and gives it back (kind 1).
    Pair,
    /// Extends a lease that it holds.
    Extend,
    /// Looks its own lock up by the id.
    Lookup,
    /// Asks for a key that someone else holds.
    Refusal,
}

pub(crate) const OPERATIONS: [Operation; 4] = [
    Operation::Pair,
    Operation::Extend,
    Operation::Lookup,
    Operation::Refusal,
];

impl Operation {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pair => "acquire and release",
            Self::Extend => "extend",
            Self::Lookup => "lookup by id",
            Self::Refusal => "refusal",
        }
    }
}

/// The text of a key: 12 digits, as the stores' own benchmarks can make them too.
pub(crate) fn key_text(task: usize, number: u64) -> String {
    let task = u64::try_from(task).unwrap_or_default();
    (100_000_000_000 + task * 1_000_000 + number % KEYS).to_string()
}

/// The key that everybody wants.
pub(crate) const WANTED: &str = "199999999999";

/// Measures one operation by this many tasks on one client.
pub(crate) async fn measure<B: ManagedBackend>(
    backend: &B,
    operation: Operation,
    tasks: usize,
    span: Duration,
) -> Result<Sample> {
    measure_on(std::slice::from_ref(backend), operation, tasks, span).await
}

/// Pairs per second of 16 tasks on either of two backends, which take turns: what slows the machine
/// slows both.
pub(crate) async fn pairs_side_by_side<B: ManagedBackend>(
    sides: &[B],
    settings: &Settings,
) -> Result<[f64; 2]> {
    let mut samples = [Vec::new(), Vec::new()];
    for _ in 0..settings.repetitions {
        for (backend, samples) in sides.iter().zip(&mut samples) {
            samples.push(measure(backend, Operation::Pair, 16, settings.span).await?);
        }
    }
    Ok(samples.map(|samples| Sample::median(&samples).steps_per_second))
}

/// Measures one operation by this many tasks, which share these clients.
pub(crate) async fn measure_on<B: ManagedBackend>(
    clients: &[B],
    operation: Operation,
    tasks: usize,
    span: Duration,
) -> Result<Sample> {
    let backend = clients.first().context("no client")?;
    let ttl = Ttl::new(TTL)?;
    let holder = LockId::generate()?;
    if operation == Operation::Refusal {
        take(backend, WANTED, &holder, ttl).await?;
    }
    let (mut workers, mut held) = (Vec::new(), vec![holder]);
    for (task, backend) in (0..tasks).zip(clients.iter().cycle()) {
        let id = LockId::generate()?;
        if matches!(operation, Operation::Extend | Operation::Lookup) {
            take(backend, &key_text(task, 0), &id, ttl).await?;
            held.push(id);
        }
        workers.push(Task {
            backend: backend.clone(),
            operation,
            ttl,
            id,
            keys: (0..KEYS)
                .map(|number| LockKey::new(&key_text(task, number)))
                .collect::<Result<_, _>>()?,
            wanted: LockKey::new(WANTED)?,
            next: 0,
        });
    }
    let sample = drive(workers, span).await;
    for id in held {
        let _ = backend.release(&id).await?;
    }
    sample
}

async fn take<B: ManagedBackend>(backend: &B, key: &str, id: &LockId, ttl: Ttl) -> Result<()> {
    let taken = backend.acquire(&LockKey::new(key)?, id, ttl).await?;
    ensure!(!taken.is_locked(), "a key of the bench is held");
    Ok(())
}

struct Task<B> {
    backend: B,
    operation: Operation,
    ttl: Ttl,
    id: LockId,
    keys: Vec<LockKey>,
    wanted: LockKey,
    next: usize,
}

impl<B: ManagedBackend> Worker for Task<B> {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        let (backend, ttl) = (&self.backend, self.ttl);
        match self.operation {
            Operation::Pair => {
                self.next = (self.next + 1) % self.keys.len();
                let (key, id) = (&self.keys[self.next], LockId::generate()?);
                let taken = watch.time(0, backend.acquire(key, &id, ttl)).await?;
                ensure!(!taken.is_locked(), "a free key was refused");
                let released = watch.time(1, backend.release(&id)).await?;
                ensure!(released.is_released(), "a held lock was not released");
            }
            Operation::Extend => {
                let extended = watch.time(0, backend.extend(&self.id, ttl)).await?;
                let ExtendResult::Extended { .. } = extended else {
                    bail!("a held lock was not extended");
                };
            }
            Operation::Lookup => {
                let found = watch.time(0, backend.lookup(Lookup::Id(&self.id))).await?;
                ensure!(found.is_some(), "a held lock was not found");
            }
            Operation::Refusal => {
                let id = LockId::generate()?;
                let taken = watch
                    .time(0, backend.acquire(&self.wanted, &id, ttl))
                    .await?;
                ensure!(taken.is_locked(), "a held key was granted");
            }
        }
        Ok(())
    }
}
