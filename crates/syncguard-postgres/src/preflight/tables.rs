//! The two tables: whether they are there, as they should be, and usable.

use sqlx::Row as _;
use syncguard_core::{Finding, Severity};

use super::{connection, text};
use crate::PostgresStore;
use crate::session::Session;
use crate::table::TableName;

const TEXT: &str = "text";
const BIGINT: &str = "bigint";
/// The same as `text`, to whoever reads and writes it.
const TEXT_BY_ANOTHER_NAME: &str = "character varying";

/// What a table has to have.
struct Expected<'a> {
    name: &'a TableName,
    columns: &'static [(&'static str, &'static str)],
    /// Columns of which each needs a unique index of its own.
    unique: &'static [&'static str],
    /// What every write changes, so that no index may contain it.
    written: &'static str,
    rights: &'static [&'static str],
}

impl PostgresStore {
    pub(super) async fn tables(&self, session: &mut Session) -> Result<Vec<Finding>, sqlx::Error> {
        let locks = Expected {
            name: &self.settings().locks,
            columns: &[
                ("key", TEXT),
                ("lock_id", TEXT),
                ("expires_at_ms", BIGINT),
                ("acquired_at_ms", BIGINT),
                ("fence", TEXT),
                ("user_key", TEXT),
            ],
            unique: &["key", "lock_id"],
            written: "expires_at_ms",
            rights: &["SELECT", "INSERT", "UPDATE", "DELETE"],
        };
        let fences = Expected {
            name: &self.settings().fences,
            columns: &[("fence_key", TEXT), ("fence", BIGINT), ("key_debug", TEXT)],
            unique: &["fence_key"],
            written: "fence",
            rights: &["SELECT", "INSERT", "UPDATE"],
        };
        let mut findings = locks.check(session).await?;
        findings.extend(fences.check(session).await?);
        Ok(findings)
    }
}

