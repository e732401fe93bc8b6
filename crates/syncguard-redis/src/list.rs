//! Listings, by `SCAN`.

use fred::types::Value;
use syncguard_core::backend::{ListPage, ListPosition, ListRequest};
use syncguard_core::list::KeyPrefix;
use syncguard_core::{ErrorCode, LockError, LockInfoDebug};

use crate::error::MISSING_PERMISSION;
use crate::names::Names;
use crate::record::Reading;
use crate::wire::script::{LIST, server_time_ms, unexpected};
use crate::wire::{Clients, ScriptCall};

/// How many entries one page reads: enough that few pages are empty, and not so many that other clients wait.
const FEWEST_ENTRIES: u32 = 100;
const MOST_ENTRIES: u32 = 500;

/// The cursor with which `SCAN` starts, and which it returns at its end.
const START: &str = "0";

/// The cursor of `SCAN`, and the names that it found and for which the page had no room.
struct Position {
    cursor: String,
    left: Vec<String>,
}

/// What a script found.
struct Found {
    now_ms: i64,
    /// Names and values.
    stored: Vec<(String, String)>,
    next: Position,
}

/// One page.
pub(crate) async fn list(
    clients: &Clients,
    names: &Names,
    request: ListRequest<'_>,
) -> Result<ListPage, LockError> {
    let (prefix, limit) = (request.prefix, request.limit);
    let Position { cursor, left } = Position::parse(request.after)?;
    let arguments = [
        cursor.into(),
        format!("{}*", escape(&names.of_prefix(prefix)?)).into(),
        i64::from(limit.clamp(FEWEST_ENTRIES, MOST_ENTRIES)).into(),
        i64::from(limit).into(),
        names.counters().into(),
    ];
    let call = ScriptCall::new(&LIST, left, arguments, request.deadline);
    let reply = clients.run("", call).await;
    let found = Found::parse(reply.map_err(explained)?).ok_or_else(unexpected)?;
    let locks = found.locks(names, prefix);
    Ok(ListPage::repeating(locks, found.next.write()))
}

impl Found {
    fn parse(reply: Value) -> Option<Self> {
        let [seconds, microseconds, cursor, stored, left]: [Value; 5] =
            reply.into_array().try_into().ok()?;
        let text = |value: Value| value.into_string();
        let seconds = text(seconds)?.parse().ok()?;
        let microseconds = text(microseconds)?.parse().ok()?;
        let stored = stored.into_array();
        let pairs = stored.chunks_exact(2).filter_map(|pair| {
            // A name that is not UTF-8 is not one of our locks.
            Some((pair[0].as_string()?, pair[1].as_string()?))
        });
        Some(Self {
            now_ms: server_time_ms(seconds, microseconds),
            stored: pairs.collect(),
            next: Position {
                cursor: text(cursor)?,
                left: left.into_array().into_iter().filter_map(text).collect(),
            },
        })
    }

    /// The live locks among the names and values.
    fn locks(&self, names: &Names, prefix: &KeyPrefix) -> Vec<LockInfoDebug> {
        let locks = self.stored.iter().filter_map(|(name, value)| {
            let reading = Reading {
                value: value.clone(),
                now_ms: self.now_ms,
            };
            let lock = reading.lock().ok().filter(|lock| reading.is_live(lock))?;
            let is_own = names.lock(&lock.key).is_ok_and(|own| own == *name);
            (is_own && prefix.begins(&lock.key)).then_some(lock)
        });
        locks.collect()
    }
}

impl Position {
    fn parse(after: Option<&ListPosition>) -> Result<Self, LockError> {
        let Some(position) = after else {
            let cursor = START.to_owned();
            return Ok(Self {
                cursor,
                left: Vec::new(),
            });
        };
        let parsed = serde_json::from_str(position.as_str());
        let (cursor, left) = parsed
            .map_err(|_| LockError::invalid_argument("not a cursor of a listing on Redis"))?;
        Ok(Self { cursor, left })
    }

    /// `None` at the end of the listing.
    fn write(&self) -> Option<ListPosition> {
        let ended = self.cursor == START && self.left.is_empty();
        let text = serde_json::json!([self.cursor, self.left]).to_string();
        (!ended).then(|| ListPosition::new(text))
    }
}

/// A text as a pattern that matches only this text.
fn escape(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

/// Other operations do not need this permission.
fn explained(error: LockError) -> LockError {
    if error.message() != MISSING_PERMISSION {
        return error;
    }
    LockError::new(
        ErrorCode::AuthFailed,
        "the Redis user may not list locks: besides the permissions of the other operations it needs \
         `+scan`",
    )
    .with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_written_and_read_again() {
        for (cursor, left) in [
            ("17", vec![]),
            ("0", vec!["a b\n", "\"c"]),
            ("9", vec!["d"]),
        ] {
            let left: Vec<_> = left.into_iter().map(str::to_owned).collect();
            let position = Position {
                cursor: cursor.to_owned(),
                left: left.clone(),
            };
            let read = Position::parse(position.write().as_ref()).unwrap();
            assert_eq!((read.cursor.as_str(), read.left), (cursor, left));
        }
        let start = Position::parse(None).unwrap();
        assert!(start.write().is_none());
        let foreign = ListPosition::new("payment:42".to_owned());
        let error = Position::parse(Some(&foreign)).err().unwrap();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }

    #[test]
    fn no_character_of_a_pattern_is_left_unescaped() {
        assert_eq!(escape("a*b?[c-d]^\\"), "a\\*b\\?\\[c-d\\]^\\\\");
    }
}
