//! [`Statements`]: the SQL of the operations, made once per backend, and the form of its replies.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Decode, Postgres, Row as _, SqlSafeStr as _, SqlStr, Type};
use syncguard_core::backend::{CLEANUP_GUARD_MS, FENCE_MAX, MAX_PAGE_SIZE, TIME_TOLERANCE_MS};
use syncguard_core::{LockError, hash_key};

use super::hanging::tag;
use super::session::LOCK_TIMEOUT_MS;
use crate::error::BEGAN_LATE;
use crate::names::Names;

/// The longest that an acquire may wait in the server and still be granted, in milliseconds.
///
/// If the caller of an acquire has left, the background releases its id for about a second. An acquire
/// granted after the last of these releases would hold the key for its TTL.
const MAX_WAIT_MS: i64 = 500;

/// A double holds microseconds until the year 2255, and is cheaper than the `numeric` that `extract`
/// gives. It is as monotonic as the server's clock.
const NOW_MS: &str =
    "pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint";

/// In acquire: whether it may still be granted. An acquire that queued may wait no longer than its TTL
/// either.
const IN_TIME: &str = "pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp() \
                       < CASE WHEN after_waits.waited THEN least($5, {max_wait_ms}) ELSE {max_wait_ms} END \
                       * interval '1 millisecond'";
/// The same limit, queued or not.
const IN_TIME_AT_ALL: &str = "pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp() \
                              < {max_wait_ms} * interval '1 millisecond'";

/// Whether an expiry is live by a clock: `is_live` of the core, in SQL.
fn live(expires_at_ms: &str, now_ms: &str) -> String {
    format!("({expires_at_ms} > {now_ms} - {TIME_TOLERANCE_MS})")
}

/// In acquire: whether a lock that was just inserted has lost more than 2 % of its TTL, and more than 20 ms.
/// An insert whose snapshot does not show a row that is being deleted waits for that delete, with values from
/// before the wait.
const LATE: &str = "{now_ms} - acquired_at_ms > greatest($5 / 50, 20)";

/// Fails the statement, for [`is_conflict`](crate::error::is_conflict) to see: nobody sees that lock, and the
/// statement is sent again.
fn began_late() -> String {
    format!("('{BEGAN_LATE}, fence ' || fence)::int::text")
}

/// In acquire: the lock that the id has, or in how many milliseconds this statement would find another id's lock dead.
/// Idempotent: the id that holds the key gets the same grant again. A `UNION ALL` of the possible replies would
/// be shorter, but a refusal would cost the server 8 % more.
const GRANT_OR_WAIT: &str = "\
    CASE WHEN existing.own THEN existing.expires_at_ms ELSE granted.expires_at_ms END AS expires_at_ms, \
    CASE WHEN existing.own THEN existing.fence ELSE granted.fence END AS fence, \
    CASE WHEN NOT existing.own THEN greatest(existing.expires_at_ms - {now_ms} + {tolerance_ms}, 1) \
    END AS free_in_ms";

/// In release: notifies those who wait for a key of the same slot, if anyone does. A caller that waits
/// holds this lock shared; without one, there is no NOTIFY, with which transactions commit one after the other.
const WAKE: &str = ", CASE WHEN NOT pg_catalog.pg_try_advisory_xact_lock({class}, {slot}) \
                    THEN pg_catalog.pg_notify('{channel}', ({slot})::pg_catalog.text) END AS woken";

/// In release: commits without a wait for the disk. Only this transaction.
const COMMIT_LATER: &str =
    " AND pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL";

/// In a statement that waits for others, before its first wait: limits its waits as the backend's own sessions do,
/// or more strictly if the session does. Only this transaction.
const LIMIT_WAITS: &str = " AND pg_catalog.set_config('lock_timeout', \
    CASE WHEN pg_catalog.current_setting('lock_timeout')::interval \
              BETWEEN '1 ms'::interval AND '{lock_timeout_ms} ms'::interval \
         THEN pg_catalog.current_setting('lock_timeout') ELSE '{lock_timeout_ms}' END, \
    true) IS NOT NULL";

/// The slot of a key. Keys that share one cost false alarms; few slots keep the server's lock table small.
pub(crate) const SLOT: &str = "pg_catalog.hashtext(key) & 1023";

/// The first columns of every reply. Another statement may reply with the parameters that it got; the text in
/// `statement` is none of them.
const PROOF: &str = "'{reply}' AS statement, $2 AS subject";

