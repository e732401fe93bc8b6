//! [`Ttl`]: how long a lease lasts.

use std::fmt;
use std::time::Duration;

use crate::LockError;

/// Time to live of a lease: whole milliseconds, from 1 ms to 10 years of 365 days.
///
/// The limit keeps every expiry exact on every store: numbers in Lua and JSON are doubles.
///
/// ```
/// # use std::time::Duration;
/// # use syncguard_core::Ttl;
/// assert_eq!(Ttl::new(Duration::from_micros(1500))?.as_millis(), 2, "fractions round up");
/// assert!(Ttl::new(Duration::ZERO).is_err());
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ttl(i64);

impl Ttl {
    /// The default TTL: 30 s.
    pub const DEFAULT: Self = Self(30_000);
    /// The shortest TTL.
    pub const MIN: Self = Self(1);
    /// The longest TTL.
    pub const MAX: Self = Self(10 * 365 * 24 * 60 * 60 * 1000);

    /// Makes a TTL, rounding a fraction of a millisecond up.
    ///
    /// # Errors
    /// `InvalidArgument` for zero and for more than [`Ttl::MAX`].
    pub fn new(duration: Duration) -> Result<Self, LockError> {
        let millis = duration.as_nanos().div_ceil(1_000_000);
        match i64::try_from(millis) {
            Ok(0) => Err(LockError::invalid_argument(
                "the TTL is zero; it is at least 1 ms",
            )),
            Ok(millis) if millis <= Self::MAX.0 => Ok(Self(millis)),
            _ => Err(LockError::invalid_argument(
                "the TTL is longer than 10 years",
            )),
        }
    }

    /// Milliseconds, in the type of a store's timestamps. Always positive.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The TTL as a duration.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0.unsigned_abs())
    }
}

impl fmt::Debug for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ttl({:?})", self.as_duration())
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = LockError;
    fn try_from(duration: Duration) -> Result<Self, LockError> {
        Self::new(duration)
    }
}
