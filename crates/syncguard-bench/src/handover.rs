//! How fast one key goes from hand to hand when all want it.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use syncguard_core::{Backoff, ErrorCode, LockOptions, Locks};
use tokio::task::JoinSet;

use super::drive::{Latency, median};

const WORKERS: usize = 16;
const SECTION: Duration = Duration::from_millis(1);
const KEY: &str = "handover";

/// What 16 workers saw that run one section after the other under one lock.
#[derive(Debug, Serialize)]
pub(crate) struct Handover {
    /// How they wait.
    pub(crate) waiting: &'static str,
    pub(crate) sections_per_second: f64,
    /// From asking for the lock until the section begins.
    pub(crate) p50_wait_ms: f64,
    pub(crate) p99_wait_ms: f64,
    /// Calls that gave up, of all.
    pub(crate) gave_up: f64,
    /// The same by one worker alone, whom nobody disturbs.
    pub(crate) alone_per_second: f64,
}

/// Measures two ways of waiting: the defaults, and asking often.
pub(crate) async fn measure(
    locks: &Locks,
    span: Duration,
    repetitions: usize,
) -> Result<Vec<Handover>> {
    let often = LockOptions::new()
        .backoff(Backoff::Fixed)
        .retry_delay(Duration::from_millis(5));
    let ways = [("defaults", LockOptions::new()), ("every 5 ms", often)];
    let mut measured = Vec::new();
    for (waiting, options) in ways {
        let (mut together, mut alone) = (Vec::new(), Vec::new());
        for _ in 0..repetitions {
            together.push(run(locks, WORKERS, &options, span * 4).await?);
            alone.push(run(locks, 1, &options, span).await?);
        }
        let of = |figure: &dyn Fn(&Run) -> f64| median(together.iter().map(figure));
        measured.push(Handover {
            waiting,
            sections_per_second: of(&|run| run.per_second),
            p50_wait_ms: of(&|run| run.waits.p50_us.unwrap_or_default() / 1e3),
            p99_wait_ms: of(&|run| run.waits.p99_us.unwrap_or_default() / 1e3),
            gave_up: of(&|run| run.gave_up),
            alone_per_second: median(alone.iter().map(|run| run.per_second)),
        });
    }
    Ok(measured)
}

struct Run {
    per_second: f64,
    waits: Latency,
    gave_up: f64,
}

async fn run(locks: &Locks, workers: usize, options: &LockOptions, span: Duration) -> Result<Run> {
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for _ in 0..workers {
        let (locks, options) = (locks.clone(), options.clone());
        tasks.spawn(async move {
            let (mut waits, mut gave_up) = (Vec::new(), 0_u32);
            while started.elapsed() < span {
                let asked = Instant::now();
                let section = async |_| {
                    let waited = asked.elapsed();
                    tokio::time::sleep(SECTION).await;
                    waited
                };
                match locks.lock(KEY).options(&options).run(section).await {
                    Ok(receipt) => waits.push(receipt.into_value()),
                    Err(error) if error.code() == ErrorCode::AcquisitionTimeout => gave_up += 1,
                    Err(error) => return Err(error),
                }
            }
            Ok((waits, gave_up))
        });
    }
    let (mut waits, mut gave_up) = (Vec::new(), 0_u32);
    while let Some(done) = tasks.join_next().await {
        let (mut of_one, times) = done??;
        waits.append(&mut of_one);
        gave_up += times;
    }
    let sections = u32::try_from(waits.len())?;
    Ok(Run {
        per_second: f64::from(sections) / started.elapsed().as_secs_f64(),
        gave_up: f64::from(gave_up) / f64::from((sections + gave_up).max(1)),
        waits: Latency::of(waits),
    })
}
