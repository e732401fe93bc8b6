//! [`Scripts`]: the SQL of the operations, made once per backend.

use std::sync::Arc;

use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::template::fill_in;
use crate::error::Stage;
use crate::names::Names;

pub(crate) const DDL: &str = include_str!("../sql/schema.sql");

/// A transaction, sent as one text: SQLite's thread executes it without waiting for a task in between.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(super) sql: SqlStr,
    /// How many statements it has.
    pub(super) statements: usize,
    /// Whether it takes the write lock.
    pub(crate) writes: bool,
}

#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire_look: Script,
    pub(crate) acquire: Script,
    pub(crate) release: Script,
    pub(crate) extend: Script,
    pub(crate) lookup_by_key: Script,
    pub(crate) lookup_by_lock_id: Script,
    pub(crate) list: Script,
    pub(crate) free: Script,
    pub(crate) purge: Script,
    pub(crate) create_tables: Script,
    pub(crate) missing_tables: Script,
    pub(crate) settings: Script,
    pub(crate) columns: Script,
    pub(crate) write_nothing: Script,
}

impl Scripts {
    pub(crate) fn new(names: &Names) -> Self {
        let reads = |template| Script::new(template, names, false);
        let writes = |template| Script::new(template, names, true);
        Self {
            acquire_look: reads(include_str!("../sql/acquire_look.sql")),
            acquire: writes(include_str!("../sql/acquire.sql")),
            release: writes(include_str!("../sql/release.sql")),
            extend: writes(include_str!("../sql/extend.sql")),
            lookup_by_key: reads(include_str!("../sql/lookup_by_key.sql")),
            lookup_by_lock_id: reads(include_str!("../sql/lookup_by_lock_id.sql")),
            list: reads(include_str!("../sql/list.sql")),
            free: reads(include_str!("../sql/free.sql")),
            purge: writes(include_str!("../sql/purge.sql")),
            create_tables: writes(DDL),
            missing_tables: reads(include_str!("../sql/schema_missing.sql")),
            settings: reads(include_str!("../sql/preflight_settings.sql")),
            columns: reads(include_str!("../sql/preflight_columns.sql")),
            write_nothing: writes("DELETE FROM {locks} WHERE false"),
        }
    }
}

impl Script {
    fn new(template: &str, names: &Names, writes: bool) -> Self {
        let body = fill_in(template, &names.locks, &names.fence_counters);
        // A deferred transaction that reads and then writes could fail in the middle, if another process
        // wrote in between.
        let begin = if writes { "BEGIN IMMEDIATE" } else { "BEGIN" };
        let text = format!("{begin}; {}; COMMIT", body.trim_end_matches(';'));
        Self {
            // No text in it has a semicolon.
            statements: text.split(';').count(),
            // Only constants and checked, quoted identifiers are filled in.
            sql: AssertSqlSafe(Arc::<str>::from(text)).into_sql_str(),
            writes,
        }
    }

    /// How far the script is after some of its statements. The last one is the commit.
    pub(super) fn stage(&self, ended: usize) -> Stage {
        match (self.writes, ended + 1 < self.statements) {
            (false, _) => Stage::Reading,
            (true, true) => Stage::Writing,
            (true, false) => Stage::Committing,
        }
    }
}

/// A parameter. `$1` is the first: SQLite's `?1` is not bound in every statement of a script.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Number(i64),
}

/// The parameters of a script, to be sent once.
pub(super) fn arguments(values: &[Value<'_>]) -> Result<SqliteArguments, sqlx::Error> {
    let mut arguments = SqliteArguments::default();
    for value in values {
        match *value {
            Value::Text(text) => arguments.add(Arc::<str>::from(text)),
            Value::Number(number) => arguments.add(number),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, Row as _, SqliteConnection};

    use super::*;

    /// A page must not read the rows before it, nor those behind its prefix.
    #[tokio::test]
    async fn a_listing_reads_a_range_of_the_primary_key() {
        let names = Names::new("locks", "fences", String::new()).unwrap();
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let tables = sqlx::raw_sql(AssertSqlSafe(fill_in(
            DDL,
            &names.locks,
            &names.fence_counters,
        )));
        tables.execute(&mut connection).await.unwrap();
        let template = include_str!("../sql/list.sql");
        for statement in fill_in(template, &names.locks, &names.fence_counters).split(';') {
            let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"));
            let plan = sqlx::query(explain).fetch_all(&mut connection).await;
            let steps = plan.unwrap();
            let steps = steps.iter().map(|row| row.get::<String, _>("detail"));
            let plan: Vec<_> = steps.collect();
            let range = "SEARCH locks USING PRIMARY KEY (key>? AND key<?)";
            assert!(plan.iter().any(|step| step == range), "{plan:?}");
            assert!(
                !plan.iter().any(|step| step.contains("SCAN locks")),
                "{plan:?}"
            );
        }
    }

    #[test]
    fn scripts_are_complete_transactions() {
        let names = Names::new("locks", "fences", String::new()).unwrap();
        let scripts = Scripts::new(&names);
        for script in [
            &scripts.acquire_look,
            &scripts.acquire,
            &scripts.release,
            &scripts.extend,
            &scripts.lookup_by_key,
            &scripts.lookup_by_lock_id,
            &scripts.list,
            &scripts.free,
            &scripts.purge,
            &scripts.create_tables,
            &scripts.missing_tables,
            &scripts.settings,
            &scripts.columns,
            &scripts.write_nothing,
        ] {
            let sql = script.sql.as_str();
            assert!(!sql.contains(['{', '}', '?']), "{sql}");
            assert!(!sql.contains("--"), "{sql}");
            assert_eq!(sql.starts_with("BEGIN IMMEDIATE; "), script.writes, "{sql}");
            assert!(
                sql.starts_with("BEGIN") && sql.ends_with("; COMMIT"),
                "{sql}"
            );
        }
    }
}
