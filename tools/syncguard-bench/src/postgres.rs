//! PostgreSQL: the statements, beside `pgbench`, bare advisory locks, and a transaction of six.

use std::process::Command;
use std::str::FromStr as _;

use anyhow::Result;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, raw_sql};
use syncguard_core::Locks;
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::{PostgresServer, install};

use crate::comparison::{Comparison, Target};
use crate::drive::Sample;
use crate::figure::side_by_side;
use crate::handover::{self, Contenders, Targets};
use crate::machine::{locked_version, version_of};
use crate::report::StoreReport;
use crate::server_cpu::ServerCpu;
use crate::workload::{WORKLOADS, Workload, measure_on};
use crate::{Settings, tell};

mod pgbench;
mod rivals;
mod server;
mod statements;

use pgbench::Pgbench;

pub(crate) fn measure(settings: &Settings) -> Result<StoreReport> {
    install::install(&[install::POSTGRES, install::PGBENCH])?;
    let server = PostgresServer::start()?;
    tokio::runtime::Runtime::new()?.block_on(all(&server, settings))
}

async fn all(server: &PostgresServer, settings: &Settings) -> Result<StoreReport> {
    let pool = connect(&server.url(), 1).await?;
    let version: String = sqlx::query_scalar("SHOW server_version")
        .fetch_one(&pool)
        .await?;
    let pgbench = version_of(Command::new(install::PGBENCH.find()?).arg("--version"));
    let mut report = StoreReport {
        store: "postgres",
        versions: [
            ("PostgreSQL", version),
            ("pgbench", pgbench),
            ("sqlx", locked_version("sqlx")),
        ]
        .into(),
        limit: "pgbench with the same statements, prepared, a connection for each task, as ours; \
                fsync is off on either side, so that it is the statements and not the disk",
        load: Vec::new(),
        comparisons: Vec::new(),
        handover: Vec::new(),
    };
    if !settings.only_hand_over {
        measure_all(server, settings, &pool, &mut report).await?;
    }
    let url = server.url();
    let locks = connected(&url, 16, PostgresOptions::new()).await?;
    let other = connected(&url, 16, PostgresOptions::new()).await?;
    let select = async || {
        sqlx::query("SELECT 1").execute(&pool).await?;
        Ok(())
    };
    let targets = Targets::of_a_fast_store(Some(4.0));
    let contenders = Contenders::Processes {
        store: "postgres",
        address: &url,
    };
    let clients = [&locks, &other];
    handover::measure(clients, contenders, select, &targets, settings, &mut report).await?;
    Ok(report)
}

async fn measure_all(
    server: &PostgresServer,
    settings: &Settings,
    pool: &PgPool,
    report: &mut StoreReport,
) -> Result<()> {
    let statements = statements::prepared(pool).await?;
    for &tasks in settings.tasks {
        let locks = connected(&server.url(), tasks, PostgresOptions::new()).await?;
        for workload in WORKLOADS {
            tell(&format!("{}, {tasks} tasks", workload.name()));
            let bench = Bench {
                server,
                settings,
                locks: &locks,
                pool,
                pgbench: Pgbench::new(server.port(), tasks, &statements)?,
                tasks,
            };
            bench.load(workload, report).await?;
        }
    }
    tell("asynchronous releases");
    report.comparisons.extend(server::releases(settings).await?);
    tell("many locks");
    report
        .comparisons
        .extend(server::scale(&server.url(), pool, settings).await?);
    Ok(())
}

struct Bench<'a> {
    server: &'a PostgresServer,
    settings: &'a Settings,
    locks: &'a Locks,
    pool: &'a PgPool,
    pgbench: Pgbench<'a>,
    tasks: usize,
}

impl Bench<'_> {
    async fn load(&self, workload: Workload, report: &mut StoreReport) -> Result<()> {
        let (mut ours, mut limits) = (Vec::new(), Vec::new());
        let (mut advisory, mut six) = (Vec::new(), Vec::new());
        let (tasks, span, url) = (self.tasks, self.settings.span, self.server.url());
        let cpu = ServerCpu::of(self.server.pid());
        for _ in 0..self.settings.repetitions {
            empty(self.pool).await?;
            let clients = std::slice::from_ref(self.locks);
            let sample = measure_on(Some(cpu), clients, workload, tasks, span).await?;
            let rate = sample.steps_per_second;
            ours.push(sample);
            empty(self.pool).await?;
            limits.push(self.pgbench.run(workload, rate, span, self.pool).await?);
            if workload == Workload::Pair {
                advisory.push(rivals::advisory(&url, tasks, span).await?);
                empty(self.pool).await?;
                six.push(rivals::six_statements(cpu, &url, tasks, span).await?);
            }
        }
        report.add_load(workload, tasks, &ours, &limits);
        if workload != Workload::Pair {
            return Ok(());
        }
        let pairs = |beside, others: &[Sample], target| {
            let name = format!("acquire and release, {tasks} tasks");
            let runs = side_by_side(&ours, others, |run| Some(run.steps_per_second));
            Comparison::new(name, "pairs/s", beside, &runs, target)
        };
        let acquires = |run: &Sample| Some(1e6 / run.latencies[0].mean_us);
        report.comparisons.extend([
            pairs("pgbench", &limits, Some(Target::AtLeast(0.85)))?,
            pairs("session advisory lock", &advisory, None)?,
            pairs(SIX_STATEMENTS, &six, None)?,
            Comparison::new(
                format!("acquire, {tasks} tasks"),
                "acquires/s of a task",
                "six statements",
                &side_by_side(&ours, &six, acquires),
                Some(Target::AtLeast(4.0)),
            )?,
        ]);
        let server_cpu = side_by_side(&ours, &six, |run| run.server_cpu_us);
        if server_cpu.is_empty() {
            tell("the system does not report the server's CPU time");
            return Ok(());
        }
        report.comparisons.push(Comparison::new(
            format!("server CPU of a pair, {tasks} tasks"),
            "µs",
            SIX_STATEMENTS,
            &server_cpu,
            Some(Target::AtMost(1.0)),
        )?);
        Ok(())
    }
}

/// What the TypeScript original does for a pair.
const SIX_STATEMENTS: &str = "six statements, one DELETE";

async fn connect(url: &str, connections: usize) -> Result<PgPool> {
    let connections = u32::try_from(connections)?;
    Ok(PgPoolOptions::new()
        .max_connections(connections)
        .test_before_acquire(false)
        .connect(url)
        .await?)
}

/// The settings of the store's own sessions, for all that is measured beside it.
const SETTINGS: [(&str, &str); 2] = [("enable_seqscan", "off"), ("jit", "off")];

/// How others connect, so that their sessions are as ours.
fn alike(url: &str) -> Result<PgConnectOptions> {
    Ok(PgConnectOptions::from_str(url)?.options(SETTINGS))
}

/// Locks with their tables, and a connection for each task.
pub(crate) async fn connected(url: &str, tasks: usize, options: PostgresOptions) -> Result<Locks> {
    let options = options.max_connections(u32::try_from(tasks)?);
    let backend = PostgresBackend::connect_with(url, options).await?;
    backend.setup_schema().await?;
    Ok(Locks::new(backend))
}

async fn empty(pool: &PgPool) -> Result<()> {
    raw_sql("TRUNCATE syncguard_locks, syncguard_fence_counters")
        .execute(pool)
        .await?;
    Ok(())
}
