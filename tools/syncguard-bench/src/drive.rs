//! [`drive`]: tasks that repeat one operation, and their measurements.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::server_cpu::ServerCpu;

/// One task's work.
pub(crate) trait Worker: Send + 'static {
    /// One round of it.
    fn step(&mut self, watch: &mut Stopwatch) -> impl Future<Output = Result<()>> + Send;
}

/// Takes the time of the calls within a step: up to two kinds of them.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    laps: [Vec<Duration>; 2],
}

impl Stopwatch {
    pub(crate) async fn time<T>(&mut self, kind: usize, call: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let answer = call.await;
        self.laps[kind].push(started.elapsed());
        answer
    }
}

/// The measurements of all workers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub(crate) steps_per_second: f64,
    /// Time that this process computed for one step, in µs: all of its threads together. `None` of
    /// another program.
    pub(crate) cpu_us: Option<f64>,
    /// The same of the server's processes. `None` where it is not measured.
    pub(crate) server_cpu_us: Option<f64>,
    pub(crate) latencies: [Latency; 2],
}

/// How long calls of one kind took, in µs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Latency {
    pub(crate) mean_us: f64,
    /// `None` where only the mean is known.
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
}

/// Each worker repeats its step until the time is over.
pub(crate) async fn drive<W: Worker>(workers: Vec<W>, span: Duration) -> Result<Sample> {
    drive_on(None, workers, span).await
}

/// [`drive`] that measures this server's CPU, too.
pub(crate) async fn drive_on<W: Worker>(
    server: Option<ServerCpu>,
    workers: Vec<W>,
    span: Duration,
) -> Result<Sample> {
    let mut tasks = JoinSet::new();
    let ready = Arc::new(Barrier::new(workers.len() + 1));
    let begun = Arc::new(OnceLock::new());
    for mut worker in workers {
        let (ready, begun) = (Arc::clone(&ready), Arc::clone(&begun));
        tasks.spawn(async move {
            // The first step connects and prepares.
            let warm = worker.step(&mut Stopwatch::default()).await;
            ready.wait().await;
            // Meanwhile the server's CPU time is read.
            ready.wait().await;
            warm?;
            // The same start for all: tasks that never wait would delay the start of others.
            let started = *begun.get_or_init(Instant::now);
            let (mut steps, mut watch) = (0_u32, Stopwatch::default());
            // At least one, however busy the machine is.
            while steps == 0 || started.elapsed() < span {
                worker.step(&mut watch).await?;
                steps += 1;
            }
            // With the worker: when its connection is closed, the server's process for it ends.
            anyhow::Ok((steps, watch, worker))
        });
    }
    ready.wait().await;
    let server_cpu = server.and_then(ServerCpu::times);
    ready.wait().await;
    let (started, cpu) = (*begun.get_or_init(Instant::now), cpu_time());
    let (mut steps, mut laps) = (0_u32, [Vec::new(), Vec::new()]);
    let mut workers = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let (of_one, watch, worker) = done??;
        workers.push(worker);
        steps += of_one;
        for (all, mut of_one) in laps.iter_mut().zip(watch.laps) {
            all.append(&mut of_one);
        }
    }
    let (elapsed, cpu) = (started.elapsed(), cpu_time() - cpu);
    let server_cpu = server_cpu.and_then(|before| server?.since(&before));
    let of_a_step = |time| micros(time) / f64::from(steps);
    Ok(Sample {
        steps_per_second: f64::from(steps) / elapsed.as_secs_f64(),
        cpu_us: Some(of_a_step(cpu)),
        server_cpu_us: server_cpu.map(of_a_step),
        latencies: laps.map(Latency::of),
    })
}

/// The CPU time of this process so far. Servers are other processes.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

impl Latency {
    pub(crate) fn of(mut laps: Vec<Duration>) -> Self {
        laps.sort_unstable();
        let Ok(count) = u32::try_from(laps.len()) else {
            return Self::default();
        };
        if count == 0 {
            return Self::default();
        }
        let percentile = |of_hundred: usize| micros(laps[(laps.len() - 1) * of_hundred / 100]);
        Self {
            mean_us: micros(laps.iter().sum::<Duration>() / count),
            p50_us: Some(percentile(50)),
            p99_us: Some(percentile(99)),
        }
    }
}

/// The median; of two middle values the lower one.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or_default()
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_laps() {
        let laps: Vec<_> = (1..=100).rev().map(Duration::from_micros).collect();
        let latency = Latency::of(laps);
        let close = |value: f64, to: f64| (value - to).abs() < 0.01;
        assert!(close(latency.mean_us, 50.5), "{latency:?}");
        assert!(close(latency.p50_us.unwrap(), 50.0), "{latency:?}");
        assert!(close(latency.p99_us.unwrap(), 99.0), "{latency:?}");
    }

    #[test]
    fn the_median_is_not_moved_by_an_outlier() {
        let values = [3.0, 1e9, 1.0, 2.0, 4.0];
        assert!((median(values) - 3.0).abs() < f64::EPSILON);
    }
}