impl Expected<'_> {
    async fn check(&self, session: &mut Session) -> Result<Vec<Finding>, sqlx::Error> {
        let name = self.name;
        let table = sqlx::query(include_str!("../sql/preflight_table.sql"))
            .bind(name.schema())
            .bind(name.table())
            .bind(self.rights)
            .persistent(false)
            .fetch_optional(connection(session)?)
            .await?;
        let Some(table) = table else {
            return Ok(vec![Finding::new(
                Severity::Error,
                "postgres-table-missing",
                format!("there is no table {name}, or its schema is not on the search path"),
                "run `PostgresStore::setup_schema` as a role that may create tables, or name the \
                 table with its schema",
            )]);
        };
        let is = |column: &str| table.try_get::<bool, _>(column);
        let mut findings = Vec::new();
        findings.extend(self.rights(is("usage")?, &table.try_get::<Vec<String>, _>("missing")?));
        if is("unlogged")? {
            findings.push(Finding::new(
                Severity::Error,
                "postgres-unlogged",
                format!(
                    "the table {name} is unlogged: a crash of the server empties it, and standbys \
                     do not have it"
                ),
                format!("ALTER TABLE {name} SET LOGGED"),
            ));
        }
        if is("row_security")? {
            findings.push(Finding::new(
                Severity::Warning,
                "postgres-row-security",
                format!(
                    "row-level security applies to this role on {name}: a lock that it does not \
                     see is to it a free key"
                ),
                format!("ALTER TABLE {name} DISABLE ROW LEVEL SECURITY"),
            ));
        }
        if !is("fillfactor")? {
            findings.push(Finding::new(
                Severity::Info,
                "postgres-fillfactor",
                format!(
                    "the pages of {name} are filled up: an update finds no room beside the row, \
                     and has to change the indexes too"
                ),
                format!("ALTER TABLE {name} SET (fillfactor = 50)"),
            ));
        }
        let id: i64 = table.try_get("id")?;
        findings.extend(self.columns(session, id).await?);
        findings.extend(self.indexes(session, id).await?);
        Ok(findings)
    }

    fn rights(&self, usage: bool, missing: &[String]) -> Option<Finding> {
        let name = self.name;
        let mut lacking = Vec::new();
        let mut grants = Vec::new();
        if let Some(schema) = name.schema().filter(|_| !usage) {
            lacking.push(format!("USAGE on the schema of {name}"));
            grants.push(format!("GRANT USAGE ON SCHEMA \"{schema}\" TO <role>"));
        }
        if !missing.is_empty() {
            let rights = missing.join(", ");
            lacking.push(format!("{rights} on {name}"));
            grants.push(format!("GRANT {rights} ON {name} TO <role>"));
        }
        (!lacking.is_empty()).then(|| {
            Finding::new(
                Severity::Error,
                "postgres-missing-rights",
                format!("the role lacks {}", lacking.join(", and ")),
                grants.join("; "),
            )
        })
    }

    async fn columns(&self, session: &mut Session, id: i64) -> Result<Vec<Finding>, sqlx::Error> {
        let rows = sqlx::query(include_str!("../sql/preflight_columns.sql"))
            .bind(id)
            .persistent(false)
            .fetch_all(connection(session)?)
            .await?;
        let name = self.name;
        let mut findings = Vec::new();
        let mut finding = |found: String, fix: String| {
            findings.push(Finding::new(Severity::Error, "postgres-column", found, fix));
        };
        let mut present = Vec::new();
        for row in &rows {
            let column = text(row, "name")?;
            let expected = self
                .columns
                .iter()
                .find(|(expected, _)| *expected == column);
            let Some(&(_, wanted)) = expected else {
                if row.try_get("must_be_given")? {
                    finding(
                        format!("{name} has a column \"{column}\" that no lock has a value for"),
                        format!("ALTER TABLE {name} ALTER COLUMN \"{column}\" DROP NOT NULL"),
                    );
                }
                continue;
            };
            let actual = text(row, "type")?;
            if actual != wanted && !(wanted == TEXT && actual == TEXT_BY_ANOTHER_NAME) {
                finding(
                    format!("the column {column} of {name} is {actual}, not {wanted}"),
                    format!("ALTER TABLE {name} ALTER COLUMN {column} TYPE {wanted}"),
                );
            }
            if row.try_get("equates")? {
                finding(
                    format!(
                        "the collation of the column {column} of {name} takes different texts for \
                         equal: different keys are one lock"
                    ),
                    format!(
                        "ALTER TABLE {name} ALTER COLUMN {column} TYPE {wanted} COLLATE \"default\""
                    ),
                );
            }
            present.push(column);
        }
        for (column, wanted) in self.columns {
            if !present.iter().any(|present| present == column) {
                finding(
                    format!("{name} has no column {column}"),
                    format!(
                        "make the table as `PostgresStore::schema_ddl` prints it, with {column} \
                         {wanted}, or name another table"
                    ),
                );
            }
        }
        Ok(findings)
    }

    async fn indexes(&self, session: &mut Session, id: i64) -> Result<Vec<Finding>, sqlx::Error> {
        let rows = sqlx::query(include_str!("../sql/preflight_indexes.sql"))
            .bind(id)
            .bind(self.written)
            .persistent(false)
            .fetch_all(connection(session)?)
            .await?;
        let (name, written) = (self.name, self.written);
        let mut findings = Vec::new();
        let mut unique = Vec::new();
        for row in &rows {
            unique.extend(row.try_get::<Option<String>, _>("unique_column")?);
            if row.try_get("changes")? {
                let index = text(row, "name")?;
                findings.push(Finding::new(
                    Severity::Warning,
                    "postgres-index-superfluous",
                    format!(
                        "the index \"{index}\" contains {written} of {name}, which every write \
                         changes: no update can be a HOT one, and the table and its indexes grow"
                    ),
                    format!("drop \"{index}\": no operation reads it"),
                ));
            }
        }
        for column in self.unique {
            if !unique.iter().any(|unique| unique == column) {
                findings.push(Finding::new(
                    Severity::Error,
                    "postgres-index-missing",
                    format!(
                        "no valid unique index on {column} alone in {name}: locks cannot be taken, \
                         or found by it"
                    ),
                    format!("CREATE UNIQUE INDEX ON {name} ({column})"),
                ));
            }
        }
        Ok(findings)
    }
}
