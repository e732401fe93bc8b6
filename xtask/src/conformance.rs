//! `cargo xtask conformance`: the suite on each store, as a matrix and as JSON.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use syncguard_conformance::{CaseReport, Cause, Mutants, Report, RunOptions, Status, cases};
use syncguard_core::backend::clauses;
use tokio::task::JoinSet;

use crate::Done;
use crate::backends::{Backend, Store, chosen, names, obtain_all};
use crate::tally::Tally;

mod page;

const PROGRESS: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Stores to run it on, separated by commas [default: all]
    ///
    /// A named store that cannot be started is a failure.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    backend: Vec<String>,
    /// Write a JSON report to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the report as a page to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Run only the cases whose name contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
}

/// The result of the suite on one store.
#[derive(Serialize)]
struct Column {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// The clauses that the run proves.
    proven: Vec<&'static str>,
    /// The clauses that the run does not prove.
    unproven: Vec<&'static str>,
    /// The clauses that are probably broken, likeliest first.
    causes: Vec<Cause>,
    /// The strength of the run; `None` if it did not run.
    mutants: Option<Mutants>,
    /// Why it could not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    cases: Vec<CaseReport>,
}

#[derive(Serialize)]
struct Document<'a> {
    backends: BTreeMap<&'static str, &'a Column>,
}

