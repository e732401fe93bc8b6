//! Redis: the scripts, beside `redis-benchmark`, the scripts as specified, and `rslock`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use syncguard_core::Locks;
use syncguard_redis::RedisBackend;
use syncguard_testkit::{RedisServer, install};

use super::comparison::{Comparison, Target};
use super::drive::Sample;
use super::figure::side_by_side;
use super::handover::{self, Contenders, Targets};
use super::machine::{locked_version, version_of};
use super::report::StoreReport;
use super::server_cpu::ServerCpu;
use super::workload::{WORKLOADS, Workload, measure_on};
use super::{Settings, tell};

mod limit;
mod rival;
mod scripts;
mod server;

pub(crate) fn measure(settings: &Settings) -> Result<StoreReport> {
    install::install(&[install::REDIS, install::REDIS_BENCHMARK])?;
    let server = RedisServer::start()?;
    tokio::runtime::Runtime::new()?.block_on(all(&server, settings))
}

pub(crate) async fn connected(url: &str) -> Result<Locks> {
    Ok(Locks::new(RedisBackend::connect(url).await?))
}

async fn all(server: &RedisServer, settings: &Settings) -> Result<StoreReport> {
    let locks = connected(&server.url()).await?;
    let mut connection = connect(&server.url()).await?;
    let mut report = StoreReport {
        store: "redis",
        versions: [
            (
                "redis-server",
                version_of(Command::new("redis-server").arg("--version")),
            ),
            ("fred", locked_version("fred")),
            ("rslock", locked_version("rslock")),
        ]
        .into(),
        limit: "redis-benchmark with the same EVALSHA, a connection for each task",
        load: Vec::new(),
        comparisons: Vec::new(),
        handover: Vec::new(),
    };
    if !settings.only_hand_over {
        measure_all(server, settings, &locks, &mut connection, &mut report).await?;
    }
    flush(&mut connection).await?;
    let url = server.url();
    let other = connected(&url).await?;
    let ping = async || Ok(redis::cmd("PING").exec_async(&mut connection).await?);
    let targets = Targets::of_a_fast_store(Some(3.0));
    let contenders = Contenders::Processes {
        store: "redis",
        address: &url,
    };
    let clients = [&locks, &other];
    handover::measure(clients, contenders, ping, &targets, settings, &mut report).await?;
    locks.close().await?;
    Ok(report)
}

async fn measure_all(
    server: &RedisServer,
    settings: &Settings,
    locks: &Locks,
    connection: &mut MultiplexedConnection,
    report: &mut StoreReport,
) -> Result<()> {
    for workload in WORKLOADS {
        let many = settings.tasks.iter().max().map(|most| most * 4);
        for tasks in settings.tasks.iter().copied().chain(many) {
            tell(&format!("{}, {tasks} tasks", workload.name()));
            let bench = Bench {
                server,
                settings,
                locks,
                tasks,
            };
            bench.load(workload, connection, report).await?;
        }
    }
    tell("time in the server");
    report
        .comparisons
        .extend(server::times(connection, settings).await?);
    report
        .comparisons
        .extend(server::held(locks, connection, settings).await?);
    tell("memory");
    flush(connection).await?;
    report
        .comparisons
        .extend(server::bytes(locks, connection).await?);
    tell("many locks");
    flush(connection).await?;
    report
        .comparisons
        .extend(server::scale(server, settings).await?);
    Ok(())
}

struct Bench<'a> {
    server: &'a RedisServer,
    settings: &'a Settings,
    locks: &'a Locks,
    tasks: usize,
}

