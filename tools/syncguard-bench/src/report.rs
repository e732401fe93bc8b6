//! [`Report`]: all figures, as JSON and as tables in Markdown.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::Settings;
use crate::comparison::{Comparison, Verdict};
use crate::drive::Sample;
use crate::figure::{DISTURBED_ABOVE, Figure, side_by_side};
use crate::machine::{Machine, locked_version};
use crate::table::Table;
use crate::workload::Workload;

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
    /// Of the rates of the runs whose figures these are: ours by the limit's.
    pub(crate) ratio: Option<Figure>,
}

/// The measurements of 16 tasks that run sections under one lock.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Handover {
    /// What the tasks share.
    pub(crate) on: &'static str,
    pub(crate) sections_per_second: Figure,
    /// From asking for the lock until the section begins.
    pub(crate) p50_wait_ms: Figure,
    pub(crate) p99_wait_ms: Figure,
    /// The same in fair shares. A fair share is the time of 16 sections of one task alone.
    pub(crate) p99_fair_shares: Figure,
    /// Jain's index of fairness over the sections of each task, and of each process.
    pub(crate) fairness_of_tasks: Figure,
    pub(crate) fairness_of_processes: Figure,
    /// Calls that gave up, of all.
    pub(crate) gave_up: f64,
    /// Sections per second of one task without contention.
    pub(crate) alone_per_second: Figure,
    /// Sections per second, by those of one task alone.
    pub(crate) ratio: Figure,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) per_second: Option<Figure>,
    pub(crate) mean_us: Option<Figure>,
    /// `None` where only the mean is known.
    pub(crate) p50_us: Option<Figure>,
    pub(crate) p99_us: Option<Figure>,
    /// Of the client, for one operation.
    pub(crate) cpu_us: Option<Figure>,
}

impl Measured {
    /// What runs of an operation show, row by row. A pair's are its rate, and the latency of either half.
    fn rows(workload: Workload, runs: &[Sample]) -> Vec<Self> {
        let of = |figure: &dyn Fn(&Sample) -> Option<f64>| Figure::of(runs.iter().map(figure));
        let rate = Self {
            per_second: of(&|run| Some(run.steps_per_second)),
            cpu_us: of(&|run| run.cpu_us),
            ..Self::default()
        };
        let latency = |kind: usize| Self {
            mean_us: of(&|run| Some(run.latencies[kind].mean_us)),
            p50_us: of(&|run| run.latencies[kind].p50_us),
            p99_us: of(&|run| run.latencies[kind].p99_us),
            ..Self::default()
        };
        if workload == Workload::Pair {
            return vec![rate, latency(0), latency(1)];
        }
        vec![Self {
            per_second: rate.per_second,
            cpu_us: rate.cpu_us,
            ..latency(0)
        }]
    }
}

impl Load {
    /// Whether the runs are too far apart to say anything. Without a limit, its own rate shows that.
    pub(crate) fn is_disturbed(&self) -> bool {
        let rate = self.ratio.or(self.ours.per_second);
        rate.is_some_and(|rate| rate.is_disturbed())
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

    /// The comparisons with this verdict, each after the name of its store.
    pub(crate) fn with(&self, verdict: Verdict) -> Vec<(&'static str, &Comparison)> {
        let stores = self.stores.iter();
        let all = stores.flat_map(|store| store.comparisons.iter().map(|it| (store.store, it)));
        all.filter(|(_, comparison)| comparison.verdict() == Some(verdict))
            .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = || "unknown".to_owned();
        let machine = &self.machine;
        writeln!(
            f,
            "SyncGuard {}; {} cores ({}), {} MiB, Linux {}; load before: {}; medians of {} \
             runs of {} ms, with their spread; disturbed: a spread above {:.0} %",
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
            DISTURBED_ABOVE * 100.0,
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
    /// Adds the runs of an operation by this many tasks, beside those of its limit, if it has one.
    pub(crate) fn add_load(
        &mut self,
        workload: Workload,
        tasks: usize,
        ours: &[Sample],
        limits: &[Sample],
    ) {
        let rates = side_by_side(ours, limits, |run| Some(run.steps_per_second));
        let ratio = Figure::of(rates.iter().map(|(ours, limit)| Some(ours / limit)));
        let names = [workload.name(), "acquire", "release"];
        let sides = Measured::rows(workload, ours)
            .into_iter()
            .zip(Measured::rows(workload, limits));
        for (operation, (ours, limit)) in names.into_iter().zip(sides) {
            self.load.push(Load {
                operation,
                tasks,
                ours,
                limit,
                ratio,
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
            let disturbed = load.is_disturbed();
            let show = |figure| show(figure, disturbed);
            let figures = |measured: &Measured| {
                let p50 = match (measured.p50_us, measured.mean_us) {
                    (None, Some(mean)) if !disturbed => format!("mean {mean}"),
                    (p50, _) => show(p50),
                };
                [show(measured.per_second), p50, show(measured.p99_us)]
            };
            let of_this_row = load.ours.per_second.and(load.ratio);
            let mut row = vec![load.operation.to_owned(), load.tasks.to_string()];
            row.extend(figures(&load.ours));
            row.push(show(load.ours.cpu_us));
            row.extend(figures(&load.limit));
            row.push(
                of_this_row
                    .map(|ratio| ratio.as_ratio())
                    .unwrap_or_default(),
            );
            table.rows.push(row);
        }
        table
    }

    fn comparison_table(&self) -> Table {
        let mut table = Table::new(&[
            "what", "ours", "unit", "beside", "theirs", "ratio", "target",
        ]);
        for comparison in &self.comparisons {
            let disturbed = comparison.ratio.is_disturbed();
            let target = comparison.target.map(|target| match comparison.verdict() {
                Some(Verdict::Missed) => format!("{target} **missed**"),
                _ => target.to_string(),
            });
            table.rows.push(vec![
                comparison.what.clone(),
                show(Some(comparison.ours), disturbed),
                comparison.unit.to_owned(),
                comparison.beside.to_owned(),
                show(Some(comparison.other), disturbed),
                comparison.ratio.as_ratio(),
                target.unwrap_or_default(),
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
            let disturbed = handover.ratio.is_disturbed();
            let show = |figure| show(Some(figure), disturbed);
            let exact = |figure: Figure| match disturbed {
                true => show(figure),
                false => format!("{figure:.3}"),
            };
            table.rows.push(vec![
                format!("in {}", handover.on),
                show(handover.sections_per_second),
                show(handover.p50_wait_ms),
                show(handover.p99_wait_ms),
                show(handover.p99_fair_shares),
                exact(handover.fairness_of_tasks),
                exact(handover.fairness_of_processes),
                format!("{:.1} %", handover.gave_up * 100.0),
                show(handover.alone_per_second),
                handover.ratio.as_ratio(),
            ]);
        }
        table
    }
}

fn show(figure: Option<Figure>, disturbed: bool) -> String {
    match figure {
        Some(_) if disturbed => "disturbed".to_owned(),
        figure => figure.map(|figure| figure.to_string()).unwrap_or_default(),
    }
}
