//! SQLite: locks on a file, beside the same statements by the bare driver, and beside other locks on one
//! machine.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqlSafeStr as _, SqlStr, SqliteConnection};
use syncguard_core::{LockId, Locks};
use syncguard_sqlite::{SqliteBackend, SqliteOptions, Synchronous};
use tokio::sync::Mutex;

use crate::comparison::{Comparison, Target};
use crate::drive::{Stopwatch, Worker, drive};
use crate::figure::side_by_side;
use crate::handover::{self, Bounds, Contenders, Targets};
use crate::machine::locked_version;
use crate::report::StoreReport;
use crate::workload::{TTL, WORKLOADS, Workload, key_text};
use crate::{Settings, tell, workload};

/// How the backend fills in its statements.
#[path = "../../../crates/syncguard-sqlite/src/wire/template.rs"]
mod template;

/// Statements as the backend sends them, in one text.
macro_rules! transaction {
    ($begin:literal, $file:literal) => {{
        let template = include_str!(concat!("sqlite/ours/", $file));
        let body = template::fill_in(template, &"locks", &"fences");
        AssertSqlSafe(format!("{}; {body}; COMMIT", $begin)).into_sql_str()
    }};
}

const NOTHING: &str = "BEGIN EXCLUSIVE; COMMIT";

/// Other processes look every 5 ms whether the key is free, so they lose more time and more races.
const TARGETS: Targets = Targets {
    all: Bounds {
        sections: 0.75,
        wait: 6.5,
        fairness: 0.85,
    },
    ..Targets::of_a_fast_store(None)
};

pub(crate) fn measure(settings: &Settings) -> Result<StoreReport> {
    tokio::runtime::Runtime::new()?.block_on(all(settings))
}

pub(crate) async fn connected(path: &str) -> Result<Locks> {
    Ok(Locks::new(SqliteBackend::connect(path).await?))
}

async fn all(settings: &Settings) -> Result<StoreReport> {
    let folder = tempfile::tempdir()?;
    let mut report = StoreReport {
        store: "sqlite",
        versions: [("sqlx", locked_version("sqlx"))].into(),
        limit: "the same statements by the bare driver, on one connection",
        load: Vec::new(),
        comparisons: Vec::new(),
        handover: Vec::new(),
    };
    if !settings.only_hand_over {
        for durable in [true, false] {
            pairs(folder.path(), durable, settings, &mut report).await?;
        }
    }
    let path = folder.path().join("hand-over.db");
    let path = path.to_str().context("the temporary folder is not UTF-8")?;
    let (locks, other) = (connected(path).await?, connected(path).await?);
    let contenders = Contenders::Processes {
        store: "sqlite",
        address: path,
    };
    let (clients, nothing) = ([&locks, &other], async || Ok(()));
    handover::measure(
        clients,
        contenders,
        nothing,
        &TARGETS,
        settings,
        &mut report,
    )
    .await?;
    Ok(report)
}

