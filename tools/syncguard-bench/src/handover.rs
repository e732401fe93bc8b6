//! The hand-over of one key that all tasks want: how fast, and how fair.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use syncguard_core::{ErrorCode, Locks};
use tokio::task::JoinSet;

use crate::comparison::{Comparison, Target};
use crate::drive::Latency;
use crate::figure::Figure;
use crate::report::{Handover, StoreReport};
use crate::{Settings, tell};

mod processes;

pub(crate) use processes::contend_as_told;
use processes::in_processes;

const TASKS: u16 = 16;
const SECTION: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(30);
const KEY: &str = "handover";

/// How many processes share the tasks.
const PROCESSES: u16 = 4;

const ONE_PROCESS: &str = "one process";

/// The contenders for the key: four processes or four handles.
pub(crate) enum Contenders<'a> {
    /// This program, once more for each: it connects to the store at this address.
    Processes {
        store: &'static str,
        address: &'a str,
    },
    /// A handle of its own for each, on a store that is in this process.
    Handles(&'a [Locks]),
}

/// The targets of a store, in one process and in four.
pub(crate) struct Targets {
    pub(crate) one: Bounds,
    pub(crate) all: Bounds,
    /// From a release by one client to the grant to another, in round trips. `None` where there are none.
    pub(crate) round_trips: Option<f64>,
}

pub(crate) struct Bounds {
    /// Sections, relative to those of one task alone.
    pub(crate) sections: f64,
    /// The 99th percentile of a wait, in fair shares.
    pub(crate) wait: f64,
    /// Jain's index: over tasks in one process, else over processes.
    pub(crate) fairness: f64,
}

impl Targets {
    /// Of a store that needs little time for its part.
    pub(crate) const fn of_a_fast_store(round_trips: Option<f64>) -> Self {
        Self {
            one: Bounds {
                sections: 0.95,
                wait: 1.5,
                fairness: 0.99,
            },
            all: Bounds {
                sections: 0.85,
                wait: 4.0,
                fairness: 0.9,
            },
            round_trips,
        }
    }
}

/// Measures all tasks in one process, then in four, and then a release by one client for which another
/// client waits.
pub(crate) async fn measure(
    [from, to]: [&Locks; 2],
    contenders: Contenders<'_>,
    mut round_trip: impl AsyncFnMut() -> Result<()>,
    targets: &Targets,
    settings: &Settings,
    report: &mut StoreReport,
) -> Result<()> {
    tell("hand-over");
    let one = Contenders::Handles(std::slice::from_ref(from));
    for (contenders, bounds) in [(&one, &targets.one), (&contenders, &targets.all)] {
        let runs = Runs::measured(from, contenders, settings).await?;
        report.comparisons.extend(runs.beside(bounds)?);
        report.handover.push(runs.handover()?);
    }
    let Some(most) = targets.round_trips else {
        return Ok(());
    };
    let mut runs = Vec::new();
    for _ in 0..settings.repetitions {
        runs.push(from_one_to_another(from, to, &mut round_trip).await?);
    }
    report.comparisons.push(Comparison::new(
        "from a release to the grant to another client, p50",
        "µs",
        "a round trip",
        &runs,
        Some(Target::AtMost(most)),
    )?);
    Ok(())
}

impl Contenders<'_> {
    const fn name(&self) -> &'static str {
        match self {
            Self::Processes { .. } => "four processes",
            Self::Handles([_]) => ONE_PROCESS,
            Self::Handles(_) => "four handles",
        }
    }

    async fn contend(&self, span: Duration) -> Result<Vec<Contended>> {
        match self {
            Self::Processes { store, address } => in_processes(store, address, span),
            Self::Handles(handles) => {
                let tasks_each = usize::from(TASKS) / handles.len();
                let mut contending = JoinSet::new();
                for locks in *handles {
                    let locks = locks.clone();
                    contending.spawn(async move { contend(&locks, tasks_each, span).await });
                }
                contending.join_all().await.into_iter().collect()
            }
        }
    }
}