/// A statement with its table names filled in.
///
/// A pooler in transaction mode can pass our parameters to another client's statement. So each
/// statement has a name, the hash of its text. It does nothing unless its first parameter is that
/// name, and its reply begins with [`PROOF`].
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) sql: SqlStr,
    pub(crate) name: Arc<str>,
    reply_name: String,
    /// Whether the statement may have taken effect although it failed.
    pub(crate) writes: bool,
    /// The same for a session without a `lock_timeout`, if it waits for others.
    limiting_waits: Option<Box<Self>>,
}

const RELEASE: &str = include_str!("../sql/release.sql");

#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) acquire: Statement,
    /// The same for a key without a row and without a queue.
    pub(crate) acquire_free: Statement,
    pub(crate) release: Statement,
    /// The same, and it wakes nobody.
    pub(crate) release_silently: Statement,
    pub(crate) in_flight: Statement,
    pub(crate) extend: Statement,
    pub(crate) is_locked: Statement,
    pub(crate) lookup_by_key: Statement,
    pub(crate) lookup_by_lock_id: Statement,
    pub(crate) list: Statement,
    pub(crate) clean_key: Statement,
    pub(crate) purge: Statement,
}

impl Statements {
    pub(crate) fn new(names: &Names, asynchronous_releases: bool) -> Self {
        let commit = if asynchronous_releases {
            COMMIT_LATER
        } else {
            ""
        };
        let release = RELEASE.replace("{commit}", commit);
        let reads = |template| Statement::new(template, names, false);
        let writes = |template| Statement::new(template, names, true);
        Self {
            acquire: writes(include_str!("../sql/acquire.sql")),
            acquire_free: writes(include_str!("../sql/acquire_free.sql")),
            release: writes(&release.replace("{wake}", WAKE)),
            release_silently: writes(&release.replace("{wake}", "")),
            in_flight: reads(include_str!("../sql/in_flight.sql")),
            extend: writes(include_str!("../sql/extend.sql")),
            is_locked: reads(include_str!("../sql/is_locked.sql")),
            lookup_by_key: reads(include_str!("../sql/lookup_by_key.sql")),
            lookup_by_lock_id: reads(include_str!("../sql/lookup_by_lock_id.sql")),
            list: reads(include_str!("../sql/list.sql")),
            clean_key: writes(include_str!("../sql/clean_key.sql")),
            purge: writes(include_str!("../sql/purge.sql")),
        }
    }
}

impl Statement {
    fn new(template: &str, names: &Names, writes: bool) -> Self {
        let with_limit = |limit| Self::of(&template.replace("{limit}", limit), names, writes);
        let limiting_waits = template
            .contains("{limit}")
            .then(|| with_limit(LIMIT_WAITS));
        Self {
            limiting_waits: limiting_waits.map(Box::new),
            ..with_limit("")
        }
    }

    fn of(template: &str, names: &Names, writes: bool) -> Self {
        let text = fill_in(template, names);
        let name = hash_key(&text).to_string();
        let reply_name = format!("{name}-reply");
        let text = text
            .replace("{statement}", &name)
            .replace("{reply}", &reply_name);
        let text = format!("{} {text}", tag(&name));
        Self {
            // Only constants and checked, quoted identifiers are filled in.
            sql: AssertSqlSafe(Arc::<str>::from(text)).into_sql_str(),
            name: name.into(),
            reply_name,
            writes,
            limiting_waits: None,
        }
    }

    /// The statement for a session whose waits nothing else limits.
    pub(crate) fn limiting_waits(&self) -> &Self {
        self.limiting_waits.as_deref().unwrap_or(self)
    }
}

