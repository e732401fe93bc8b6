//! [`LockKey`]: what is locked, and [`KeyPrefix`]: how keys begin.

use std::fmt;
use std::sync::Arc;

use unicode_normalization::{UnicodeNormalization as _, is_nfc};

use crate::hash::{debug_hashed, hash_key, hash_normalized};
use crate::{HashId, LockError};

/// Longest key, in UTF-8 bytes of its NFC form.
pub const MAX_KEY_LENGTH_BYTES: usize = 512;

/// The name of what is locked: 1 to 512 bytes of UTF-8 in NFC, without U+0000.
///
/// Parsing normalizes, so canonically equivalent spellings are one key. Cloning is cheap. `Debug`
/// prints the [hash](crate::hash_key), never the text. Keys are ordered by the bytes of their text.
///
/// ```
/// # use syncguard_core::LockKey;
/// let composed = LockKey::new("caf\u{e9}")?;
/// let decomposed = LockKey::new("cafe\u{301}")?;
/// assert_eq!(composed, decomposed);
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKey(Arc<str>);

impl LockKey {
    /// Parses a key.
    ///
    /// # Errors
    /// `InvalidArgument` if the key is empty, contains U+0000 (PostgreSQL cannot store it, so no
    /// backend takes it), or is longer than 512 bytes
    /// ([`MAX_KEY_LENGTH_BYTES`](crate::backend::MAX_KEY_LENGTH_BYTES)) once normalized.
    pub fn new(key: &str) -> Result<Self, LockError> {
        if key.is_empty() {
            return Err(LockError::invalid_argument("the key is empty"));
        }
        if key.contains('\0') {
            return Err(LockError::invalid_argument("the key contains U+0000"));
        }
        // NFC shrinks a text to no less than a third. So a text that is far too long is refused before it
        // is normalized.
        let too_long = || {
            LockError::invalid_argument(format!(
                "the key is longer than {MAX_KEY_LENGTH_BYTES} bytes of UTF-8 in NFC"
            ))
        };
        if key.len() > MAX_KEY_LENGTH_BYTES * 8 {
            return Err(too_long());
        }
        let normalized: Arc<str> = if is_nfc(key) {
            Arc::from(key)
        } else {
            key.nfc().collect::<String>().into()
        };
        if normalized.len() > MAX_KEY_LENGTH_BYTES {
            return Err(too_long());
        }
        Ok(Self(normalized))
    }

    /// The normalized text. Sensitive: keep it out of logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The [hash](crate::hash_key) that stands in for the key in logs.
    #[must_use]
    pub fn hash_id(&self) -> HashId {
        hash_normalized(&self.0)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_hashed(f, "LockKey", self.hash_id())
    }
}

impl std::str::FromStr for LockKey {
    type Err = LockError;
    fn from_str(key: &str) -> Result<Self, LockError> {
        Self::new(key)
    }
}

impl TryFrom<&str> for LockKey {
    type Error = LockError;
    fn try_from(key: &str) -> Result<Self, LockError> {
        Self::new(key)
    }
}

impl TryFrom<&String> for LockKey {
    type Error = LockError;
    fn try_from(key: &String) -> Result<Self, LockError> {
        Self::new(key)
    }
}

impl TryFrom<String> for LockKey {
    type Error = LockError;
    fn try_from(key: String) -> Result<Self, LockError> {
        Self::new(&key)
    }
}

impl From<&Self> for LockKey {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

/// The beginning of keys: up to 512 bytes of UTF-8 in NFC, without U+0000. Every key begins with the empty one.
///
/// `Debug` prints the [hash](crate::hash_key), never the text.
///
/// ```
/// # use syncguard_core::LockKey;
/// # use syncguard_core::list::KeyPrefix;
/// let prefix = KeyPrefix::new("payment:")?;
/// assert!(prefix.begins(&LockKey::new("payment:42")?));
/// assert!(!prefix.begins(&LockKey::new("payments")?));
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct KeyPrefix(Option<LockKey>);

impl KeyPrefix {
    /// Parses a prefix.
    ///
    /// # Errors
    /// `InvalidArgument` if no key can begin with it: it contains U+0000 or is longer than 512 bytes in NFC.
    pub fn new(prefix: &str) -> Result<Self, LockError> {
        if prefix.is_empty() {
            return Ok(Self::default());
        }
        let prefix = LockKey::new(prefix).map_err(|_| {
            LockError::invalid_argument(
                "no key can begin with this prefix: it contains U+0000 or is longer than 512 bytes of \
                 UTF-8 in NFC",
            )
        })?;
        Ok(Self(Some(prefix)))
    }

    /// The normalized text. Sensitive, as a key is.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_ref().map_or("", LockKey::as_str)
    }

    /// Whether a key begins with this prefix.
    #[must_use]
    pub fn begins(&self, key: &LockKey) -> bool {
        key.as_str().starts_with(self.as_str())
    }
}

impl fmt::Debug for KeyPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_hashed(f, "KeyPrefix", hash_key(self.as_str()))
    }
}

impl std::str::FromStr for KeyPrefix {
    type Err = LockError;
    fn from_str(prefix: &str) -> Result<Self, LockError> {
        Self::new(prefix)
    }
}

impl TryFrom<&str> for KeyPrefix {
    type Error = LockError;
    fn try_from(prefix: &str) -> Result<Self, LockError> {
        Self::new(prefix)
    }
}

impl TryFrom<&String> for KeyPrefix {
    type Error = LockError;
    fn try_from(prefix: &String) -> Result<Self, LockError> {
        Self::new(prefix)
    }
}

impl TryFrom<String> for KeyPrefix {
    type Error = LockError;
    fn try_from(prefix: String) -> Result<Self, LockError> {
        Self::new(&prefix)
    }
}

impl From<&Self> for KeyPrefix {
    fn from(prefix: &Self) -> Self {
        prefix.clone()
    }
}
