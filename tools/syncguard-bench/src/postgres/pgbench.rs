//! [`Pgbench`]: our statements, sent by `pgbench`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sqlx::PgPool;
use syncguard_testkit::install;

use super::SETTINGS;
use super::server::fill;
use super::statements::Statements;
use crate::drive::{Latency, Sample};
use crate::workload::{WANTED, Workload};

pub(crate) struct Pgbench<'a> {
    program: PathBuf,
    port: u16,
    clients: usize,
    statements: &'a Statements,
}

/// As long as the keys and ids that tasks use.
const KEY: &str = "\\set key 100000000000 + :client_id * 1000000 + random(0, 99)\n\
                   \\set fence 900000000000000000 + :key\n";
const ANY_ID: &str = "\\set id random(1000000000000000000, 8999999999999999999)\n";
/// What `fill` makes the ids of.
const OWN_ID: &str = "\\set id 9000000000000000000 + :client_id\n";

impl<'a> Pgbench<'a> {
    pub(crate) fn new(port: u16, clients: usize, statements: &'a Statements) -> Result<Self> {
        Ok(Self {
            program: install::PGBENCH.find()?,
            port,
            clients,
            statements,
        })
    }

    /// About as many transactions as take the span at this rate.
    pub(crate) async fn run(
        &self,
        workload: Workload,
        rate: f64,
        span: Duration,
        pool: &PgPool,
    ) -> Result<Sample> {
        let Statements {
            acquire,
            release,
            extend,
            lookup,
        } = self.statements;
        let tables = ["syncguard_locks", "syncguard_fence_counters"];
        let script = match workload {
            Workload::Pair => format!("{KEY}{ANY_ID}{acquire};\n{release};\n"),
            Workload::Extend => format!("{OWN_ID}{extend};\n"),
            Workload::Lookup => format!("{OWN_ID}{lookup};\n"),
            Workload::Refusal => {
                let wanted: u64 = WANTED.parse()?;
                fill(pool, tables, wanted, 1).await?;
                format!(
                    "\\set key {WANTED}\n\\set fence 900000000000000000 + :key\n{ANY_ID}{acquire};\n"
                )
            }
        };
        if matches!(workload, Workload::Extend | Workload::Lookup) {
            fill(pool, tables, 0, u32::try_from(self.clients)?).await?;
        }
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("script.sql");
        fs::write(&file, script)?;
        let each = rate * span.as_secs_f64() / f64::from(u32::try_from(self.clients)?);
        let settings = SETTINGS.map(|(name, value)| format!("-c {name}={value}"));
        let mut command = Command::new(&self.program);
        command
            .env("PGOPTIONS", settings.join(" "))
            .args([
                "-h",
                "127.0.0.1",
                "-U",
                "postgres",
                "-n",
                "-M",
                "prepared",
                "-r",
            ])
            .args(["-p", &self.port.to_string()])
            .args(["-c", &self.clients.to_string()])
            .args(["-j", &self.clients.min(2).to_string()])
            .args(["-t", &format!("{:.0}", each.max(10.0))])
            .arg("-f")
            .arg(&file)
            .arg("-l")
            .arg("--log-prefix")
            .arg(folder.path().join("log"))
            .arg("postgres");
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "pgbench failed: {text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.check(workload, pool).await?;
        let mut sample = parse(&text).with_context(|| format!("pgbench printed {text}"))?;
        if workload != Workload::Pair {
            sample.latencies[0] = logged(folder.path())?;
        }
        Ok(sample)
    }

    /// Whether the statements did there what they are measured for.
    async fn check(&self, workload: Workload, pool: &PgPool) -> Result<()> {
        let locks: i64 = sqlx::query_scalar("SELECT count(*) FROM syncguard_locks")
            .fetch_one(pool)
            .await?;
        let fences: i64 = sqlx::query_scalar(
            "SELECT coalesce(sum(fence), 0)::bigint FROM syncguard_fence_counters",
        )
        .fetch_one(pool)
        .await?;
        let clients = i64::try_from(self.clients)?;
        let sound = match workload {
            Workload::Pair => locks == 0 && fences >= 10 * clients,
            Workload::Extend | Workload::Lookup => locks == clients,
            Workload::Refusal => locks == 1 && fences == 1,
        };
        ensure!(
            sound,
            "after {workload:?} by pgbench: {locks} locks, {fences} fences"
        );
        Ok(())
    }
}

/// `tps = 1234.5 (without initial connection time)`, and after a head line a line for each command
/// of the script, with its mean in ms first.
fn parse(text: &str) -> Option<Sample> {
    let rate = text.lines().find_map(|line| line.strip_prefix("tps = "))?;
    let (_, commands) = text.split_once("statement latencies in milliseconds")?;
    let mut means = commands.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let mean: f64 = words.next()?.parse().ok()?;
        // After it comes, in some versions, the count of failures.
        let statement = words.find(|word| word.parse::<u64>().is_err())?;
        (!statement.starts_with('\\')).then_some(Latency {
            mean_us: mean * 1e3,
            ..Latency::default()
        })
    });
    Some(Sample {
        steps_per_second: rate.split(' ').next()?.parse().ok()?,
        latencies: [means.next()?, means.next().unwrap_or_default()],
        ..Sample::default()
    })
}

/// The third word of each line is how long a transaction took, in µs.
fn logged(folder: &Path) -> Result<Latency> {
    let mut laps = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with("log") {
            continue;
        }
        for line in fs::read_to_string(entry.path())?.lines() {
            let lap = line.split(' ').nth(2).context("a line without a time")?;
            laps.push(Duration::from_micros(lap.parse()?));
        }
    }
    ensure!(!laps.is_empty(), "pgbench logged nothing");
    Ok(Latency::of(laps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_means_are_found() {
        let text = "number of clients: 1\ntps = 1234.5 (without initial connection time)\n\
                    statement latencies in milliseconds and failures:\n\
                    \t0.001  0  \\set key 1\n  0.151           0  WITH a AS (SELECT 1) SELECT 2;\n\
                    \t0.070  0  DELETE FROM b;\n";
        let sample = parse(text).unwrap();
        assert!((sample.steps_per_second - 1234.5).abs() < 0.01);
        assert!((sample.latencies[0].mean_us - 151.0).abs() < 0.01);
        assert!((sample.latencies[1].mean_us - 70.0).abs() < 0.01);
    }
}
