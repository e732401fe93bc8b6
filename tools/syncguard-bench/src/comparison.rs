//! [`Comparison`]: two figures of alternating runs, and what their ratio should be.

use std::fmt;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::figure::Figure;

/// Two figures and their ratio.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: Figure,
    pub(crate) beside: &'static str,
    pub(crate) other: Figure,
    /// Ours by the other: the median of the ratios of two runs that followed each other.
    pub(crate) ratio: Figure,
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

/// What the runs say of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// Nothing: the runs are too far apart.
    Disturbed,
}

impl Comparison {
    /// Of runs that alternated: ours, and the one that followed it.
    ///
    /// # Errors
    /// If there was no run.
    pub(crate) fn new(
        what: impl Into<String>,
        unit: &'static str,
        beside: &'static str,
        runs: &[(f64, f64)],
        target: Option<Target>,
    ) -> Result<Self> {
        let what = what.into();
        let of = |figure: fn(&(f64, f64)) -> f64| {
            let figure = Figure::of(runs.iter().map(|run| Some(figure(run))));
            figure.with_context(|| format!("{what}: nothing was measured"))
        };
        Ok(Self {
            ours: of(|run| run.0)?,
            other: of(|run| run.1)?,
            ratio: of(|run| run.0 / run.1)?,
            what,
            unit,
            beside,
            target,
        })
    }

    /// `None` without a target.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let ratio = self.ratio.median;
        let met = match self.target? {
            Target::AtLeast(bound) => ratio >= bound,
            Target::AtMost(bound) => ratio <= bound,
        };
        Some(match met {
            _ if self.ratio.is_disturbed() => Verdict::Disturbed,
            true => Verdict::Met,
            false => Verdict::Missed,
        })
    }
}

/// In one line.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = self.ratio.as_ratio();
        write!(f, "{}, beside {}: {ratio}", self.what, self.beside)?;
        match self.target {
            Some(target) => write!(f, ", target {target}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, "≥ {bound:.2}"),
            Self::AtMost(bound) => write!(f, "≤ {bound:.2}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(runs: &[(f64, f64)], target: Target) -> Verdict {
        let comparison = Comparison::new("pairs", "pairs/s", "rslock", runs, Some(target));
        comparison.unwrap().verdict().unwrap()
    }

    /// Both sides slow down together by half, as on a machine that runs something else for a while.
    const DRIFTING: [(f64, f64); 5] = [
        (70.0, 100.0),
        (63.0, 90.0),
        (49.0, 70.0),
        (36.0, 50.0),
        (35.0, 50.0),
    ];

    #[test]
    fn what_slows_both_sides_does_not_disturb_their_ratio() {
        let comparison = Comparison::new("", "", "", &DRIFTING, None).unwrap();
        assert!(comparison.ours.is_disturbed() && comparison.other.is_disturbed());
        assert!(!comparison.ratio.is_disturbed());
        assert!((comparison.ratio.median - 0.7).abs() < 1e-9);
        assert_eq!(verdict(&DRIFTING, Target::AtLeast(0.65)), Verdict::Met);
        assert_eq!(verdict(&DRIFTING, Target::AtLeast(0.75)), Verdict::Missed);
    }

    #[test]
    fn what_slows_one_side_in_two_of_five_runs_leaves_no_verdict() {
        let mut runs = DRIFTING;
        runs[0].1 /= 2.0;
        runs[3].1 /= 2.0;
        for bound in [0.1, 0.7, 9.0] {
            for target in [Target::AtLeast(bound), Target::AtMost(bound)] {
                assert_eq!(verdict(&runs, target), Verdict::Disturbed);
            }
        }
    }

    #[test]
    fn a_bound_is_met_by_itself() {
        let runs = [(1.0, 2.0)];
        assert_eq!(verdict(&runs, Target::AtLeast(0.5)), Verdict::Met);
        assert_eq!(verdict(&runs, Target::AtMost(0.5)), Verdict::Met);
        assert_eq!(verdict(&runs, Target::AtMost(0.49)), Verdict::Missed);
    }

    #[test]
    fn a_comparison_without_a_run_is_an_error() {
        assert!(Comparison::new("pairs", "", "", &[], None).is_err());
    }
}
