//! `cargo xtask bench`, as a program: measures what locks cost, beside the limit of each store.
//!
//! Every figure is the median of repetitions that alternate with those of its limit: the same commands on
//! the same payload, sent by the store's own benchmark or by its bare driver. On a machine that also runs
//! other programs, the ratio of the two is reliable, and neither figure alone is. The spread of the ratio shows
//! whether it is, too.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser as _;
use clap::builder::PossibleValuesParser;

mod charts;
mod comparison;
mod drive;
mod figure;
mod firestore;
mod handover;
mod machine;
mod memory;
mod postgres;
mod redis;
mod report;
mod server_cpu;
mod sqlite;
mod table;
mod workload;

use comparison::Verdict;
use report::{Report, StoreReport};
use syncguard_postgres::PostgresOptions;

/// Measures what locks cost, beside the limit of each store
///
/// Prints tables in Markdown. Starts the servers that it needs, and stops them at the end.
#[derive(clap::Parser)]
#[command(name = "cargo xtask bench")]
struct Options {
    /// Stores to measure, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    backend: Vec<String>,
    /// Write all figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the figures over the number of tasks into this folder, as SVG
    #[arg(long, value_name = "FOLDER")]
    charts: Option<PathBuf>,
    /// Replace the tables of this page by the figures: for each store, what is between
    /// `<!-- bench: STORE -->` and `<!-- /bench -->`
    #[arg(long, value_name = "FILE")]
    tables: Option<PathBuf>,
    /// Measure nothing, and read the figures of an earlier `--json` from this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "quick", "hand_over", "backend"])]
    from: Option<PathBuf>,
    /// Measure only the hand-over: how fast and how fairly waiting tasks get one key
    #[arg(long)]
    hand_over: bool,
    /// Only check that everything runs, in a few seconds: the figures mean nothing, and no target is judged
    #[arg(long, conflicts_with = "check")]
    quick: bool,
    /// Fail if a ratio misses its target, or if the runs are too far apart to say so
    ///
    /// Runs that are too far apart are shown as `disturbed`: the machine was not idle. Then stop other
    /// programs, and measure that store again (`--backend`). If nothing else runs, another program uses
    /// the same processor, as on a shared virtual machine: measure on another one.
    #[arg(long)]
    check: bool,
    /// Be one of the processes that contend for a key of this store
    #[arg(long, hide = true, requires_all = ["address", "span_ms"])]
    contend: Option<String>,
    #[arg(long, hide = true)]
    address: Option<String>,
    #[arg(long, hide = true)]
    span_ms: Option<u64>,
}

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

/// A store that is measured.
struct Store {
    name: &'static str,
    measure: fn(&Settings) -> Result<StoreReport>,
}

const STORES: &[Store] = &[
    Store {
        name: "redis",
        measure: redis::measure,
    },
    Store {
        name: "postgres",
        measure: postgres::measure,
    },
    Store {
        name: "firestore",
        measure: firestore::measure,
    },
    Store {
        name: "sqlite",
        measure: sqlite::measure,
    },
    Store {
        name: "memory",
        measure: memory::measure,
    },
];

fn names() -> Vec<&'static str> {
    STORES.iter().map(|store| store.name).collect()
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
    if let Some(store) = &options.contend {
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
    let chosen = STORES.iter().filter(|store| {
        options.backend.is_empty() || options.backend.iter().any(|name| name == store.name)
    });
    let mut report = Report::new(&settings);
    println!("{report}");
    for store in chosen {
        let started = Instant::now();
        eprintln!("==> {}", store.name);
        let mut measured =
            (store.measure)(&settings).with_context(|| format!("{}: not measured", store.name))?;
        if options.quick {
            // One run has no spread, so it would meet or miss a target by chance.
            let comparisons = measured.comparisons.iter_mut();
            comparisons.for_each(|comparison| comparison.target = None);
        }
        print!("{measured}");
        eprintln!("    {}: {:.0?}", store.name, started.elapsed());
        report.stores.push(measured);
    }
    Ok(report)
}

async fn contend(store: &str, address: &str, span: Duration) -> Result<()> {
    let locks = match store {
        "redis" => redis::connected(address).await?,
        "postgres" => postgres::connected(address, 4, PostgresOptions::new()).await?,
        "firestore" => firestore::connect(address).await?,
        "sqlite" => sqlite::connected(address).await?,
        other => bail!("{other} is in one process"),
    };
    handover::contend_as_told(locks, span).await
}

/// A line of progress.
fn tell(what: &str) {
    eprintln!("    {what}");
}
