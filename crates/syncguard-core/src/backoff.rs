//! How long to wait before the next attempt.

use std::time::Duration;

/// How the delay grows from one attempt to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Backoff {
    /// The delay doubles each time.
    #[default]
    Exponential,
    /// The delay stays the same.
    Fixed,
}

impl Backoff {
    /// The delay after attempt number `attempt`, counted from 0. The first delay is `base`, and none is
    /// longer than `longest`. It never overflows.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use syncguard_core::{Backoff, Jitter};
    /// let (base, longest) = (Duration::from_millis(100), Duration::from_secs(1));
    /// assert_eq!(Backoff::Exponential.delay(Jitter::None, base, longest, 3), base * 8);
    /// assert_eq!(Backoff::Exponential.delay(Jitter::None, base, longest, 9), longest);
    /// assert!(Backoff::Fixed.delay(Jitter::Full, base, longest, 3) <= base);
    /// ```
    #[must_use]
    pub fn delay(
        self,
        jitter: Jitter,
        base: Duration,
        longest: Duration,
        attempt: u32,
    ) -> Duration {
        let full = match self {
            Self::Fixed => base,
            Self::Exponential => {
                let factor = 1_u32.checked_shl(attempt).unwrap_or(u32::MAX);
                base.checked_mul(factor).unwrap_or(Duration::MAX)
            }
        };
        let full = full.min(longest);
        match jitter {
            Jitter::None => full,
            Jitter::Full => random_up_to(full),
            Jitter::Equal => {
                let half = full / 2;
                half.saturating_add(random_up_to(full - half))
            }
        }
    }
}

/// How much of a delay is random, so that waiters do not all ask at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Jitter {
    /// Each delay is between half and all of its nominal length.
    #[default]
    Equal,
    /// The whole delay is random.
    Full,
    /// None.
    None,
}

fn random_up_to(bound: Duration) -> Duration {
    // Without randomness, use the middle: only the spread of the delays depends on it.
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    let scaled = (bound.as_nanos() >> 32).saturating_mul(u128::from(random))
        + (((bound.as_nanos() & u128::from(u32::MAX)) * u128::from(random)) >> 32);
    Duration::new(
        u64::try_from(scaled / 1_000_000_000).unwrap_or(u64::MAX),
        u32::try_from(scaled % 1_000_000_000).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_millis(100);

    #[test]
    fn exponential_doubles_and_fixed_stays() {
        let exponential = |n| Backoff::Exponential.delay(Jitter::None, BASE, Duration::MAX, n);
        assert_eq!(exponential(0), BASE);
        assert_eq!(exponential(1), BASE * 2);
        assert_eq!(exponential(5), BASE * 32);
        assert_eq!(
            Backoff::Fixed.delay(Jitter::None, BASE, Duration::MAX, 9),
            BASE
        );
    }

    #[test]
    fn attempt_1000_does_not_overflow() {
        for jitter in [Jitter::None, Jitter::Full, Jitter::Equal] {
            for base in [Duration::ZERO, Duration::from_nanos(1), BASE, Duration::MAX] {
                for attempt in [31, 32, 33, 1_000, u32::MAX] {
                    let _ = Backoff::Exponential.delay(jitter, base, Duration::MAX, attempt);
                }
            }
        }
        assert_eq!(
            Backoff::Exponential.delay(Jitter::None, BASE, Duration::MAX, 1_000),
            BASE * u32::MAX
        );
        let huge = Backoff::Exponential.delay(Jitter::Equal, Duration::MAX, Duration::MAX, 1_000);
        assert!(huge >= Duration::MAX / 2);
    }

    #[test]
    fn every_sample_lies_within_its_jitters_bounds_and_uses_them() {
        let bounds = [
            (Jitter::Full, Duration::ZERO, BASE),
            (Jitter::Equal, BASE / 2, BASE),
        ];
        for (jitter, low, high) in bounds {
            let samples: Vec<_> = (0..100_000)
                .map(|_| Backoff::Fixed.delay(jitter, BASE, Duration::MAX, 0))
                .collect();
            assert!(samples.iter().all(|sample| (low..=high).contains(sample)));
            let tenth = (high - low) / 10;
            assert!(samples.iter().any(|sample| *sample < low + tenth));
            assert!(samples.iter().any(|sample| *sample > high - tenth));
        }
    }
}
