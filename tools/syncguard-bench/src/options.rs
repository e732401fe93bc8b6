//! The command line. `cargo xtask bench` has it too, and so prints its help without building the bench.

use std::path::PathBuf;

/// Measure what locks cost, beside the limit of each store
///
/// Prints tables in Markdown. Every figure is a median of repetitions that alternate with those of its limit: the same
/// commands sent by redis-benchmark, by pgbench, or by the bare driver. It has its spread beside it, and says
/// `disturbed` if that is too large. It takes about ten minutes, on servers of its own.
#[derive(clap::Parser)]
#[command(name = "cargo xtask bench")]
pub(crate) struct Options {
    /// Stores to measure, separated by commas [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) backend: Vec<Store>,
    /// Write all figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the figures over the number of tasks into this folder, as SVG
    #[arg(long, value_name = "FOLDER")]
    pub(crate) charts: Option<PathBuf>,
    /// Replace the tables of this page by the figures: for each store, what is between
    /// `<!-- bench: STORE -->` and `<!-- /bench -->`
    #[arg(long, value_name = "FILE")]
    pub(crate) tables: Option<PathBuf>,
    /// Measure nothing, and read the figures of an earlier `--json` from this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "quick", "hand_over", "backend"])]
    pub(crate) from: Option<PathBuf>,
    /// Measure only the hand-over: how fast and how fairly waiting tasks get one key
    #[arg(long)]
    pub(crate) hand_over: bool,
    /// Only check that everything runs, in a few seconds: the figures mean nothing, and no target is judged
    #[arg(long, conflicts_with = "check")]
    pub(crate) quick: bool,
    /// Fail if a ratio misses its target, or if the runs are too far apart to say so
    ///
    /// Runs that are too far apart are shown as `disturbed`: the machine was not idle. Then stop other
    /// programs, and measure that store again (`--backend`). If nothing else runs, another program uses
    /// the same processor, as on a shared virtual machine: measure on another one.
    #[arg(long)]
    pub(crate) check: bool,
    /// Be one of the processes that contend for a key of this store
    #[arg(long, value_enum, hide = true, requires_all = ["address", "span_ms"])]
    pub(crate) contend: Option<Store>,
    #[arg(long, hide = true)]
    pub(crate) address: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) span_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Store {
    Redis,
    Postgres,
    Firestore,
    Sqlite,
    Memory,
}