/// Runs of all tasks, each followed by a run of one task alone.
struct Runs {
    on: &'static str,
    /// With the sections per second of one task alone.
    runs: Vec<(Run, f64)>,
}

impl Runs {
    async fn measured(
        alone: &Locks,
        contenders: &Contenders<'_>,
        settings: &Settings,
    ) -> Result<Self> {
        let mut runs = Vec::new();
        for _ in 0..settings.repetitions {
            let together = Run::of(contenders.contend(settings.span * 4).await?)?;
            let one = contend(alone, 1, settings.span).await?;
            runs.push((together, Run::of(vec![one])?.per_second));
        }
        Ok(Self {
            on: contenders.name(),
            runs,
        })
    }

    fn handover(&self) -> Result<Handover> {
        let of = |figure: fn(&Run, f64) -> f64| {
            let runs = self.runs.iter();
            Figure::of(runs.map(|(run, alone)| Some(figure(run, *alone))))
                .context("nothing was measured")
        };
        Ok(Handover {
            on: self.on,
            sections_per_second: of(|run, _| run.per_second)?,
            p50_wait_ms: of(|run, _| run.p50_wait_ms())?,
            p99_wait_ms: of(|run, _| run.p99_wait_ms())?,
            p99_fair_shares: of(|run, alone| run.p99_wait_ms() / fair_share_ms(alone))?,
            fairness_of_tasks: of(|run, _| run.fairness_of_tasks)?,
            fairness_of_processes: of(|run, _| run.fairness_of_processes)?,
            gave_up: of(|run, _| run.gave_up)?.median,
            alone_per_second: of(|_, alone| alone)?,
            ratio: of(|run, alone| run.per_second / alone)?,
        })
    }

    fn beside(&self, bounds: &Bounds) -> Result<Vec<Comparison>> {
        let on = self.on;
        let of = |what: String, unit, beside, figure: fn(&Run, f64) -> (f64, f64), target| {
            let runs: Vec<_> = self
                .runs
                .iter()
                .map(|(run, alone)| figure(run, *alone))
                .collect();
            Comparison::new(what, unit, beside, &runs, Some(target))
        };
        let fairness = Target::AtLeast(bounds.fairness);
        Ok(vec![
            of(
                format!("hand-over in {on}"),
                "sections/s",
                "one alone",
                |run, alone| (run.per_second, alone),
                Target::AtLeast(bounds.sections),
            )?,
            of(
                format!("wait in {on}, p99"),
                "ms",
                "a fair share",
                |run, alone| (run.p99_wait_ms(), fair_share_ms(alone)),
                Target::AtMost(bounds.wait),
            )?,
            match on {
                ONE_PROCESS => of(
                    format!("Jain's index over tasks, in {on}"),
                    "",
                    "all alike",
                    |run, _| (run.fairness_of_tasks, 1.0),
                    fairness,
                )?,
                _ => of(
                    format!("Jain's index over processes, in {on}"),
                    "",
                    "all alike",
                    |run, _| (run.fairness_of_processes, 1.0),
                    fairness,
                )?,
            },
            of(
                format!("served within 30 s in {on}"),
                "of all",
                "all",
                |run, _| (1.0 - run.gave_up, 1.0),
                Target::AtLeast(1.0),
            )?,
        ])
    }
}

/// From the call of a release by one client until another has the lock, and a round trip to the store in
/// between: the median of each, in microseconds.
async fn from_one_to_another(
    from: &Locks,
    to: &Locks,
    round_trip: &mut impl AsyncFnMut() -> Result<()>,
) -> Result<(f64, f64)> {
    const TIMES: usize = 40;
    /// Time for the caller to ask and to set up its watch.
    const SETTLED: Duration = Duration::from_millis(20);
    let (mut handed_over, mut round_trips) = (Vec::new(), Vec::new());
    while handed_over.len() < TIMES {
        let held = from.lock(KEY).timeout(TIMEOUT).await?;
        let other = to.clone();
        let waiting = tokio::spawn(async move {
            let guard = other.lock(KEY).timeout(TIMEOUT).await?;
            let granted = Instant::now();
            let _ = guard.release().await?;
            Ok::<_, syncguard_core::LockError>(granted)
        });
        tokio::time::sleep(SETTLED).await;
        let asked = Instant::now();
        round_trip().await?;
        round_trips.push(asked.elapsed());
        let released = Instant::now();
        let _ = held.release().await?;
        handed_over.push(waiting.await??.saturating_duration_since(released));
    }
    let p50 = |laps| Latency::of(laps).p50_us.context("nothing was measured");
    Ok((p50(handed_over)?, p50(round_trips)?))
}

