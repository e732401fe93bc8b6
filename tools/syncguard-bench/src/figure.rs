//! [`Figure`]: the median of some runs, and how far they are apart.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::drive::Sample;

/// Where the ratios of alternating runs have a larger spread, a figure would mean nothing: the median of
/// five such runs is easily 5 % off, as far as a result is from its target.
pub(crate) const DISTURBED_ABOVE: f64 = 0.15;

/// The median of some runs, and their spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    /// The interquartile range, as a share of the median: of five runs, from the second to the fourth.
    /// `None` if there was one run.
    ///
    /// Not the whole range, since one disturbed run of five hardly changes the median.
    pub(crate) spread: Option<f64>,
}

impl Figure {
    /// `None` if there was no run, or a run without this figure.
    pub(crate) fn of(runs: impl IntoIterator<Item = Option<f64>>) -> Option<Self> {
        let mut runs: Vec<f64> = runs.into_iter().collect::<Option<_>>()?;
        runs.sort_unstable_by(f64::total_cmp);
        let last = runs.len().checked_sub(1)?;
        // Of two middle values the lower one; of few runs rather too wide a range.
        let (median, quarter) = (runs[last / 2], last / 4);
        let range = runs[last - quarter] - runs[quarter];
        let spread = if range > 0.0 { range / median } else { 0.0 };
        Some(Self {
            median,
            spread: (last > 0).then_some(spread),
        })
    }

    pub(crate) fn is_disturbed(&self) -> bool {
        self.spread.is_some_and(|spread| spread > DISTURBED_ABOVE)
    }

    /// As a ratio. Of one that is disturbed, the spread alone.
    pub(crate) fn as_ratio(&self) -> String {
        match self.spread {
            Some(spread) if self.is_disturbed() => format!("disturbed ({:.0} %)", spread * 100.0),
            _ => format!("{self:.2}"),
        }
    }
}

/// The spread in parentheses.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let median = self.median;
        match f.precision() {
            Some(digits) => write!(f, "{median:.digits$}")?,
            None if median >= 100.0 => write!(f, "{median:.0}")?,
            None if median >= 10.0 => write!(f, "{median:.1}")?,
            None => write!(f, "{median:.2}")?,
        }
        match self.spread {
            Some(spread) => write!(f, " ({:.0} %)", spread * 100.0),
            None => Ok(()),
        }
    }
}

/// One figure of alternating runs: ours, and that of the run beside it.
pub(crate) fn side_by_side(
    ours: &[Sample],
    others: &[Sample],
    figure: impl Fn(&Sample) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let runs = ours.iter().zip(others);
    runs.filter_map(|(ours, other)| Some((figure(ours)?, figure(other)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(runs: &[f64]) -> Figure {
        Figure::of(runs.iter().copied().map(Some)).unwrap()
    }

    #[test]
    fn one_outlier_of_five_moves_neither_the_median_nor_the_spread_far() {
        let quiet = figure(&[102.0, 98.0, 100.0, 101.0, 99.0]);
        let disturbed_once = figure(&[102.0, 98.0, 100.0, 101.0, 1e9]);
        assert_eq!(quiet.to_string(), "100 (2 %)");
        assert_eq!(disturbed_once.to_string(), "101 (2 %)");
    }

    #[test]
    fn two_outliers_of_five_on_one_side_are_a_disturbance() {
        assert!(!figure(&[1.0, 1.01, 1.02, 1.0, 3.0]).is_disturbed());
        assert!(figure(&[1.0, 1.01, 1.02, 2.0, 3.0]).is_disturbed());
    }

    #[test]
    fn the_bound_itself_is_no_disturbance() {
        let at = |spread| Figure {
            median: 1.0,
            spread: Some(spread),
        };
        assert!(!at(DISTURBED_ABOVE).is_disturbed());
        assert!(at(DISTURBED_ABOVE * 1.001).is_disturbed());
    }

    #[test]
    fn the_range_of_a_few_runs_is_all_of_it() {
        assert_eq!(figure(&[2.0, 1.0]).spread, Some(1.0));
        assert_eq!(figure(&[3.0, 2.0, 1.0]).spread, Some(1.0));
    }

    #[test]
    fn a_single_run_has_no_spread_and_no_run_has_no_figure() {
        assert_eq!(figure(&[7.0]).to_string(), "7.00");
        assert!(!figure(&[7.0]).is_disturbed());
        assert_eq!(Figure::of([]), None);
        assert_eq!(Figure::of([Some(1.0), None]), None);
    }

    #[test]
    fn runs_that_are_all_zero_have_no_spread_between_them() {
        assert_eq!(figure(&[0.0; 5]).spread, Some(0.0));
    }
}