/// Measures with every commit on the disk before it is answered, or only in the operating system.
async fn pairs(
    folder: &Path,
    durable: bool,
    settings: &Settings,
    report: &mut StoreReport,
) -> Result<()> {
    let (synchronous, of_the_driver, name) = match durable {
        true => (Synchronous::Full, SqliteSynchronous::Full, "durable"),
        false => (
            Synchronous::Normal,
            SqliteSynchronous::Normal,
            "not durable",
        ),
    };
    let file = |whose: &str| folder.join(format!("{whose}, {name}.db"));
    let options = SqliteOptions::new().synchronous(synchronous);
    let locks = Locks::new(SqliteBackend::connect_with(file("ours"), options).await?);
    let bare = SqliteConnectOptions::new()
        .filename(file("bare"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(of_the_driver);
    let mut connection = SqliteConnection::connect_with(&bare).await?;
    let tables = transaction!("BEGIN", "schema.sql");
    sqlx::query(tables).execute(&mut connection).await?;
    let connection = Arc::new(Mutex::new(connection));
    let measured = |workload: &Workload| durable || *workload == Workload::Pair;
    for workload in WORKLOADS.into_iter().filter(measured) {
        for &tasks in settings.tasks {
            tell(&format!("{}, {name}, {tasks} tasks", workload.name()));
            let (mut ours, mut limits) = (Vec::new(), Vec::new());
            for _ in 0..settings.repetitions {
                let span = settings.span;
                ours.push(workload::measure(&locks, workload, tasks, span).await?);
                if workload == Workload::Pair {
                    let bare = (0..tasks).map(|task| Bare::new(&connection, task));
                    limits.push(drive(bare.collect(), span).await?);
                }
            }
            if workload == Workload::Pair {
                report.comparisons.push(Comparison::new(
                    format!("acquire and release, {name}, {tasks} tasks"),
                    "pairs/s",
                    "the bare driver",
                    &side_by_side(&ours, &limits, |run| Some(run.steps_per_second)),
                    Some(Target::AtLeast(0.8)),
                )?);
            }
            if durable {
                report.add_load(workload, tasks, &ours, &limits);
            }
        }
    }
    if !durable {
        others(folder, &locks, &connection, settings, report).await?;
    }
    locks.close().await?;
    Ok(())
}

/// Adds locks that hold a file for a moment, without a lease and a fence.
async fn others(
    folder: &Path,
    locks: &Locks,
    connection: &Arc<Mutex<SqliteConnection>>,
    settings: &Settings,
    report: &mut StoreReport,
) -> Result<()> {
    let file = Arc::new(File::create(folder.join("flock"))?);
    let (mut ours, mut exclusive, mut flock) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..settings.repetitions {
        let span = settings.span;
        ours.push(workload::measure(locks, Workload::Pair, 1, span).await?);
        exclusive.push(drive(vec![Exclusive(Arc::clone(connection))], span).await?);
        flock.push(drive(vec![Flock(Arc::clone(&file))], span).await?);
    }
    for (what, samples) in [("BEGIN EXCLUSIVE", exclusive), ("flock", flock)] {
        report.comparisons.push(Comparison::new(
            "acquire and release, not durable, 1 tasks",
            "pairs/s",
            what,
            &side_by_side(&ours, &samples, |run| Some(run.steps_per_second)),
            None,
        )?);
    }
    Ok(())
}

struct Bare {
    connection: Arc<Mutex<SqliteConnection>>,
    look: SqlStr,
    acquire: SqlStr,
    release: SqlStr,
    task: usize,
    next: u64,
}

impl Bare {
    fn new(connection: &Arc<Mutex<SqliteConnection>>, task: usize) -> Self {
        Self {
            connection: Arc::clone(connection),
            look: transaction!("BEGIN", "acquire_look.sql"),
            acquire: transaction!("BEGIN IMMEDIATE", "acquire.sql"),
            release: transaction!("BEGIN IMMEDIATE", "release.sql"),
            task,
            next: 0,
        }
    }
}

impl Worker for Bare {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        self.next = (self.next + 1) % 100;
        let key = key_text(self.task, self.next);
        let id = LockId::generate()?.as_str().to_owned();
        let ttl = i64::try_from(TTL.as_millis())?;
        // All rows: before the last one is fetched, nothing is committed.
        let take = async {
            let mut connection = self.connection.lock().await;
            let look = sqlx::query(self.look.clone()).bind(&id).bind(&key);
            let found = look.fetch_all(&mut *connection).await?;
            let acquire = sqlx::query(self.acquire.clone());
            let acquire = acquire.bind(&id).bind(&key).bind(&key).bind(ttl).bind(&key);
            anyhow::Ok((
                found.is_empty(),
                word(&acquire.fetch_all(&mut *connection).await?)?,
            ))
        };
        let (free, taken) = watch.time(0, take).await?;
        ensure!(free && taken == "granted", "a key of the bench is held");
        let release = async {
            let mut connection = self.connection.lock().await;
            let release = sqlx::query(self.release.clone()).bind(&id);
            word(&release.fetch_all(&mut *connection).await?)
        };
        let freed = watch.time(1, release).await?;
        ensure!(freed == "released", "a key was not held");
        Ok(())
    }
}

fn word(rows: &[SqliteRow]) -> Result<String> {
    let row = rows.first().context("no reply")?;
    Ok(row.try_get("word")?)
}

struct Exclusive(Arc<Mutex<SqliteConnection>>);

impl Worker for Exclusive {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        let mut connection = self.0.lock().await;
        watch
            .time(0, sqlx::query(NOTHING).execute(&mut *connection))
            .await?;
        Ok(())
    }
}

struct Flock(Arc<File>);

impl Worker for Flock {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        watch.time(0, async { self.0.lock() }).await?;
        self.0.unlock()?;
        // As a task that waits for its store would.
        tokio::task::yield_now().await;
        Ok(())
    }
}
