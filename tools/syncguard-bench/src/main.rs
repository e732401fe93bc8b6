//! `cargo xtask bench`, as a program: measures what locks cost, beside the limit of each store.
//!
//! Every figure is the median of repetitions that alternate with those of its limit: the same commands on
//! the same payload, sent by the store's own benchmark or by its bare driver. On a machine that also runs
//! other programs, the ratio of the two is reliable, and neither figure alone is. The spread of the ratio shows
//! whether it is, too.

use std::fs::File;
use std::io::BufWriter;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser as _, ValueEnum as _};

mod charts;
mod comparison;
mod drive;
mod figure;
mod firestore;
mod handover;
mod machine;
mod memory;
mod options;
mod postgres;
mod redis;
mod report;
mod server_cpu;
mod sqlite;
mod table;
mod workload;

use comparison::Verdict;
use options::{Options, Store};
use report::{Report, StoreReport};
use syncguard_postgres::PostgresOptions;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Settings {
    /// How often each figure is measured; the median counts.
    repetitions: usize,
    /// How long one measurement lasts.
    span: Duration,
    /// How many tasks use one client at the same time.
    tasks: &'static [usize],
    /// How many small samples a repetition has where the server counts its own time.
    batches: u32,
    /// Locks held in the store whose cost is compared with that of one which holds next to none.
    many_locks: u32,
    /// Nothing but the hand-over is measured.
    only_hand_over: bool,
}

const FULL: Settings = Settings {
    repetitions: 5,
    span: Duration::from_millis(500),
    tasks: &[1, 16, 64],
    batches: 30,
    many_locks: 1_000_000,
    only_hand_over: false,
};

const QUICK: Settings = Settings {
    repetitions: 1,
    span: Duration::from_millis(50),
    tasks: &[1, 16],
    batches: 2,
    many_locks: 2_000,
    only_hand_over: false,
};

impl Store {
    fn measure(self, settings: &Settings) -> Result<StoreReport> {
        match self {
            Self::Redis => redis::measure(settings),
            Self::Postgres => postgres::measure(settings),
            Self::Firestore => firestore::measure(settings),
            Self::Sqlite => sqlite::measure(settings),
            Self::Memory => memory::measure(settings),
        }
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(passed) if passed => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether the run passed: with `--check`, whether every target was met.
fn run(options: &Options) -> Result<bool> {
    if let Some(store) = options.contend {
        let address = options.address.as_deref().unwrap_or_default();
        let span = Duration::from_millis(options.span_ms.unwrap_or_default());
        tokio::runtime::Runtime::new()?.block_on(contend(store, address, span))?;
        return Ok(true);
    }
    let report = match &options.from {
        Some(path) => Report::read(path)?,
        None => measure(options)?,
    };
    if let Some(folder) = &options.charts {
        for store in &report.stores {
            charts::draw(store, folder)?;
        }
    }
    if let Some(path) = &options.json {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        serde_json::to_writer_pretty(BufWriter::new(file), &report)?;
    }
    if let Some(page) = &options.tables {
        report.write_tables(page)?;
    }
    if options.quick {
        return Ok(true);
    }
    let [met, missed, disturbed] =
        [Verdict::Met, Verdict::Missed, Verdict::Disturbed].map(|verdict| report.with(verdict));
    println!(
        "targets: {} met, {} missed, {} disturbed",
        met.len(),
        missed.len(),
        disturbed.len()
    );
    if options.check {
        for (store, comparison) in missed.iter().chain(&disturbed) {
            eprintln!("not met: {store}: {comparison}");
        }
        if !disturbed.is_empty() {
            eprintln!(
                "error: the machine was not idle, so some targets are neither met nor missed; \
                 see --check in --help"
            );
        }
    }
    Ok(missed.is_empty() && disturbed.is_empty() || !options.check)
}

/// Measures the chosen stores, and prints the tables of each as soon as it is measured.
fn measure(options: &Options) -> Result<Report> {
    let settings = Settings {
        only_hand_over: options.hand_over,
        ..if options.quick { QUICK } else { FULL }
    };
    let all = Store::value_variants().iter();
    let chosen = all.filter(|store| options.backend.is_empty() || options.backend.contains(store));
    let mut report = Report::new(&settings);
    println!("{report}");
    for store in chosen {
        let started = Instant::now();
        eprintln!("==> {store:?}");
        let measured = store.measure(&settings);
        let mut measured = measured.with_context(|| format!("{store:?}: not measured"))?;
        if options.quick {
            // One run has no spread, so it would meet or miss a target by chance.
            let comparisons = measured.comparisons.iter_mut();
            comparisons.for_each(|comparison| comparison.target = None);
        }
        print!("{measured}");
        eprintln!("    {store:?}: {:.0?}", started.elapsed());
        report.stores.push(measured);
    }
    Ok(report)
}

async fn contend(store: Store, address: &str, span: Duration) -> Result<()> {
    let locks = match store {
        Store::Redis => redis::connected(address).await?,
        Store::Postgres => postgres::connected(address, 4, PostgresOptions::new()).await?,
        Store::Firestore => firestore::connect(address).await?,
        Store::Sqlite => sqlite::connected(address).await?,
        Store::Memory => bail!("memory is in one process"),
    };
    handover::contend_as_told(locks, span).await
}

/// A line of progress.
fn tell(what: &str) {
    eprintln!("    {what}");
}
