//! [`TableName`]: a table's name, checked and quoted.

use std::fmt;

use syncguard_core::LockError;

/// PostgreSQL cuts longer identifiers off silently, so that two names could become one.
const MAX_IDENTIFIER_BYTES: usize = 63;

/// `table` or `schema.table`. `Display` quotes it, so that case is kept and no word is reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableName {
    schema: Option<String>,
    table: String,
}

impl TableName {
    pub(crate) fn parse(name: &str) -> Result<Self, LockError> {
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

    /// Whether both can be the same table. Where only one names its schema, the search path
    /// decides, so they can.
    pub(crate) fn may_equal(&self, other: &Self) -> bool {
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
            "a table or schema name has at most {MAX_IDENTIFIER_BYTES} bytes"
        )));
    }
    if !text.starts_with(starts) || !text.chars().all(goes_on) {
        return Err(LockError::invalid_argument(
            "a table is named `table` or `schema.table`, of letters, digits, `_` and `$`, not \
             beginning with a digit; quotes are added",
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_part_by_part() {
        let quoted = |name| TableName::parse(name).unwrap().to_string();
        assert_eq!(quoted("locks"), r#""locks""#);
        assert_eq!(quoted("App.MixedCase"), r#""App"."MixedCase""#);
        assert_eq!(quoted("select"), r#""select""#);
    }

    #[test]
    fn what_is_no_identifier_is_refused() {
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
