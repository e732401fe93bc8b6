//! How fast one key goes from hand to hand when all want it, and how evenly.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;
use syncguard_core::{ErrorCode, Locks};
use tokio::task::JoinSet;

use super::drive::{Latency, median};
use super::report::{Comparison, StoreReport, Target};
use super::{Settings, tell};

const TASKS: u16 = 16;
const SECTION: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(30);
const KEY: &str = "handover";

/// Handles that share nothing, as those of so many processes.
pub(crate) const HANDLES: usize = 4;

/// What 16 tasks saw that run one section after the other under one lock.
#[derive(Debug, Serialize)]
pub(crate) struct Handover {
    /// How many handles the tasks share.
    pub(crate) handles: usize,
    pub(crate) sections_per_second: f64,
    /// From asking for the lock until the section begins.
    pub(crate) p50_wait_ms: f64,
    pub(crate) p99_wait_ms: f64,
    /// The same in fair shares: the time of 16 sections of one alone.
    pub(crate) p99_fair_shares: f64,
    /// Jain's index of fairness over the sections of each task, and of each handle.
    pub(crate) fairness_of_tasks: f64,
    pub(crate) fairness_of_handles: f64,
    /// Calls that gave up, of all.
    pub(crate) gave_up: f64,
    /// Sections of one task alone, whom nobody disturbs.
    pub(crate) alone_per_second: f64,
}

/// What a store has to reach on one handle, and on all of them.
pub(crate) struct Targets {
    pub(crate) one: Bounds,
    pub(crate) all: Bounds,
    /// From a release on one handle to the grant on another, in round trips. `None` where there are none.
    pub(crate) round_trips: Option<f64>,
}

pub(crate) struct Bounds {
    /// Sections, of those of one alone.
    pub(crate) sections: f64,
    /// The 99th percentile of a wait, in fair shares.
    pub(crate) wait: f64,
    /// Jain's index: over tasks on one handle, else over handles.
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

/// Measures all tasks on one handle, then on all of them, and a release on one that another waits for.
pub(crate) async fn measure(
    handles: &[Locks],
    round_trip: impl AsyncFnMut() -> Result<()>,
    targets: &Targets,
    settings: &Settings,
    report: &mut StoreReport,
) -> Result<()> {
    tell("hand-over");
    report.handover = together(handles, settings.span, settings.repetitions).await?;
    for handover in &report.handover {
        let comparisons = handover.beside(targets);
        report.comparisons.extend(comparisons);
    }
    let Some(most) = targets.round_trips else {
        return Ok(());
    };
    let [from, to, ..] = handles else {
        anyhow::bail!("a hand-over takes two handles");
    };
    let (handed_over, round_trip) = from_one_to_another(from, to, round_trip).await?;
    report.comparisons.push(Comparison::new(
        "from a release to the grant on another handle, p50",
        "µs",
        handed_over,
        ("a round trip", round_trip),
        Some(Target::AtMost(most)),
    ));
    Ok(())
}

impl Handover {
    fn beside(&self, targets: &Targets) -> Vec<Comparison> {
        let (on, bounds, over, fairness) = match self.handles {
            1 => ("one handle", &targets.one, "tasks", self.fairness_of_tasks),
            _ => (
                "four handles",
                &targets.all,
                "handles",
                self.fairness_of_handles,
            ),
        };
        let share = f64::from(TASKS) * 1e3 / self.alone_per_second;
        let of = |what: String, unit, ours, beside, target| {
            Comparison::new(what, unit, ours, beside, Some(target))
        };
        vec![
            of(
                format!("hand-over on {on}"),
                "sections/s",
                self.sections_per_second,
                ("one alone", self.alone_per_second),
                Target::AtLeast(bounds.sections),
            ),
            of(
                format!("wait on {on}, p99"),
                "ms",
                self.p99_wait_ms,
                ("a fair share", share),
                Target::AtMost(bounds.wait),
            ),
            of(
                format!("Jain's index over {over}, on {on}"),
                "",
                fairness,
                ("all alike", 1.0),
                Target::AtLeast(bounds.fairness),
            ),
            of(
                format!("served within 30 s on {on}"),
                "of all",
                1.0 - self.gave_up,
                ("all", 1.0),
                Target::AtLeast(1.0),
            ),
        ]
    }
}

/// From the call of a release on one handle until a caller on another has the lock, and a round trip to
/// the store in between: the median of each, in microseconds.
async fn from_one_to_another(
    from: &Locks,
    to: &Locks,
    mut round_trip: impl AsyncFnMut() -> Result<()>,
) -> Result<(f64, f64)> {
    const TIMES: usize = 200;
    /// Until the caller has asked, and its watch is in place.
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

async fn together(handles: &[Locks], span: Duration, repetitions: usize) -> Result<Vec<Handover>> {
    let mut measured = Vec::new();
    for used in [1, handles.len()] {
        let (mut together, mut alone) = (Vec::new(), Vec::new());
        for _ in 0..repetitions {
            together.push(run(&handles[..used], usize::from(TASKS) / used, span * 4).await?);
            alone.push(run(&handles[..1], 1, span).await?);
        }
        let of = |figure: &dyn Fn(&Run) -> f64| median(together.iter().map(figure));
        let alone_per_second = median(alone.iter().map(|run| run.per_second));
        let p99_wait_ms = of(&|run| run.waits.p99_us.unwrap_or_default() / 1e3);
        measured.push(Handover {
            handles: used,
            sections_per_second: of(&|run| run.per_second),
            p50_wait_ms: of(&|run| run.waits.p50_us.unwrap_or_default() / 1e3),
            p99_wait_ms,
            p99_fair_shares: p99_wait_ms * alone_per_second / 1e3 / f64::from(TASKS),
            fairness_of_tasks: of(&|run| run.fairness_of_tasks),
            fairness_of_handles: of(&|run| run.fairness_of_handles),
            gave_up: of(&|run| run.gave_up),
            alone_per_second,
        });
    }
    Ok(measured)
}

struct Run {
    per_second: f64,
    waits: Latency,
    fairness_of_tasks: f64,
    fairness_of_handles: f64,
    gave_up: f64,
}

async fn run(handles: &[Locks], tasks_each: usize, span: Duration) -> Result<Run> {
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for (handle, locks) in handles.iter().enumerate() {
        for _ in 0..tasks_each {
            let locks = locks.clone();
            tasks.spawn(async move {
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
                Ok((handle, waits, gave_up))
            });
        }
    }
    let (mut waits, mut gave_up) = (Vec::new(), 0_u32);
    let (mut of_tasks, mut of_handles) = (Vec::new(), vec![0.0; handles.len()]);
    while let Some(done) = tasks.join_next().await {
        let (handle, mut of_one, times) = done??;
        let sections = f64::from(u32::try_from(of_one.len())?);
        of_tasks.push(sections);
        if let Some(sum) = of_handles.get_mut(handle) {
            *sum += sections;
        }
        waits.append(&mut of_one);
        gave_up += times;
    }
    let sections = u32::try_from(waits.len())?;
    Ok(Run {
        per_second: f64::from(sections) / started.elapsed().as_secs_f64(),
        gave_up: f64::from(gave_up) / f64::from((sections + gave_up).max(1)),
        fairness_of_tasks: fairness(&of_tasks),
        fairness_of_handles: fairness(&of_handles),
        waits: Latency::of(waits),
    })
}

/// Jain's index: 1 where all have the same, 1/n where one has it all.
fn fairness(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let each: f64 = shares.iter().map(|_| 1.0).sum();
    sum * sum / (each * squares.max(f64::MIN_POSITIVE))
}