impl Bench<'_> {
    async fn load(
        &self,
        workload: Workload,
        connection: &mut MultiplexedConnection,
        report: &mut StoreReport,
    ) -> Result<()> {
        let (mut ours, mut limits) = (Vec::new(), Vec::new());
        let (mut rivals, mut bare) = (Vec::new(), Vec::new());
        let cpu = ServerCpu::of(self.server.pid());
        for _ in 0..self.settings.repetitions {
            flush(connection).await?;
            let span = self.settings.span;
            let clients = std::slice::from_ref(self.locks);
            let sample = measure_on(Some(cpu), clients, workload, self.tasks, span).await?;
            let rate = sample.steps_per_second;
            ours.push(sample);
            limits.push(self.limit(workload, rate, connection).await?);
            if workload == Workload::Pair {
                rivals.push(rival::measure(cpu, &self.server.url(), self.tasks, span).await?);
                bare.push(rival::our_scripts(connection, self.tasks, span).await?);
            }
        }
        let tasks = self.tasks;
        report.add_load(workload, tasks, &ours, &limits);
        if workload != Workload::Pair {
            return Ok(());
        }
        // The least share of the pairs, and the most of the client's CPU.
        let (share_of_rslock, cpu_of_rslock) = match tasks {
            1 => (0.6, None),
            2..=16 => (0.6, Some(1.1)),
            17..=64 => (0.65, Some(0.85)),
            _ => (0.85, Some(0.75)),
        };
        let rate = |run: &Sample| Some(run.steps_per_second);
        let pairs = |beside, others: &[Sample], bound: Option<f64>| {
            let name = format!("acquire and release, {tasks} tasks");
            let runs = side_by_side(&ours, others, rate);
            Comparison::new(name, "pairs/s", beside, &runs, bound.map(Target::AtLeast))
        };
        report.comparisons.extend([
            pairs("redis-benchmark", &limits, (tasks >= 64).then_some(0.95))?,
            pairs("rslock", &rivals, Some(share_of_rslock))?,
            Comparison::new(
                format!("our scripts by rslock's driver, {tasks} tasks"),
                "pairs/s",
                "rslock",
                &side_by_side(&bare, &rivals, rate),
                None,
            )?,
            Comparison::new(
                format!("client CPU of a pair, {tasks} tasks"),
                "µs",
                "rslock",
                &side_by_side(&ours, &rivals, |run| run.cpu_us),
                cpu_of_rslock.map(Target::AtMost),
            )?,
        ]);
        let server_cpu = side_by_side(&ours, &rivals, |run| run.server_cpu_us);
        if server_cpu.is_empty() {
            tell("the system does not report the server's CPU time");
            return Ok(());
        }
        report.comparisons.push(Comparison::new(
            format!("server CPU of a pair, {tasks} tasks"),
            "µs",
            "rslock",
            &server_cpu,
            None,
        )?);
        Ok(())
    }

    async fn limit(
        &self,
        workload: Workload,
        rate: f64,
        connection: &mut MultiplexedConnection,
    ) -> Result<Sample> {
        let limit = limit::Limit {
            port: self.server.port(),
            clients: self.tasks,
            requests: requests(rate, self.settings.span),
        };
        match workload {
            Workload::Pair => {
                let acquired = limit.acquire(connection).await?;
                let released = limit.release(connection).await?;
                // One after the other, as a task does them.
                let rates = [&acquired, &released].map(|sample| 1.0 / sample.steps_per_second);
                Ok(Sample {
                    steps_per_second: 1.0 / (rates[0] + rates[1]),
                    latencies: [acquired.latencies[0], released.latencies[0]],
                    ..Sample::default()
                })
            }
            Workload::Extend => limit.extend(connection).await,
            Workload::Lookup => limit.lookup(connection).await,
            Workload::Refusal => limit.refusal(connection).await,
        }
    }
}

/// About as many as fit into the span.
fn requests(rate: f64, span: Duration) -> u32 {
    // A count of whole milliseconds, converted from a float without a lossy cast.
    let steps = Duration::from_secs_f64((rate * span.as_secs_f64() / 1e3).clamp(0.2, 100.0));
    u32::try_from(steps.as_millis()).unwrap_or(u32::MAX)
}

/// A connection with a long timeout: filling and emptying a server takes long.
async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(url)?;
    Ok(client
        .get_multiplexed_async_connection_with_config(&patient)
        .await?)
}

async fn flush(connection: &mut MultiplexedConnection) -> Result<()> {
    redis::cmd("FLUSHALL")
        .exec_async(connection)
        .await
        .context("cannot empty the server")
}
