//! The operations that are measured on every store, by tasks that share one client.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use syncguard_core::{LockGuard, LockId, LockKey, Locks, Ttl};

use super::Settings;
use super::drive::{Sample, Stopwatch, Worker, drive_on};
use super::server_cpu::ServerCpu;

/// Long enough that nothing expires while it is measured.
pub(crate) const TTL: Duration = Duration::from_secs(3600);

/// How many keys a task uses in turn.
const KEYS: u64 = 100;

/// The operation that a task repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Acquires a free key (kind 0) and releases it (kind 1).
    Pair,
    /// Extends a lease that it holds.
    Extend,
    /// Looks its own lock up by the id.
    Lookup,
    /// Tries to acquire a key that someone else holds.
    Refusal,
}

pub(crate) const WORKLOADS: [Workload; 4] = [
    Workload::Pair,
    Workload::Extend,
    Workload::Lookup,
    Workload::Refusal,
];

impl Workload {
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

/// The key that all tasks want.
pub(crate) const WANTED: &str = "199999999999";

/// Measures one operation by this many tasks on one client.
pub(crate) async fn measure(
    locks: &Locks,
    workload: Workload,
    tasks: usize,
    span: Duration,
) -> Result<Sample> {
    measure_on(None, std::slice::from_ref(locks), workload, tasks, span).await
}

/// Pairs per second of this many tasks on either of two clients, which take turns: what slows the
/// machine slows both.
pub(crate) async fn pairs_side_by_side(
    [ours, other]: [&Locks; 2],
    tasks: usize,
    settings: &Settings,
) -> Result<Vec<(f64, f64)>> {
    let rate = async |locks| {
        let sample = measure(locks, Workload::Pair, tasks, settings.span).await?;
        anyhow::Ok(sample.steps_per_second)
    };
    let mut runs = Vec::new();
    for _ in 0..settings.repetitions {
        runs.push((rate(ours).await?, rate(other).await?));
    }
    Ok(runs)
}

/// Measures one operation by this many tasks, which share these clients, and the CPU of this server.
pub(crate) async fn measure_on(
    server: Option<ServerCpu>,
    clients: &[Locks],
    workload: Workload,
    tasks: usize,
    span: Duration,
) -> Result<Sample> {
    let ttl = Ttl::new(TTL)?;
    let wanted = LockKey::new(WANTED)?;
    let mut held = Vec::new();
    if workload == Workload::Refusal {
        let locks = clients.first().context("no client")?;
        held.push(take(locks, &wanted, ttl).await?);
    }
    let mut workers = Vec::new();
    for (task, locks) in (0..tasks).zip(clients.iter().cycle()) {
        let keys = (0..KEYS).map(|number| LockKey::new(&key_text(task, number)));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let mut id = None;
        if matches!(workload, Workload::Extend | Workload::Lookup) {
            let guard = take(locks, &keys[0], ttl).await?;
            id = Some(*guard.lock_id());
            held.push(guard);
        }
        workers.push(Task {
            locks: locks.clone(),
            workload,
            ttl,
            id,
            keys,
            wanted: wanted.clone(),
            next: 0,
        });
    }
    let sample = drive_on(server, workers, span).await;
    for guard in held {
        let _ = guard.release().await?;
    }
    sample
}

async fn take(locks: &Locks, key: &LockKey, ttl: Ttl) -> Result<LockGuard> {
    let taken = locks.try_lock(key).ttl(ttl).await?;
    taken.context("a key of the bench is held")
}

struct Task {
    locks: Locks,
    workload: Workload,
    ttl: Ttl,
    /// Of a lock that it holds, if its operation is about one.
    id: Option<LockId>,
    keys: Vec<LockKey>,
    wanted: LockKey,
    next: usize,
}

impl Worker for Task {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        let (locks, ttl) = (&self.locks, self.ttl);
        let id = || self.id.context("it holds no lock");
        match self.workload {
            Workload::Pair => {
                self.next = (self.next + 1) % self.keys.len();
                let acquire = locks.try_lock(&self.keys[self.next]).ttl(ttl);
                let guard = watch.time(0, acquire.into_future()).await?;
                let guard = guard.context("a free key was refused")?;
                let released = watch.time(1, guard.release()).await?;
                ensure!(released.is_released(), "a held lock was not released");
            }
            Workload::Extend => {
                let extended = watch.time(0, locks.extend(id()?, ttl)).await?;
                ensure!(extended.is_extended(), "a held lock was not extended");
            }
            Workload::Lookup => {
                let found = watch.time(0, locks.get_by_id(id()?)).await?;
                ensure!(found.is_some(), "a held lock was not found");
            }
            Workload::Refusal => {
                let acquire = locks.try_lock(&self.wanted).ttl(ttl);
                let guard = watch.time(0, acquire.into_future()).await?;
                ensure!(guard.is_none(), "a held key was granted");
            }
        }
        Ok(())
    }
}
