//! [`LockId`]: who holds a lock.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::hash::{debug_hashed, hash_normalized};
use crate::{ErrorCode, HashId, LockError};

const ENTROPY_BYTES: usize = 16;

/// Length of a lock id in characters: 16 bytes of base64url without padding.
pub const LOCK_ID_LENGTH: usize = 22;

/// Names one grant of a lock: 22 base64url characters, 128 bits from the system's CSPRNG.
///
/// A process that knows the id can extend and release that grant. `Debug` prints the
/// [hash](crate::hash_key). To send the id to another process, use [`as_str`](Self::as_str).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockId([u8; LOCK_ID_LENGTH]);

impl LockId {
    /// Makes a fresh id.
    ///
    /// # Errors
    /// `Internal` if the operating system's random number generator fails. There is no fallback.
    pub fn generate() -> Result<Self, LockError> {
        Self::from_random(getrandom::fill)
    }

    fn from_random(
        fill: impl FnOnce(&mut [u8]) -> Result<(), getrandom::Error>,
    ) -> Result<Self, LockError> {
        let mut entropy = [0_u8; ENTROPY_BYTES];
        fill(&mut entropy).map_err(|error| {
            LockError::new(
                ErrorCode::Internal,
                "the system's random number generator failed",
            )
            .with_source(error)
        })?;
        let mut text = [0_u8; LOCK_ID_LENGTH];
        let written = URL_SAFE_NO_PAD
            .encode_slice(entropy, &mut text)
            .unwrap_or_default();
        debug_assert_eq!(written, LOCK_ID_LENGTH, "16 bytes are 22 base64 characters");
        Ok(Self(text))
    }

    /// Parses an id that another process sent.
    ///
    /// # Errors
    /// `InvalidArgument` unless it is exactly 22 characters of `A-Z a-z 0-9 - _`.
    pub fn parse(text: &str) -> Result<Self, LockError> {
        let base64url = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        match <[u8; LOCK_ID_LENGTH]>::try_from(text.as_bytes()) {
            Ok(bytes) if bytes.iter().all(base64url) => Ok(Self(bytes)),
            _ => Err(LockError::invalid_argument(
                "a lock id is 22 characters of base64url",
            )),
        }
    }

    /// The id's text. Sensitive: a process that knows it can release the lock.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Both constructors allow only ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The [hash](crate::hash_key) that stands in for the id in logs.
    #[must_use]
    pub fn hash_id(&self) -> HashId {
        hash_normalized(self.as_str())
    }
}

impl fmt::Debug for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_hashed(f, "LockId", self.hash_id())
    }
}

impl std::str::FromStr for LockId {
    type Err = LockError;
    fn from_str(text: &str) -> Result<Self, LockError> {
        Self::parse(text)
    }
}

impl TryFrom<&str> for LockId {
    type Error = LockError;
    fn try_from(text: &str) -> Result<Self, LockError> {
        Self::parse(text)
    }
}

impl TryFrom<&String> for LockId {
    type Error = LockError;
    fn try_from(text: &String) -> Result<Self, LockError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for LockId {
    type Error = LockError;
    fn try_from(text: String) -> Result<Self, LockError> {
        Self::parse(&text)
    }
}

impl From<&Self> for LockId {
    fn from(id: &Self) -> Self {
        *id
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn without_randomness_there_is_no_id() {
        let error = LockId::from_random(|_| Err(getrandom::Error::UNSUPPORTED)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(error.source().unwrap().is::<getrandom::Error>());
    }

    #[test]
    fn an_id_is_what_the_random_source_returned() {
        let id = LockId::from_random(|bytes| {
            bytes.fill(0xff);
            Ok(())
        });
        assert_eq!(id.unwrap().as_str(), "_____________________w");
    }
}
