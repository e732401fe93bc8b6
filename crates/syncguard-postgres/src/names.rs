//! [`Names`]: the names of the tables, the locks and the fence counters in the database.

use std::fmt;

use syncguard_core::backend::{MAX_KEY_LENGTH_BYTES, make_fence_key, make_storage_key};
use syncguard_core::{LockError, LockKey, hash_key};

/// Longest storage key in bytes; a longer one is shortened to a hash. An entry of a B-tree index
/// holds at most 2704 bytes.
///
/// A storage key is the prefix, a colon and the key, or the key alone without a prefix. So with a
/// prefix of up to 1187 bytes every key is stored as it is, and with one of up to 1677 bytes every
/// key fits in its shortened form. A longer prefix is refused.
pub const STORAGE_KEY_LIMIT: usize = 1700;

/// Bytes of [`STORAGE_KEY_LIMIT`] that stay free for names derived from a storage key: none, since a
/// fence counter has a name, and a limit, of its own.
pub const STORAGE_KEY_RESERVE: usize = 0;

/// PostgreSQL silently truncates longer identifiers, so that two names could become one.
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
        if names.locks.may_equal(&names.fence_counters) {
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

    /// Where releases notify those who wait. Backends on the same tables share it.
    pub(crate) fn channel(&self) -> String {
        format!("syncguard_{}", self.hash())
    }

    /// The first number of the advisory locks by which callers mark that they wait.
    pub(crate) fn class(&self) -> i32 {
        let hash = self.hash();
        let digits = hash.get(..8).unwrap_or_default();
        u32::from_str_radix(digits, 16).map_or(0, u32::cast_signed)
    }

    fn hash(&self) -> String {
        hash_key(&format!("{} {}", self.locks, self.fence_counters)).to_string()
    }

    pub(crate) fn storage_key(&self, key: &LockKey) -> Result<String, LockError> {
        make_storage_key(
            &self.prefix,
            key.as_str(),
            STORAGE_KEY_LIMIT,
            STORAGE_KEY_RESERVE,
        )
    }

    /// What all storage keys begin with.
    pub(crate) fn storage_prefix(&self) -> Result<String, LockError> {
        make_storage_key(&self.prefix, "", STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE)
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

/// `table` or `schema.table`, checked. `Display` quotes it, so that case is kept and no word is
/// reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableName {
    schema: Option<String>,
    table: String,
}

impl TableName {
    fn parse(name: &str) -> Result<Self, LockError> {
        let (schema, table) = match name.split_once('.') {
            Some((schema, table)) => (Some(identifier(schema)?), table),
            None => (None, name),
        };
        Ok(Self {
            schema,
            table: identifier(table)?,
        })
    }

    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// Whether both can name one table. They can where only one has a schema: the search path
    /// decides then.
    fn may_equal(&self, other: &Self) -> bool {
        self.table == other.table
            && (self.schema == other.schema || self.schema.is_none() || other.schema.is_none())
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "\"{schema}\".")?;
        }
        write!(f, "\"{}\"", self.table)
    }
}

fn identifier(text: &str) -> Result<String, LockError> {
    let starts = |first: char| first.is_ascii_alphabetic() || first == '_';
    let goes_on = |next: char| next.is_ascii_alphanumeric() || next == '_' || next == '$';
    if text.len() > MAX_IDENTIFIER_BYTES {
        return Err(LockError::invalid_argument(format!(
            "a table or schema name has more than {MAX_IDENTIFIER_BYTES} bytes"
        )));
    }
    if !text.starts_with(starts) || !text.chars().all(goes_on) {
        return Err(LockError::invalid_argument(
            "a table name must be `table` or `schema.table` without quotes; each part consists of \
             ASCII letters, digits, `_` and `$` and does not begin with a digit or `$`",
        ));
    }
    Ok(text.to_owned())
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
    fn names_are_quoted_part_by_part() {
        let quoted = |name| TableName::parse(name).unwrap().to_string();
        assert_eq!(quoted("locks"), r#""locks""#);
        assert_eq!(quoted("App.MixedCase"), r#""App"."MixedCase""#);
        assert_eq!(quoted("select"), r#""select""#);
    }

    #[test]
    fn a_name_that_is_no_identifier_is_refused() {
        let too_long = "x".repeat(64);
        let bad = [
            "", ".", "a.", ".a", "a.b.c", "1a", "a b", "a\"b", "a;b", "a-b", "ä", "a\0", &too_long,
        ];
        for name in bad {
            assert!(TableName::parse(name).is_err(), "{name:?}");
        }
        assert!(TableName::parse(&"x".repeat(63)).is_ok());
    }

    #[test]
    fn channels_and_classes_are_those_of_the_tables() {
        let names = |locks| Names::new(locks, "fences", "app".to_owned()).unwrap();
        let of = |names: Names| (names.channel(), names.class());
        assert_eq!(of(names("locks")), of(names("locks")));
        let (one, other) = (of(names("locks")), of(names("others")));
        assert!(one.0 != other.0 && one.1 != other.1);
        assert_ne!(one.1, 0);
        let longest = "x".repeat(MAX_IDENTIFIER_BYTES);
        let (channel, _) = of(names(&format!("{longest}.{longest}")));
        assert_eq!(channel.len(), one.0.len());
        assert!(identifier(&channel).is_ok());
    }

    #[test]
    fn tables_that_the_search_path_could_make_one_are_not_distinct() {
        let may_equal = |a, b| {
            let (a, b) = (TableName::parse(a).unwrap(), TableName::parse(b).unwrap());
            assert_eq!(a.may_equal(&b), b.may_equal(&a));
            a.may_equal(&b)
        };
        assert!(may_equal("locks", "locks"));
        assert!(may_equal("app.locks", "app.locks"));
        assert!(may_equal("app.locks", "locks"));
        assert!(!may_equal("app.locks", "other.locks"));
        assert!(!may_equal("locks", "Locks"));
    }
}
