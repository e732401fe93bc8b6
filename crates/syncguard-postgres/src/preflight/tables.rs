//! Whether the two tables exist, have the right columns and indexes, and may be used.

use sqlx::Row as _;
use syncguard_core::{Finding, Severity};

use super::{connection, text};
use crate::PostgresBackend;
use crate::names::TableName;
use crate::wire::Session;

const TEXT: &str = "text";
const BIGINT: &str = "bigint";
/// Behaves as `text` for reads and writes.
const TEXT_BY_ANOTHER_NAME: &str = "character varying";

/// What a table needs.
struct Expected<'a> {
    name: &'a TableName,
    columns: &'static [(&'static str, &'static str)],
    /// Columns that each need a unique index of their own.
    unique: &'static [&'static str],
    /// The column that every write changes: no index should contain it.
    written: &'static str,
    permissions: &'static [&'static str],
}

impl PostgresBackend {
    pub(super) async fn tables(&self, session: &mut Session) -> Result<Vec<Finding>, sqlx::Error> {
        let locks = Expected {
            name: &self.names().locks,
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
            permissions: &["SELECT", "INSERT", "UPDATE", "DELETE"],
        };
        let fences = Expected {
            name: &self.names().fence_counters,
            columns: &[("fence_key", TEXT), ("fence", BIGINT), ("key_debug", TEXT)],
            unique: &["fence_key"],
            written: "fence",
            permissions: &["SELECT", "INSERT", "UPDATE"],
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
            .bind(self.permissions)
            .persistent(false)
            .fetch_optional(connection(session)?)
            .await?;
        let Some(table) = table else {
            return Ok(vec![Finding::new(
                Severity::Error,
                "postgres-table-missing",
                format!("there is no table {name}, or its schema is not on the search path"),
                "run `PostgresBackend::setup_schema` as a role that may create tables, or configure \
                 the table's name with its schema",
            )]);
        };
        let is = |column: &str| table.try_get::<bool, _>(column);
        let mut findings = Vec::new();
        let missing: Vec<String> = table.try_get("missing")?;
        findings.extend(self.permissions(is("usage")?, &missing));
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
                    "row-level security applies to this role on {name}: the key of a lock that a \
                     policy hides looks free"
                ),
                format!("ALTER TABLE {name} DISABLE ROW LEVEL SECURITY"),
            ));
        }
        if !is("fillfactor")? {
            findings.push(Finding::new(
                Severity::Info,
                "postgres-fillfactor",
                format!(
                    "{name} has no `fillfactor` below 100: an update finds no free space in the \
                     row's page, and has to change the indexes, too"
                ),
                format!("ALTER TABLE {name} SET (fillfactor = 50)"),
            ));
        }
        let id: i64 = table.try_get("id")?;
        findings.extend(self.columns(session, id).await?);
        findings.extend(self.indexes(session, id).await?);
        Ok(findings)
    }

    fn permissions(&self, usage: bool, missing: &[String]) -> Option<Finding> {
        let name = self.name;
        let mut lacking = Vec::new();
        let mut grants = Vec::new();
        if let Some(schema) = name.schema().filter(|_| !usage) {
            lacking.push(format!("USAGE on the schema of {name}"));
            grants.push(format!("GRANT USAGE ON SCHEMA \"{schema}\" TO <role>"));
        }
        if !missing.is_empty() {
            let missing = missing.join(", ");
            lacking.push(format!("{missing} on {name}"));
            grants.push(format!("GRANT {missing} ON {name} TO <role>"));
        }
        (!lacking.is_empty()).then(|| {
            Finding::new(
                Severity::Error,
                "postgres-missing-permissions",
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
                        format!(
                            "{name} has a column \"{column}\" that requires a value, and SyncGuard writes none"
                        ),
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
                        "the collation of the column {column} of {name} treats different texts as \
                         equal: different keys become one lock"
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
                        "create the table as `PostgresBackend::schema_ddl` prints it, with {column} \
                         {wanted}, or configure another table"
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
                         changes: no update is HOT, and the table and its indexes grow"
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
                        "{name} has no valid unique index on {column} alone: acquires fail, or \
                         lookups read the whole table"
                    ),
                    format!("CREATE UNIQUE INDEX ON {name} ({column})"),
                ));
            }
        }
        Ok(findings)
    }
}
