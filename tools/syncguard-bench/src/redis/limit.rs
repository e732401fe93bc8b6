//! [`Limit`]: our scripts, sent by `redis-benchmark`.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{Value, cmd};
use syncguard_testkit::install;

use super::scripts::{Flavour, Names, Step, script};
use super::server::fill;
use crate::drive::{Latency, Sample};
use crate::workload::WANTED;

/// What `redis-benchmark` replaces by 12 digits, other ones in each place.
const RANDOM: &str = "__rand_int__";
/// So many that two of a run are hardly ever the same.
const EVER_NEW: u64 = 100_000_000_000;
/// Locks for each release by chance: of 20 that are asked for, 19 are still there.
const SPARE: u32 = 10;

pub(crate) struct Limit {
    pub(crate) port: u16,
    pub(crate) clients: usize,
    pub(crate) requests: u32,
}

impl Limit {
    /// Free keys are taken, each by an id of its own.
    pub(crate) async fn acquire(&self, connection: &mut MultiplexedConnection) -> Result<Sample> {
        super::flush(connection).await?;
        let names = Names::of(RANDOM);
        let (mut keys, arguments) = names.words(Flavour::Ours, Step::Acquire);
        // Counters are there already, as they are for keys that were locked before.
        keys[2] = Names::of(WANTED).fence();
        let sample = self
            .run(connection, Step::Acquire, (keys, arguments), EVER_NEW)
            .await?;
        let stored: u32 = cmd("DBSIZE").query_async(connection).await?;
        // A lock and an index of each, and the counter.
        ensure!(
            stored > self.requests * 19 / 10,
            "redis-benchmark took too few locks"
        );
        Ok(sample)
    }

    /// Locks that are held by one id are released, through an index each.
    pub(crate) async fn release(&self, connection: &mut MultiplexedConnection) -> Result<Sample> {
        super::flush(connection).await?;
        let locks = self.requests * SPARE;
        fill(connection, 0, locks, WANTED, false).await?;
        let keys = vec![Names::of(RANDOM).index()];
        let (_, arguments) = Names::of(WANTED).words(Flavour::Ours, Step::Release);
        let sample = self
            .run(connection, Step::Release, (keys, arguments), locks.into())
            .await?;
        let stored: u32 = cmd("DBSIZE").query_async(connection).await?;
        let released = (locks * 2 - stored) / 2;
        ensure!(
            released > self.requests * 3 / 4,
            "redis-benchmark released {released} locks of {}",
            self.requests
        );
        Ok(sample)
    }

    pub(crate) async fn extend(&self, connection: &mut MultiplexedConnection) -> Result<Sample> {
        self.of_a_held_lock(connection, Step::Extend).await
    }

    pub(crate) async fn lookup(&self, connection: &mut MultiplexedConnection) -> Result<Sample> {
        self.of_a_held_lock(connection, Step::Lookup).await
    }

    pub(crate) async fn refusal(&self, connection: &mut MultiplexedConnection) -> Result<Sample> {
        super::flush(connection).await?;
        hold(connection).await?;
        let other = Names {
            id: Names::of(RANDOM).id,
            ..Names::of(WANTED)
        };
        let words = other.words(Flavour::Ours, Step::Refusal);
        self.run(connection, Step::Refusal, words, EVER_NEW).await
    }

    async fn of_a_held_lock(
        &self,
        connection: &mut MultiplexedConnection,
        step: Step,
    ) -> Result<Sample> {
        super::flush(connection).await?;
        hold(connection).await?;
        let words = Names::of(WANTED).words(Flavour::Ours, step);
        self.run(connection, step, words, 1).await
    }

    async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        step: Step,
        (keys, arguments): (Vec<String>, Vec<String>),
        random: u64,
    ) -> Result<Sample> {
        let digest = script(Flavour::Ours, step).get_hash().to_owned();
        let known: Vec<bool> = cmd("SCRIPT")
            .arg("EXISTS")
            .arg(&digest)
            .query_async(connection)
            .await?;
        ensure!(
            known == [true],
            "the backend has another script than the bench"
        );
        let mut command = Command::new(install::REDIS_BENCHMARK.find()?);
        command
            .args(["-p", &self.port.to_string()])
            .args(["-c", &self.clients.to_string()])
            .args(["-n", &self.requests.to_string()])
            .args(["-r", &random.to_string()])
            .args(["--csv", "--precision", "3", "EVALSHA", &digest])
            .arg(keys.len().to_string())
            .args(keys)
            .args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "redis-benchmark failed: {text}");
        parse(&text).with_context(|| format!("redis-benchmark printed {text}"))
    }
}

/// The line after the head ends in seven quoted numbers: the rate, and latencies in ms: average,
/// least, p50, p95, p99, greatest.
fn parse(text: &str) -> Option<Sample> {
    let line = text.lines().nth(1)?;
    let mut fields = line.trim_end_matches('"').rsplit("\",\"");
    let mut number = || fields.next()?.parse::<f64>().ok();
    let (_, p99, _, p50, _, mean, rate) = (
        number()?,
        number()?,
        number()?,
        number()?,
        number()?,
        number()?,
        number()?,
    );
    let latency = Latency {
        mean_us: mean * 1e3,
        p50_us: Some(p50 * 1e3),
        p99_us: Some(p99 * 1e3),
    };
    Some(Sample {
        steps_per_second: rate,
        latencies: [latency, Latency::default()],
        ..Sample::default()
    })
}

async fn hold(connection: &mut MultiplexedConnection) -> Result<()> {
    let digest = script(Flavour::Ours, Step::Acquire).get_hash().to_owned();
    let command = Names::of(WANTED).command(Flavour::Ours, Step::Acquire, &digest);
    let answer: Value = command.query_async(connection).await?;
    ensure!(
        matches!(answer, Value::BulkString(_)),
        "the lock was not taken: {answer:?}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_behind_a_command_that_has_quotes() {
        let text = "\"test\",\"rps\",...\n\"EVALSHA x 1 k \"\"y\",\"1\"\",\"31595.58\",\"1.384\",\
                    \"0.080\",\"0.911\",\"4.407\",\"5.967\",\"7.007\"\n";
        let sample = parse(text).unwrap();
        assert!((sample.steps_per_second - 31_595.58).abs() < 0.01);
        let latency = sample.latencies[0];
        assert!((latency.mean_us - 1384.0).abs() < 0.01, "{latency:?}");
        assert!(
            (latency.p50_us.unwrap() - 911.0).abs() < 0.01,
            "{latency:?}"
        );
        assert!(
            (latency.p99_us.unwrap() - 5967.0).abs() < 0.01,
            "{latency:?}"
        );
    }
}
