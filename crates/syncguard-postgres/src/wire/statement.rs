//! The statements, made ready once, and their answers.

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};
use syncguard_core::{
    ErrorCode, FENCE_MAX, Fence, Grant, LockError, LockId, LockInfoDebug, LockKey,
    TIME_TOLERANCE_MS, hash_key,
};

use crate::options::Settings;

/// Milliseconds past its expiry after which a row may be cleared away.
const CLEANUP_GUARD_MS: i64 = 2_000;

/// The longest that an acquire may wait in the server and still be granted, in milliseconds.
///
/// An acquire whose caller went away is released by its id for about a second. One that waited
/// for longer would be granted after the last release had passed, and hold the key for its TTL.
const PATIENCE_MS: i64 = 500;

/// As a double, which holds microseconds until the year 2255, and is cheaper than the number of any
/// length that `extract` gives. It never goes back while the clock does not.
const NOW_MS: &str = "floor(date_part('epoch', clock_timestamp()) * 1000)::bigint";

const IN_TIME: &str = "clock_timestamp() - statement_timestamp() \
                       < CASE WHEN ready.waited THEN least($5, {patience_ms}) ELSE {patience_ms} END \
                       * interval '1 millisecond'";
/// Whether or not there was a line.
const IN_TIME_AT_ALL: &str = "clock_timestamp() - statement_timestamp() \
                              < {patience_ms} * interval '1 millisecond'";

/// In acquire's upsert: whether the row that is there may be replaced.
const DEAD: &str = "lock.expires_at_ms <= excluded.acquired_at_ms - {tolerance_ms}";

/// A statement with its tables filled in.
///
/// A pooler in transaction mode can hand our parameters to another client's statement. So each
/// statement knows its own name, does nothing unless it is called by that name, and answers with
/// it. The name is the hash of its text.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) sql: SqlStr,
    pub(crate) name: String,
    /// Whether it may have taken effect when it fails.
    pub(crate) writes: bool,
}

#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) acquire: Statement,
    pub(crate) release: Statement,
    pub(crate) extend: Statement,
    pub(crate) is_locked: Statement,
    pub(crate) lookup_by_key: Statement,
    pub(crate) lookup_by_lock_id: Statement,
    pub(crate) clean_key: Statement,
    pub(crate) purge: Statement,
}

impl Statements {
    pub(crate) fn new(settings: &Settings) -> Self {
        let reads = |template| Statement::new(template, settings, false);
        let writes = |template| Statement::new(template, settings, true);
        Self {
            acquire: writes(include_str!("sql/acquire.sql")),
            release: writes(include_str!("sql/release.sql")),
            extend: writes(include_str!("sql/extend.sql")),
            is_locked: reads(include_str!("sql/is_locked.sql")),
            lookup_by_key: reads(include_str!("sql/lookup_by_key.sql")),
            lookup_by_lock_id: reads(include_str!("sql/lookup_by_lock_id.sql")),
            clean_key: writes(include_str!("sql/clean_key.sql")),
            purge: writes(include_str!("sql/purge.sql")),
        }
    }
}

impl Statement {
    fn new(template: &str, settings: &Settings, writes: bool) -> Self {
        let text = fill_in(template, settings);
        let name = hash_key(&text).to_string();
        let text = text.replace("{statement}", &name);
        Self {
            // The template is ours; what is filled in are checked identifiers and constants.
            sql: AssertSqlSafe(std::sync::Arc::<str>::from(text)).into_sql_str(),
            name,
            writes,
        }
    }
}

/// Fills a template in, but for the statement's own name, and leaves its comments out.
pub(crate) fn fill_in(template: &str, settings: &Settings) -> String {
    let lines: Vec<_> = template
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("--"))
        .collect();
    lines
        .join(" ")
        .replace("{in_time}", IN_TIME)
        .replace("{in_time_at_all}", IN_TIME_AT_ALL)
        .replace("{dead}", DEAD)
        .replace("{now_ms}", NOW_MS)
        .replace("{tolerance_ms}", &TIME_TOLERANCE_MS.to_string())
        .replace("{cleanup_guard_ms}", &CLEANUP_GUARD_MS.to_string())
        .replace("{patience_ms}", &PATIENCE_MS.to_string())
        .replace("{fence_max}", &FENCE_MAX.to_string())
        .replace("{locks}", &settings.locks.to_string())
        .replace("{fences}", &settings.fences.to_string())
}

/// A parameter beyond the statement's name and its subject.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Number(i64),
}

/// What a statement answered: a word and what belongs to it, separated by spaces.
#[derive(Debug)]
pub(crate) struct Verdict(String);

