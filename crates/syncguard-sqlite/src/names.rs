//! [`Names`]: the names of the tables, the locks and the fence counters in the database.

use std::fmt;

use syncguard_core::backend::{MAX_KEY_LENGTH_BYTES, make_fence_key, make_storage_key};
use syncguard_core::list::KeyPrefix;
use syncguard_core::{LockError, LockKey};

/// Longest storage key in bytes; a longer one is shortened to a hash. The same as in PostgreSQL, so that
/// a table can move there.
///
/// A storage key is the prefix, a colon and the key, or the key alone without a prefix. So with a prefix
/// of up to 1187 bytes every key is stored as it is, and with one of up to 1677 bytes every key fits in
/// its shortened form. A longer prefix is refused.
pub const STORAGE_KEY_LIMIT: usize = 1700;

/// Bytes of [`STORAGE_KEY_LIMIT`] that stay free for names derived from a storage key: none, since a
/// fence counter has a name, and a limit, of its own.
pub const STORAGE_KEY_RESERVE: usize = 0;

const MAX_IDENTIFIER_BYTES: usize = 63;

/// The tables and the prefix of one backend.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) locks: TableName,
    pub(crate) fence_counters: TableName,
    pub(crate) prefix: String,
}

impl Names {
    pub(crate) fn new(
        locks: &str,
        fence_counters: &str,
        prefix: String,
    ) -> Result<Self, LockError> {
        let names = Self {
            locks: TableName::parse(locks)?,
            fence_counters: TableName::parse(fence_counters)?,
            prefix,
        };
        // SQLite ignores the case of names.
        if locks.eq_ignore_ascii_case(fence_counters) {
            return Err(LockError::invalid_argument(
                "locks and fence counters must be in different tables: deleting expired locks must \
                 never delete a fence counter",
            ));
        }
        if names.prefix.contains('\0') {
            return Err(LockError::invalid_argument("the prefix contains U+0000"));
        }
        // The longest key is the first that does not fit.
        names.storage_key(&LockKey::new(&"x".repeat(MAX_KEY_LENGTH_BYTES))?)?;
        Ok(names)
    }

    pub(crate) fn storage_key(&self, key: &LockKey) -> Result<String, LockError> {
        make_storage_key(
            &self.prefix,
            key.as_str(),
            STORAGE_KEY_LIMIT,
            STORAGE_KEY_RESERVE,
        )
    }

    /// The beginning of the storage keys of keys with this prefix, unless they are shortened.
    pub(crate) fn storage_prefix(&self, prefix: &KeyPrefix) -> Result<String, LockError> {
        make_storage_key(&self.prefix, prefix.as_str(), usize::MAX, 0)
    }

    pub(crate) fn fence_key(&self, storage_key: &str) -> Result<String, LockError> {
        make_fence_key(
            &self.prefix,
            storage_key,
            STORAGE_KEY_LIMIT,
            STORAGE_KEY_RESERVE,
        )
    }
}

/// The name of a table, checked. `Display` quotes it, so that no word is reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableName(String);

impl TableName {
    fn parse(name: &str) -> Result<Self, LockError> {
        let starts = |first: char| first.is_ascii_alphabetic() || first == '_';
        let goes_on = |next: char| next.is_ascii_alphanumeric() || next == '_' || next == '$';
        if name.len() > MAX_IDENTIFIER_BYTES {
            return Err(LockError::invalid_argument(format!(
                "a table name has more than {MAX_IDENTIFIER_BYTES} bytes"
            )));
        }
        if !name.starts_with(starts) || !name.chars().all(goes_on) {
            return Err(LockError::invalid_argument(
                "a table name must consist of ASCII letters, digits, `_` and `$`, and must not begin \
                 with a digit or `$`",
            ));
        }
        if name.to_ascii_lowercase().starts_with("sqlite_") {
            return Err(LockError::invalid_argument(
                "SQLite reserves table names that begin with `sqlite_`",
            ));
        }
        Ok(Self(name.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_prefix_a_key_is_stored_as_it_is() {
        let names = Names::new("locks", "fences", String::new()).unwrap();
        let storage_key = names
            .storage_key(&LockKey::new("payment:42").unwrap())
            .unwrap();
        assert_eq!(storage_key, "payment:42");
        assert_eq!(names.fence_key(&storage_key).unwrap(), "fence:payment:42");
    }

    #[test]
    fn the_documented_lengths_of_a_prefix_are_the_limits() {
        let longest_key = LockKey::new(&"k".repeat(MAX_KEY_LENGTH_BYTES)).unwrap();
        let storage_key = |length| {
            let names = Names::new("locks", "fences", "p".repeat(length))?;
            names.storage_key(&longest_key)
        };
        assert!(storage_key(1187).unwrap().ends_with(longest_key.as_str()));
        assert_eq!(storage_key(1188).unwrap().len(), 1188 + ":".len() + 22);
        assert_eq!(storage_key(1677).unwrap().len(), STORAGE_KEY_LIMIT);
        assert!(storage_key(1678).is_err());
    }

    #[test]
    fn a_name_that_is_no_identifier_or_reserved_is_refused() {
        let too_long = "x".repeat(64);
        let bad = [
            "",
            "main.locks",
            "1a",
            "a b",
            "a\"b",
            "a;b",
            "ä",
            "a\0",
            "SQLite_locks",
            &too_long,
        ];
        for name in bad {
            assert!(TableName::parse(name).is_err(), "{name:?}");
        }
        assert_eq!(
            TableName::parse("select").unwrap().to_string(),
            "\"select\""
        );
        assert!(TableName::parse(&"x".repeat(63)).is_ok());
    }

    #[test]
    fn tables_whose_names_differ_in_case_alone_are_one() {
        assert!(Names::new("locks", "LOCKS", String::new()).is_err());
    }
}
