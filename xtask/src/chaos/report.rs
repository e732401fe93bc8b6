//! The figures of a run, and its result.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;

use anyhow::Result;
use syncguard_chaos::{Call, Fault, History, Response, Violation};

use super::Settings;
use super::faults::Blow;
use super::store::Store;
use super::worker::Finished;
use crate::step::workspace;
use crate::{Conclusion, Done};

/// A run with fewer kinds of faults proves nothing, unless the store has fewer kinds.
const LEAST_KINDS: usize = 3;

pub(super) struct Report<'a> {
    pub(super) store: &'a Store,
    pub(super) settings: Settings,
    pub(super) history: &'a History,
    pub(super) workers: &'a [Finished],
    pub(super) blows: &'a [Blow],
    pub(super) violations: &'a [Violation],
}

/// Prints the figures, and on failure how to repeat the run.
pub(super) fn report(report: &Report<'_>) -> Done {
    let workers = report.workers.iter();
    let mut failures: Vec<_> = workers
        .filter_map(|worker| worker.failure.clone())
        .collect();
    let struck = report.struck();
    if struck.len() < LEAST_KINDS.min(report.store.faults.len()) {
        failures.push(format!("only {} kinds of fault struck", struck.len()));
    }
    for number in report.never_back() {
        failures.push(format!(
            "worker {number} got no answer after the last fault"
        ));
    }
    if !report.violations.is_empty() {
        failures.push("no legal history explains what was seen".to_owned());
    }

    // Other stores may be reported at the same time.
    let _lines = io::stdout().lock();
    println!("{}: {}", report.store.name, report.calls());
    let faults: Vec<_> = struck
        .iter()
        .map(|(fault, times)| format!("{fault} {times}"))
        .collect();
    println!("  faults that struck: {}", faults.join(", "));
    println!(
        "  outcomes unknown: {}; violations: {}",
        report.count(|response| *response == Response::Unknown),
        report.violations.len()
    );
    for (violation, number) in report.violations.iter().zip(1..) {
        println!("{violation}");
        let picture = report.draw(violation, number)?;
        println!("  as a picture: {}", picture.display());
    }
    if failures.is_empty() {
        // Otherwise a worker would have failed.
        println!("  telemetry: one event for each call");
        return Ok(Conclusion::Passed);
    }
    println!("  FAILED: {}", failures.join("; "));
    println!("  all calls: {}", report.save()?.display());
    println!("  the same faults again: {}", report.command());
    Ok(Conclusion::Failed)
}

impl Report<'_> {
    fn calls(&self) -> String {
        let counts = [
            (
                "granted",
                self.count(|o| matches!(o, Response::Granted { .. })),
            ),
            ("locked", self.count(|o| *o == Response::Locked)),
            (
                "extended",
                self.count(|o| matches!(o, Response::Extended { .. })),
            ),
            ("released", self.count(|o| *o == Response::Released)),
            ("not held", self.count(|o| *o == Response::NotHeld)),
            ("failed", self.count(|o| *o == Response::Failed)),
        ];
        let counts: Vec<_> = counts.map(|(what, count)| format!("{count} {what}")).into();
        let total = self.history.calls.len();
        let processes = self.workers.len();
        format!(
            "{total} calls by {processes} processes: {}",
            counts.join(", ")
        )
    }

    fn count(&self, is: impl Fn(&Response) -> bool) -> usize {
        let calls = self.history.calls.iter();
        calls.filter(|call| is(&call.response)).count()
    }

    /// How often each kind of fault affected a call.
    fn struck(&self) -> BTreeMap<Fault, usize> {
        let mut struck = BTreeMap::new();
        for blow in self.blows {
            let under_way = |call: &Call| {
                call.invoked_us <= blow.to_us
                    && call
                        .returned_us
                        .is_none_or(|returned| returned >= blow.from_us)
            };
            // Includes calls of killed workers, but not the reads at the end.
            let mut calls = self.history.calls.iter().filter(|call| call.client != 0);
            if blow.struck(calls.any(under_way)) {
                *struck.entry(blow.fault).or_default() += 1;
            }
        }
        struck
    }

    /// The workers that got no reply in the pause after the faults.
    fn never_back(&self) -> BTreeSet<usize> {
        let last_us = self.blows.iter().map(|blow| blow.to_us).max().unwrap_or(0);
        let answered = |call: &Call| {
            call.invoked_us > last_us
                && !matches!(call.response, Response::Unknown | Response::Failed)
        };
        let numbered = self.workers.iter().zip(1..);
        numbered
            .filter(|(worker, _)| !worker.calls.iter().any(answered))
            .map(|(_, number)| number)
            .collect()
    }

    fn command(&self) -> String {
        let Settings {
            seconds,
            seed,
            workers,
            mutant,
        } = self.settings;
        let store = self.store.name;
        let mutant = mutant.map_or(String::new(), |mutant| format!(" --mutant {mutant}"));
        format!(
            "cargo xtask chaos --backend {store} --seconds {seconds} --seed {seed} \
             --workers {workers}{mutant}"
        )
    }

    /// A file for the findings of this run.
    fn path(&self, ending: &str) -> Result<PathBuf> {
        let folder = workspace().join("target/chaos");
        fs::create_dir_all(&folder)?;
        let name = format!("{}-{}{ending}", self.store.name, self.settings.seed);
        Ok(folder.canonicalize()?.join(name))
    }

    fn draw(&self, violation: &Violation, number: u32) -> Result<PathBuf> {
        let path = self.path(&format!("-{number}.svg"))?;
        fs::write(&path, violation.timeline(self.history))?;
        Ok(path)
    }

    /// Writes the calls to a file, in the order in which they were made.
    fn save(&self) -> Result<PathBuf> {
        let path = self.path(".jsonl")?;
        let mut file = BufWriter::new(File::create(&path)?);
        let mut calls: Vec<_> = self.history.calls.iter().collect();
        calls.sort_by_key(|call| call.invoked_us);
        for call in calls {
            writeln!(file, "{}", serde_json::to_string(call)?)?;
        }
        file.flush()?;
        Ok(path)
    }
}