type Matrix = Vec<(&'static Backend, Column)>;

pub(crate) fn run(options: &Options) -> Done {
    if let Some(part) = &options.filter {
        let matches = cases().iter().any(|case| case.name.contains(part));
        ensure!(matches, "no case has `{part}` in its name");
    }
    let stores = obtain_all(&chosen(&options.backend));
    let matrix = matrix_of(&stores, options.filter.as_deref())?;
    if let Some(path) = &options.html {
        fs::write(path, page::page(&matrix))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &options.report {
        let backends = matrix
            .iter()
            .map(|(backend, column)| (backend.name, column));
        let document = Document {
            backends: backends.collect(),
        };
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        serde_json::to_writer_pretty(BufWriter::new(file), &document)?;
    }
    let tally = tally(&matrix);
    println!("{tally}");
    Ok(tally.conclusion())
}

/// Runs the cases with this in their names on these stores and prints the matrix.
pub(crate) fn run_on(stores: &[Store], part: &str) -> Result<Tally> {
    Ok(tally(&matrix_of(stores, Some(part))?))
}

fn matrix_of(stores: &[Store], filter: Option<&str>) -> Result<Matrix> {
    let runtime = tokio::runtime::Runtime::new()?;
    let matrix = runtime.block_on(run_suites(stores, filter));
    print(&matrix);
    Ok(matrix)
}

fn tally(matrix: &Matrix) -> Tally {
    matrix.iter().map(|(_, column)| column.tally()).sum()
}

async fn run_suites(stores: &[Store], filter: Option<&str>) -> Matrix {
    let started = Instant::now();
    let done = Arc::new(AtomicUsize::new(0));
    let mut suites = JoinSet::new();
    let mut matrix = Matrix::new();
    for (backend, store) in stores {
        let (backend, name) = (*backend, backend.name);
        let store = match store {
            Ok(store) => store,
            Err(error) => {
                matrix.push((backend, Column::broken(error)));
                continue;
            }
        };
        let done = Arc::clone(&done);
        let mut options = RunOptions::new().on_case(move |case| {
            done.fetch_add(1, Ordering::Relaxed);
            if case.status == Status::Failed {
                eprintln!("    {name}: {} failed", case.name);
            }
        });
        if let Some(part) = filter {
            options = options.filter(part);
        }
        let suite = (backend.conformance)(store.address.clone(), options);
        suites.spawn(async move { (backend, suite.await) });
    }
    let mut chosen = cases();
    chosen.retain(|case| filter.is_none_or(|part| case.name.contains(part)));
    eprintln!("==> {} cases on {} stores", chosen.len(), suites.len());
    let mut progress = tokio::time::interval_at((started + PROGRESS).into(), PROGRESS);
    loop {
        tokio::select! {
            suite = suites.join_next() => match suite {
                None => break,
                Some(Ok((backend, report))) => matrix.push((backend, report.into())),
                Some(Err(error)) => eprintln!("    a suite broke off: {error}"),
            },
            _ = progress.tick() => eprintln!(
                "    {:.0?}: {} cases done, {} stores to go",
                started.elapsed(),
                done.load(Ordering::Relaxed),
                suites.len()
            ),
        }
    }
    // A case that broke off is missing from the report: it counts as failed, like one that never started.
    for (backend, _) in stores {
        if !matrix.iter().any(|(done, _)| done.name == backend.name) {
            matrix.push((backend, Column::broken(&anyhow::anyhow!("it broke off"))));
        }
    }
    matrix.sort_by_key(|(backend, _)| stores.iter().position(|(of, _)| of.name == backend.name));
    matrix
}

impl Column {
    fn broken(error: &anyhow::Error) -> Self {
        Self {
            passed: 0,
            failed: 1,
            skipped: 0,
            proven: Vec::new(),
            unproven: clauses().into_iter().map(|clause| clause.id).collect(),
            causes: Vec::new(),
            mutants: None,
            error: Some(format!("{error:#}")),
            cases: Vec::new(),
        }
    }

    fn tally(&self) -> Tally {
        Tally {
            passed: self.passed,
            failed: self.failed,
            skipped: self.skipped,
        }
    }
}

impl From<Result<Report>> for Column {
    fn from(report: Result<Report>) -> Self {
        match report {
            Ok(report) => Self {
                passed: report.passed,
                failed: report.failed,
                skipped: report.skipped,
                proven: report.proven,
                unproven: report.unproven,
                causes: report.causes,
                mutants: Some(report.mutants),
                error: None,
                cases: report.cases,
            },
            Err(error) => Self::broken(&error),
        }
    }
}

/// One row per case, one column per store, then what failed and what was skipped, with reasons.
fn print(matrix: &Matrix) {
    const CELL: usize = 16;
    let rows: Vec<_> = cases()
        .into_iter()
        .filter(|case| {
            matrix
                .iter()
                .any(|(_, column)| column.case(case.name).is_some())
        })
        .collect();
    let width = |lengths: &dyn Fn(&syncguard_conformance::CaseInfo) -> usize| {
        rows.iter().map(lengths).max().unwrap_or_default()
    };
    let name = width(&|case| case.name.len());
    let clauses = width(&|case| case.clauses.join(" ").len());

    let heads: String = matrix
        .iter()
        .map(|(backend, _)| format!("  {:<CELL$}", backend.name))
        .collect();
    println!(
        "{:<name$}  {:<clauses$}{}",
        "case",
        "proves",
        heads.trim_end()
    );
    for case in &rows {
        let cells: String = matrix
            .iter()
            .map(|(_, column)| match column.case(case.name) {
                Some(case) => format!("  {:<7} {:>5} ms", case.status, case.ms),
                None => format!("  {:<CELL$}", "-"),
            })
            .collect();
        let proves = case.clauses.join(" ");
        println!(
            "{:<name$}  {proves:<clauses$}{}",
            case.name,
            cells.trim_end()
        );
    }
    println!();
    for (backend, column) in matrix {
        if let Some(error) = &column.error {
            println!("{}: failed: {error}", backend.name);
        }
        for cause in &column.causes {
            let Cause { clause, text, .. } = cause;
            println!("{}: probably broken: {clause} {text}", backend.name);
            for name in &cause.cases {
                let case = column.case(name).and_then(|case| case.detail.as_deref());
                println!("    {name}: {}", case.unwrap_or_default());
            }
        }
        let skipped = |case: &&CaseReport| case.status == Status::Skipped;
        for case in column.cases.iter().filter(skipped) {
            let detail = case.detail.as_deref().unwrap_or_default();
            println!("{}: not run: {}: {detail}", backend.name, case.name);
            if !case.leaves_open.is_empty() {
                println!(
                    "    known faults that it detects: {}",
                    case.leaves_open.join("; ")
                );
            }
        }
    }
    for (backend, column) in matrix {
        print!("{}: {}", backend.name, column.tally());
        print!("; {} clauses proven", column.proven.len());
        if let Some(mutants) = &column.mutants {
            let Mutants { caught, known, .. } = mutants;
            print!("; {caught} of {known} known faults would have been detected");
        }
        match column.unproven.as_slice() {
            [] => println!(),
            open => println!("; clauses not proven: {}", open.join(" ")),
        }
    }
}

impl Column {
    fn case(&self, name: &str) -> Option<&CaseReport> {
        self.cases.iter().find(|case| case.name == name)
    }
}