/// The time of 16 sections of one task alone.
fn fair_share_ms(alone_per_second: f64) -> f64 {
    f64::from(TASKS) * 1e3 / alone_per_second
}

/// What the tasks of one process saw.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Contended {
    elapsed: Duration,
    /// Of each task.
    sections: Vec<u32>,
    waits: Vec<Duration>,
    gave_up: u32,
}

/// Tasks that run one section after the other, all under one lock.
async fn contend(locks: &Locks, tasks: usize, span: Duration) -> Result<Contended> {
    let mut contending = JoinSet::new();
    let started = Instant::now();
    for _ in 0..tasks {
        let locks = locks.clone();
        contending.spawn(async move {
            let (mut waits, mut gave_up) = (Vec::new(), 0_u32);
            while started.elapsed() < span {
                let asked = Instant::now();
                let section = async |_| {
                    let waited = asked.elapsed();
                    tokio::time::sleep(SECTION).await;
                    waited
                };
                match locks.lock(KEY).timeout(TIMEOUT).run(section).await {
                    Ok(receipt) => waits.push(receipt.into_value()),
                    Err(error) if error.code() == ErrorCode::AcquisitionTimeout => gave_up += 1,
                    Err(error) => return Err(error),
                }
            }
            Ok((waits, gave_up))
        });
    }
    let mut contended = Contended::default();
    while let Some(done) = contending.join_next().await {
        let (mut waits, gave_up) = done??;
        contended.sections.push(u32::try_from(waits.len())?);
        contended.waits.append(&mut waits);
        contended.gave_up += gave_up;
    }
    contended.elapsed = started.elapsed();
    Ok(contended)
}

/// The measurements of one run.
struct Run {
    per_second: f64,
    waits: Latency,
    fairness_of_tasks: f64,
    fairness_of_processes: f64,
    gave_up: f64,
}

impl Run {
    fn of(contended: Vec<Contended>) -> Result<Self> {
        let of_tasks: Vec<_> = contended
            .iter()
            .flat_map(|each| each.sections.iter().copied().map(f64::from))
            .collect();
        let of_processes: Vec<f64> = contended
            .iter()
            .map(|each| each.sections.iter().copied().map(f64::from).sum())
            .collect();
        let gave_up: u32 = contended.iter().map(|each| each.gave_up).sum();
        let longest = contended.iter().map(|each| each.elapsed).max();
        let waits: Vec<_> = contended.into_iter().flat_map(|each| each.waits).collect();
        let sections = u32::try_from(waits.len())?;
        let seconds = longest.unwrap_or_default().as_secs_f64();
        Ok(Self {
            per_second: f64::from(sections) / seconds,
            gave_up: f64::from(gave_up) / f64::from((sections + gave_up).max(1)),
            fairness_of_tasks: fairness(&of_tasks),
            fairness_of_processes: fairness(&of_processes),
            waits: Latency::of(waits),
        })
    }

    fn p50_wait_ms(&self) -> f64 {
        self.waits.p50_us.unwrap_or_default() / 1e3
    }

    fn p99_wait_ms(&self) -> f64 {
        self.waits.p99_us.unwrap_or_default() / 1e3
    }
}

/// Jain's index: 1 where all have the same, 1/n where one has it all.
fn fairness(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let each: f64 = shares.iter().map(|_| 1.0).sum();
    sum * sum / (each * squares.max(f64::MIN_POSITIVE))
}