impl Verdict {
    /// Takes the answer to `statement` about `subject` apart; `None` if it is an answer to
    /// something else.
    pub(crate) fn parse(answer: &str, statement: &Statement, subject: &str) -> Option<Self> {
        let verdict = answer
            .strip_prefix(statement.name.as_str())?
            .strip_prefix(' ')?
            .strip_prefix(subject)?
            .strip_prefix(' ')?;
        Some(Self(verdict.to_owned()))
    }

    /// The word, and what follows it.
    pub(crate) fn parts(&self) -> (&str, &str) {
        self.0.split_once(' ').unwrap_or((&self.0, ""))
    }

    pub(crate) fn number(&self) -> Result<u64, LockError> {
        self.0.parse().map_err(|_| unreadable())
    }
}

/// `EXPIRES_AT_MS FENCE`.
pub(crate) fn parse_grant(text: &str, id: &LockId) -> Result<Grant, LockError> {
    let parsed = || {
        let (expires_at_ms, fence) = text.split_once(' ').ok_or_else(unreadable)?;
        Ok(Grant {
            lock_id: *id,
            expires_at_ms: parse_ms(expires_at_ms)?,
            fence: parse_fence(fence)?,
        })
    };
    // It is held all the same, and must be given back.
    parsed().map_err(LockError::with_outcome_unknown)
}

/// `EXPIRES_AT_MS ACQUIRED_AT_MS FENCE LOCK_ID USER_KEY`.
pub(crate) fn parse_info(text: &str) -> Result<LockInfoDebug, LockError> {
    let fields: Vec<_> = text.splitn(5, ' ').collect();
    let [expires_at_ms, acquired_at_ms, fence, lock_id, key] = fields[..] else {
        return Err(unreadable());
    };
    Ok(LockInfoDebug {
        key: LockKey::new(key).map_err(|_| unreadable())?,
        lock_id: LockId::parse(lock_id).map_err(|_| unreadable())?,
        expires_at_ms: parse_ms(expires_at_ms)?,
        acquired_at_ms: parse_ms(acquired_at_ms)?,
        fence: parse_fence(fence)?,
    })
}

pub(crate) fn parse_ms(text: &str) -> Result<i64, LockError> {
    text.parse().map_err(|_| unreadable())
}

fn parse_fence(text: &str) -> Result<Fence, LockError> {
    text.parse().map_err(|_| unreadable())
}

/// The error of a row that no SyncGuard wrote.
pub(crate) fn unreadable() -> LockError {
    LockError::new(
        ErrorCode::Internal,
        "the stored lock is not one that SyncGuard wrote",
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::PostgresOptions;

    fn statements(options: PostgresOptions) -> Statements {
        Statements::new(&options.check().unwrap())
    }

    fn all(statements: &Statements) -> [&Statement; 8] {
        [
            &statements.acquire,
            &statements.release,
            &statements.extend,
            &statements.is_locked,
            &statements.lookup_by_key,
            &statements.lookup_by_lock_id,
            &statements.clean_key,
            &statements.purge,
        ]
    }

    #[test]
    fn statements_are_complete_and_know_their_names() {
        let statements = statements(PostgresOptions::new());
        for statement in all(&statements) {
            let sql = statement.sql.as_str();
            assert!(!sql.contains(['{', '}']), "{sql}");
            assert!(!sql.contains("--"), "{sql}");
            let name = format!("'{}'", statement.name);
            assert_eq!(
                sql.matches(&name).count(),
                2,
                "asked for and answered: {sql}"
            );
        }
    }

    #[test]
    fn no_two_statements_share_a_name_nor_do_those_on_other_tables() {
        let here = statements(PostgresOptions::new());
        let there = statements(PostgresOptions::new().with_locks_table("others"));
        let names: HashSet<_> = all(&here)
            .into_iter()
            .chain(all(&there))
            .map(|statement| &statement.name)
            .collect();
        assert_eq!(names.len(), 16);
    }

    #[test]
    fn an_answer_to_something_else_is_none() {
        let statements = statements(PostgresOptions::new());
        let (release, extend) = (&statements.release, &statements.extend);
        let answer = format!("{} some key released", release.name);
        let verdict = Verdict::parse(&answer, release, "some key").unwrap();
        assert_eq!(verdict.parts(), ("released", ""));
        assert!(Verdict::parse(&answer, release, "some").unwrap().parts().0 != "released");
        assert!(Verdict::parse(&answer, release, "some other key").is_none());
        assert!(Verdict::parse(&answer, extend, "some key").is_none());
        assert!(Verdict::parse("1", release, "some key").is_none());
    }

    #[test]
    fn a_key_may_hold_spaces_and_newlines() {
        let id = "A".repeat(22);
        let info = parse_info(&format!(
            "2000 1000 000000000000007 {id} a key\nof two lines"
        ))
        .unwrap();
        assert_eq!(info.key.as_str(), "a key\nof two lines");
        assert_eq!(info.fence.get(), 7);
        assert_eq!((info.expires_at_ms, info.acquired_at_ms), (2000, 1000));
    }
}
