//! [`Fence`]: the number that lets a resource refuse a stale holder.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{ErrorCode, LockError, LockKey};

/// The greatest fence that SyncGuard grants.
pub const FENCE_MAX: u64 = 900_000_000_000_000;

/// Above this fence every grant logs a warning: move to a new key namespace before [`FENCE_MAX`].
pub const FENCE_WARN: u64 = 90_000_000_000_000;

/// Digits of a fence, zero-padded. So text order is numeric order, and Lua and JSON keep the number exact.
pub const FENCE_DIGITS: usize = 15;

const LARGEST_PRINTABLE: u64 = 999_999_999_999_999;

/// A fencing token: strictly greater with every grant of its key, for as long as the store lives.
///
/// Pass it to the resource that the lock protects. The resource must refuse a fence that is smaller than
/// the greatest it has seen. A fence prints as 15 digits and is a string in JSON.
///
/// ```
/// # use syncguard_core::Fence;
/// let fence: Fence = "000000000000042".parse()?;
/// assert_eq!(fence.get(), 42);
/// assert!(fence > "000000000000009".parse()?);
/// assert_eq!(fence.to_string(), "000000000000042");
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fence(u64);

impl Fence {
    /// Makes the fence of a grant from its key's counter.
    ///
    /// # Errors
    /// `Internal` above [`FENCE_MAX`](crate::backend::FENCE_MAX): the counter is used up.
    pub fn from_counter(counter: u64) -> Result<Self, LockError> {
        if counter > FENCE_MAX {
            return Err(Self::exhausted());
        }
        Ok(Self(counter))
    }

    /// The error of a grant above [`FENCE_MAX`](crate::backend::FENCE_MAX), for stores that check the limit
    /// themselves.
    #[must_use]
    pub fn exhausted() -> LockError {
        LockError::new(
            ErrorCode::Internal,
            format!("the key's fence counter has passed {FENCE_MAX}; use a new key or prefix"),
        )
    }

    /// Warns if this fence of `key` is near the greatest one.
    pub(crate) fn warn_near_the_end(self, key: &LockKey) {
        if self.0 > FENCE_WARN {
            tracing::warn!(
                key_hash = %key.hash_id(),
                fence = %self,
                "the fence counter of this key is near its end; move to a new key or prefix"
            );
        }
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Formats a number as a fence: 15 digits, zero-padded.
///
/// # Errors
/// `InvalidArgument` if it has more than 15 digits.
pub fn format_fence(number: u64) -> Result<String, LockError> {
    if number > LARGEST_PRINTABLE {
        return Err(LockError::invalid_argument("a fence has at most 15 digits"));
    }
    Ok(Fence(number).to_string())
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0width$}", self.0, width = FENCE_DIGITS)
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({self})")
    }
}

impl FromStr for Fence {
    type Err = LockError;

    /// Parses exactly 15 ASCII digits, up to [`FENCE_MAX`](crate::backend::FENCE_MAX).
    fn from_str(text: &str) -> Result<Self, LockError> {
        let refuse =
            || LockError::invalid_argument("a fence is 15 digits, at most 900000000000000");
        if text.len() != FENCE_DIGITS || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refuse());
        }
        match text.parse() {
            Ok(number) if number <= FENCE_MAX => Ok(Self(number)),
            _ => Err(refuse()),
        }
    }
}

impl Serialize for Fence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Stands in for a [`Fence`] on a backend that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
pub struct NoFence;

/// [`Fence`] or [`NoFence`]: whether a backend fences is part of its type.
///
/// On a backend with fences, a lease's `fence()` is a [`Fence`], without an `Option`. On another backend
/// the method does not exist.
pub trait FenceToken:
    sealed::Sealed + Copy + Eq + fmt::Debug + Serialize + Send + Sync + 'static
{
    /// Whether grants carry a fence.
    const SUPPORTED: bool;

    /// The fence, for code that is generic over both.
    fn fence(&self) -> Option<Fence>;
}

impl FenceToken for Fence {
    const SUPPORTED: bool = true;
    fn fence(&self) -> Option<Fence> {
        Some(*self)
    }
}

impl FenceToken for NoFence {
    const SUPPORTED: bool = false;
    fn fence(&self) -> Option<Fence> {
        None
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Fence {}
    impl Sealed for super::NoFence {}
}