/// Fills in a template, except for the statement's own name, and drops its comments.
fn fill_in(template: &str, names: &Names) -> String {
    let lines: Vec<_> = template
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("--"))
        .collect();
    lines
        .join(" ")
        .replace("{proof}", PROOF)
        .replace("{in_time}", IN_TIME)
        .replace("{in_time_at_all}", IN_TIME_AT_ALL)
        // In acquire's upsert: whether the row that is there may be replaced.
        .replace(
            "{dead}",
            &format!(
                "NOT {}",
                live("lock.expires_at_ms", "excluded.acquired_at_ms")
            ),
        )
        .replace("{live}", &live("expires_at_ms", NOW_MS))
        // By a clock that the statement has read before, so that all of its parts agree.
        .replace("{live_then}", &live("expires_at_ms", "now_ms"))
        .replace("{grant_or_wait}", GRANT_OR_WAIT)
        .replace("{late}", LATE)
        .replace("{began_late}", &began_late())
        .replace("{now_ms}", NOW_MS)
        .replace("{tolerance_ms}", &TIME_TOLERANCE_MS.to_string())
        .replace("{cleanup_guard_ms}", &CLEANUP_GUARD_MS.to_string())
        .replace("{lock_timeout_ms}", &LOCK_TIMEOUT_MS.to_string())
        .replace("{max_wait_ms}", &MAX_WAIT_MS.to_string())
        .replace("{look_at}", &MAX_PAGE_SIZE.to_string())
        .replace("{fence_max}", &FENCE_MAX.to_string())
        .replace("{class}", &names.class().to_string())
        .replace("{channel}", &names.channel())
        .replace("{slot}", SLOT)
        .replace("{locks}", &names.locks.to_string())
        .replace("{fences}", &names.fence_counters.to_string())
}

/// A parameter beyond the statement's name and its subject.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Number(i64),
}

/// The reply of a statement: a row, in which [`PROOF`] comes first.
#[derive(Debug)]
pub(crate) struct Reply {
    row: PgRow,
    /// Whether the statement may have taken effect.
    of_write: bool,
}

impl Reply {
    /// The reply of `statement` about `subject`; `None` if the row belongs to another statement or subject.
    pub(crate) fn of(statement: &Statement, subject: &str, row: PgRow) -> Option<Self> {
        // sqlx panics at a column that the statement had when it was prepared, and that the row has not. Only the
        // statement itself replies with this text, and then all columns are there. A row may have none at all.
        let name = catch_unwind(AssertUnwindSafe(|| row.try_get::<&str, _>(0)));
        if name.ok()?.ok()? != statement.reply_name {
            return None;
        }
        let reply = Self {
            row,
            of_write: statement.writes,
        };
        (reply.get::<&str>("subject").ok()? == subject).then_some(reply)
    }

    /// The value of a column.
    pub(crate) fn get<'r, T>(&'r self, column: &str) -> Result<T, LockError>
    where
        T: Decode<'r, Postgres> + Type<Postgres>,
    {
        self.row.try_get(column).map_err(|_| self.unreadable())
    }

    pub(crate) fn verdict(&self) -> Result<&str, LockError> {
        self.get("verdict")
    }

    /// The error of a value that SyncGuard does not write.
    pub(crate) fn unreadable(&self) -> LockError {
        let error = LockError::invalid_argument(
            "the stored lock has a value that SyncGuard does not write: repair the row",
        );
        if self.of_write {
            error.with_outcome_unknown()
        } else {
            error
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::PostgresOptions;

    fn statements(options: PostgresOptions) -> Statements {
        let settings = options.check().unwrap();
        Statements::new(&settings.names, settings.asynchronous_releases)
    }

    fn all(statements: &Statements) -> [&Statement; 12] {
        [
            &statements.acquire,
            &statements.acquire_free,
            &statements.release,
            &statements.release_silently,
            &statements.in_flight,
            &statements.extend,
            &statements.is_locked,
            &statements.lookup_by_key,
            &statements.lookup_by_lock_id,
            &statements.list,
            &statements.clean_key,
            &statements.purge,
        ]
    }

    #[test]
    fn statements_are_complete_and_have_their_names() {
        let statements = statements(PostgresOptions::new());
        let all = all(&statements).into_iter();
        for statement in all.flat_map(|statement| [statement, statement.limiting_waits()]) {
            let sql = statement.sql.as_str();
            assert!(!sql.contains(['{', '}']), "{sql}");
            assert!(!sql.contains("--"), "{sql}");
            let is_own = format!("$1 = '{}'", statement.name);
            assert_eq!(sql.matches(&is_own).count(), 1, "it checks its name: {sql}");
            let proof = format!(
                "SELECT '{}' AS statement, $2 AS subject",
                statement.reply_name
            );
            assert_eq!(sql.matches(&proof).count(), 1, "it proves itself: {sql}");
        }
    }

    #[test]
    fn no_two_statements_share_a_name_nor_do_those_on_other_tables() {
        let here = statements(PostgresOptions::new());
        let there = statements(PostgresOptions::new().locks_table("others"));
        let names: HashSet<_> = all(&here)
            .into_iter()
            .chain(all(&there))
            .map(|statement| &statement.name)
            .collect();
        // `in_flight` reads no table.
        assert_eq!(names.len(), 23);
    }
}
