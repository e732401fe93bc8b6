//! [`Tally`]: how many tests passed, failed, were skipped; and reading it from test runners.

use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;

use crate::Conclusion;

/// Counts of tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Tally {
    /// A step that counts as one test.
    pub(crate) fn of(succeeded: bool) -> Self {
        Self {
            passed: usize::from(succeeded),
            failed: usize::from(!succeeded),
            skipped: 0,
        }
    }

    /// The same, when some of the tests that passed had nothing to decide.
    pub(crate) fn without(self, skipped: usize) -> Self {
        Self {
            passed: self.passed.saturating_sub(skipped),
            skipped: self.skipped + skipped,
            ..self
        }
    }

    /// Nothing failed, and at least one test ran.
    pub(crate) fn conclusion(self) -> Conclusion {
        if self.failed == 0 && self.passed > 0 {
            Conclusion::Passed
        } else {
            Conclusion::Failed
        }
    }

    /// Parses the summary line of `cargo nextest run`:
    /// `Summary [ 5.2s] 14 tests run: 12 passed (1 slow), 1 failed, 1 timed out, 3 skipped`.
    pub(crate) fn from_nextest(line: &str) -> Self {
        let mut tally = Self::default();
        let Some(("Summary", counts)) = line
            .trim_start()
            .split_once(' ')
            .and_then(|(word, rest)| Some((word, rest.split_once(" run: ")?.1)))
        else {
            return tally;
        };
        // "(1 slow, 1 flaky)" details what is counted already.
        let mut depth = 0_usize;
        let plain: String = counts
            .chars()
            .filter(|symbol| {
                depth += usize::from(*symbol == '(');
                let keep = depth == 0;
                depth -= usize::from(*symbol == ')');
                keep
            })
            .collect();
        for part in plain.split(',') {
            let Some((count, what)) = part.trim().split_once(' ') else {
                continue;
            };
            tally.count(count, what.trim());
        }
        tally
    }

    /// Parses the summary line of `cargo test`:
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; ...`.
    pub(crate) fn from_libtest(line: &str) -> Self {
        let mut tally = Self::default();
        let Some(counts) = line.strip_prefix("test result: ") else {
            return tally;
        };
        for part in counts.split([';', '.']) {
            let Some((count, what)) = part.trim().split_once(' ') else {
                continue;
            };
            tally.count(count, what);
        }
        tally
    }

    fn count(&mut self, count: &str, what: &str) {
        let Ok(count) = count.parse::<usize>() else {
            return;
        };
        match what {
            "passed" => self.passed += count,
            "skipped" | "ignored" => self.skipped += count,
            "failed" | "timed out" | "exec failed" => self.failed += count,
            _ => {}
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |mut sum, tally| {
            sum += tally;
            sum
        })
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            passed,
            failed,
            skipped,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tally: Tally, passed: usize, failed: usize, skipped: usize) {
        assert_eq!(
            tally,
            Tally {
                passed,
                failed,
                skipped
            }
        );
    }

    #[test]
    fn nextest_is_read() {
        let read = Tally::from_nextest;
        check(
            read("     Summary [   5.201s] 14 tests run: 14 passed, 0 skipped"),
            14,
            0,
            0,
        );
        let busy = "Summary [ 61.0s] 9/20 tests run: 5 passed (2 slow, 1 flaky), 2 failed, \
                    1 timed out, 1 exec failed, 3 skipped";
        check(read(busy), 5, 4, 3);
        check(
            read("     Summary [   0.1s] 1 test run: 1 passed, 2 skipped"),
            1,
            0,
            2,
        );
        check(
            read("        PASS [   0.033s] (11/14) redis answers"),
            0,
            0,
            0,
        );
    }

    #[test]
    fn libtest_is_read() {
        let read = Tally::from_libtest;
        let line = "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 4 filtered out; \
                    finished in 0.00s";
        check(read(line), 3, 2, 1);
        check(read("test fences::increase ... ok"), 0, 0, 0);
    }

    #[test]
    fn nothing_tested_is_no_success() {
        assert_eq!(Tally::default().conclusion(), Conclusion::Failed);
        assert_eq!(Tally::of(true).conclusion(), Conclusion::Passed);
    }
}
