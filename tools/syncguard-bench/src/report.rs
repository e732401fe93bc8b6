//! [`Report`]: all figures, as JSON and as tables in Markdown.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::Settings;
use super::drive::{Latency, Sample};
use super::handover::Handover;
use super::machine::{Machine, locked_version};
use super::workload::Operation;

#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
pub(crate) struct Report {
    syncguard: String,
    machine: Machine,
    repetitions: usize,
    span_ms: u64,
    pub(crate) stores: Vec<StoreReport>,
}

/// The measurements of one store.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoreReport {
    pub(crate) store: &'static str,
    /// The versions of the server, the driver, and the programs that they are compared with.
    #[serde(borrow)]
    pub(crate) versions: BTreeMap<&'static str, String>,
    /// The program that sent the same commands to the same store.
    pub(crate) limit: &'static str,
    pub(crate) load: Vec<Load>,
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) handover: Vec<Handover>,
}

/// An operation by this many concurrent tasks, and its limit.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) operation: &'static str,
    pub(crate) tasks: usize,
    pub(crate) ours: Measured,
    pub(crate) limit: Measured,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) per_second: Option<f64>,
    pub(crate) latency: Option<Latency>,
    /// Of the client, for one operation.
    pub(crate) cpu_us: Option<f64>,
}

impl Measured {
    /// What a sample of an operation shows, row by row: those of a pair are its rate, and the latency
    /// of either half.
    pub(crate) fn rows(operation: Operation, sample: &Sample) -> Vec<Self> {
        if operation == Operation::Pair {
            Self::pair(sample).into()
        } else {
            vec![Self::single(sample)]
        }
    }

    /// As of another program, whose CPU is not measured.
    pub(crate) fn without_cpu(self) -> Self {
        Self {
            cpu_us: None,
            ..self
        }
    }

    /// Steps of one operation each.
    fn single(sample: &Sample) -> Self {
        Self {
            per_second: Some(sample.steps_per_second),
            latency: Some(sample.latencies[0]),
            cpu_us: Some(sample.cpu_us),
        }
    }

    /// Steps of two operations: their rate, and each one's latency.
    fn pair(sample: &Sample) -> [Self; 3] {
        let latency = |kind: usize| Self {
            latency: Some(sample.latencies[kind]),
            ..Self::default()
        };
        let rate = Self {
            per_second: Some(sample.steps_per_second),
            latency: None,
            cpu_us: Some(sample.cpu_us),
        };
        [rate, latency(0), latency(1)]
    }
}

/// Two figures and their ratio.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: f64,
    pub(crate) beside: &'static str,
    pub(crate) other: f64,
    /// Ours by the other.
    pub(crate) ratio: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<Target>,
}

/// The target of a ratio.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Comparison {
    pub(crate) fn new(
        what: impl Into<String>,
        unit: &'static str,
        ours: f64,
        (beside, other): (&'static str, f64),
        target: Option<Target>,
    ) -> Self {
        Self {
            what: what.into(),
            unit,
            ours,
            beside,
            other,
            ratio: ours / other,
            target,
        }
    }

    fn is_met(&self) -> Option<bool> {
        Some(match self.target? {
            Target::AtLeast(bound) => self.ratio >= bound,
            Target::AtMost(bound) => self.ratio <= bound,
        })
    }
}

impl Report {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            syncguard: locked_version("syncguard-core"),
            machine: Machine::this(),
            repetitions: settings.repetitions,
            span_ms: u64::try_from(settings.span.as_millis()).unwrap_or(u64::MAX),
            stores: Vec::new(),
        }
    }

    /// Reads the figures that `--json` wrote. Their names live as long as the process.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let read = || -> Result<Self> {
            let text = std::fs::read_to_string(path)?;
            Ok(serde_json::from_str(text.leak())?)
        };
        read().with_context(|| format!("cannot read {}", path.display()))
    }

    /// Replaces the tables of a page: those of each measured store, between its markers.
    pub(crate) fn write_tables(&self, page: &Path) -> Result<()> {
        const END: &str = "<!-- /bench -->";
        let name = page.display();
        let read = std::fs::read_to_string(page);
        let mut text = read.with_context(|| format!("cannot read {name}"))?;
        for store in &self.stores {
            let begin = format!("<!-- bench: {} -->", store.store);
            let parts = text.split_once(&begin);
            let (before, rest) = parts.with_context(|| format!("{name} has no {begin}"))?;
            let parts = rest.split_once(END);
            let (_, after) = parts.with_context(|| format!("{name} has no {END} after {begin}"))?;
            text = format!("{before}{begin}\n{store}{self}{END}{after}");
        }
        std::fs::write(page, text).with_context(|| format!("cannot write {name}"))
    }

    pub(crate) fn met(&self) -> usize {
        self.count(true)
    }

    pub(crate) fn missed(&self) -> usize {
        self.count(false)
    }

    fn count(&self, met: bool) -> usize {
        let all = self.stores.iter().flat_map(|store| &store.comparisons);
        all.filter(|comparison| comparison.is_met() == Some(met))
            .count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = || "unknown".to_owned();
        let machine = &self.machine;
        writeln!(
            f,
            "SyncGuard {}; {} cores ({}), {} MiB, Linux {}; load before: {}; medians of {} \
             runs of {} ms",
            self.syncguard,
            machine.cores,
            machine.processor.clone().unwrap_or_else(unknown),
            machine
                .memory_mib
                .map_or_else(unknown, |mib| mib.to_string()),
            machine.kernel.clone().unwrap_or_else(unknown),
            machine
                .load_before
                .map_or_else(unknown, |load| load.to_string()),
            self.repetitions,
            self.span_ms,
        )
    }
}

impl fmt::Display for StoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n### {}\n", self.store)?;
        let versions: Vec<_> = self
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}. "))
            .collect();
        writeln!(f, "{}Limit: {}.\n", versions.concat(), self.limit)?;
        self.load_table().fmt(f)?;
        self.comparison_table().fmt(f)?;
        self.handover_table().fmt(f)
    }
}

impl StoreReport {
    /// Adds the measurements of an operation by this many tasks, beside the rows of its limit.
    pub(crate) fn add_load(
        &mut self,
        operation: Operation,
        tasks: usize,
        ours: &Sample,
        limits: impl IntoIterator<Item = Measured>,
    ) {
        let names = [operation.name(), "acquire", "release"];
        let rows = names.into_iter().zip(Measured::rows(operation, ours));
        for ((operation, ours), limit) in rows.zip(limits) {
            self.load.push(Load {
                operation,
                tasks,
                ours,
                limit,
            });
        }
    }

    fn load_table(&self) -> Table {
        let mut table = Table::new(&[
            "operation",
            "tasks",
            "per second",
            "p50 µs",
            "p99 µs",
            "CPU µs",
            "limit",
            "p50 µs",
            "p99 µs",
            "ratio",
        ]);
        for load in &self.load {
            let figures = |measured: &Measured| {
                let latency = measured.latency;
                let p50 = latency.map(|latency| match latency.p50_us {
                    None => format!("mean {}", show(Some(latency.mean_us))),
                    p50 => show(p50),
                });
                [
                    show(measured.per_second),
                    p50.unwrap_or_default(),
                    show(latency.and_then(|latency| latency.p99_us)),
                ]
            };
            let ratio = match (load.ours.per_second, load.limit.per_second) {
                (Some(ours), Some(limit)) => format!("{:.2}", ours / limit),
                _ => String::new(),
            };
            let mut row = vec![load.operation.to_owned(), load.tasks.to_string()];
            row.extend(figures(&load.ours));
            row.push(show(load.ours.cpu_us));
            row.extend(figures(&load.limit));
            row.push(ratio);
            table.rows.push(row);
        }
        table
    }

    fn comparison_table(&self) -> Table {
        let mut table = Table::new(&[
            "what", "ours", "unit", "beside", "theirs", "ratio", "target",
        ]);
        for comparison in &self.comparisons {
            let target = match (comparison.target, comparison.is_met()) {
                (Some(target), Some(met)) => {
                    let (sign, bound) = match target {
                        Target::AtLeast(bound) => ('≥', bound),
                        Target::AtMost(bound) => ('≤', bound),
                    };
                    format!("{sign} {bound:.2}{}", if met { "" } else { " **missed**" })
                }
                _ => String::new(),
            };
            table.rows.push(vec![
                comparison.what.clone(),
                show(Some(comparison.ours)),
                comparison.unit.to_owned(),
                comparison.beside.to_owned(),
                show(Some(comparison.other)),
                format!("{:.2}", comparison.ratio),
                target,
            ]);
        }
        table
    }

    fn handover_table(&self) -> Table {
        let mut table = Table::new(&[
            "16 tasks, one key, 1 ms",
            "sections/s",
            "p50 wait ms",
            "p99 wait ms",
            "fair shares",
            "Jain, tasks",
            "Jain, processes",
            "gave up",
            "one alone/s",
            "ratio",
        ]);
        for handover in &self.handover {
            let ratio = handover.sections_per_second / handover.alone_per_second;
            table.rows.push(vec![
                format!("in {}", handover.on),
                show(Some(handover.sections_per_second)),
                show(Some(handover.p50_wait_ms)),
                show(Some(handover.p99_wait_ms)),
                show(Some(handover.p99_fair_shares)),
                format!("{:.3}", handover.fairness_of_tasks),
                format!("{:.3}", handover.fairness_of_processes),
                format!("{:.1} %", handover.gave_up * 100.0),
                show(Some(handover.alone_per_second)),
                format!("{ratio:.2}"),
            ]);
        }
        table
    }
}

fn show(figure: Option<f64>) -> String {
    match figure {
        None => String::new(),
        Some(figure) if figure >= 100.0 => format!("{figure:.0}"),
        Some(figure) if figure >= 10.0 => format!("{figure:.1}"),
        Some(figure) => format!("{figure:.2}"),
    }
}

/// A table in Markdown, its columns aligned. Without rows it is nothing.
struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Self {
        Self {
            head: head.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return Ok(());
        }
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&self.head]);
            let lengths = cells.map(|row| row[column].chars().count());
            lengths.max().unwrap_or_default()
        };
        let widths: Vec<_> = (0..self.head.len()).map(width).collect();
        let line = |cells: &[String]| -> String {
            let padded = cells.iter().zip(&widths).enumerate();
            let padded = padded.map(|(column, (cell, width))| match column {
                0 => format!("| {cell:<width$} "),
                _ => format!("| {cell:>width$} "),
            });
            padded.collect::<String>() + "|"
        };
        writeln!(f, "{}", line(&self.head))?;
        let rules: Vec<_> = widths
            .iter()
            .enumerate()
            .map(|(column, width)| match column {
                0 => "-".repeat(*width),
                _ => "-".repeat(width - 1) + ":",
            })
            .collect();
        writeln!(f, "{}", line(&rules))?;
        for row in &self.rows {
            writeln!(f, "{}", line(row))?;
        }
        writeln!(f)
    }
}
