//! Checks whether a file and its settings are fit for locks.

mod file_system;

use std::path::Path;

use syncguard_core::{ErrorCode, Finding, LockError, Severity};
use tokio::time::Instant;

use crate::SqliteBackend;
use crate::names::TableName;
use crate::place::Place;
use crate::preflight::file_system::free_bytes;
use crate::record::{column, unreadable};
use crate::wire::Value;

pub(crate) use self::file_system::FileSystem;

/// With less free space, the next checkpoint or the growth of the log may fail.
const LEAST_FREE_BYTES: u64 = 16 << 20;

/// The first version whose clock has milliseconds in SQL.
const OLDEST_VERSION: (u32, u32) = (3, 42);

const LOCK_COLUMNS: &[(&str, &str)] = &[
    ("key", "TEXT"),
    ("lock_id", "TEXT"),
    ("expires_at_ms", "INTEGER"),
    ("acquired_at_ms", "INTEGER"),
    ("fence", "TEXT"),
    ("user_key", "TEXT"),
];

const FENCE_COLUMNS: &[(&str, &str)] = &[
    ("fence_key", "TEXT"),
    ("fence", "INTEGER"),
    ("key_debug", "TEXT"),
];

impl SqliteBackend {
    pub(crate) async fn look_at_configuration(
        &self,
        deadline: Instant,
    ) -> Result<Vec<Finding>, LockError> {
        let mut findings = match &*self.settings().place {
            Place::Memory(_) => vec![Finding::new(
                Severity::Info,
                "sqlite-memory",
                "the database is in memory: locks and fences live in this process, and end with it",
                "nothing, in a single process or in tests; for other processes name a file",
            )],
            Place::File(file) => about_file(&file.path),
        };
        findings.extend(self.settings_in_force(deadline).await?);
        let names = self.names();
        for (table, columns) in [
            (&names.locks, LOCK_COLUMNS),
            (&names.fence_counters, FENCE_COLUMNS),
        ] {
            findings.extend(self.table(table, columns, deadline).await?);
        }
        let is_error = |finding: &Finding| finding.severity() == Severity::Error;
        if !findings.iter().any(is_error) {
            findings.extend(self.read_only(deadline).await?);
        }
        Ok(findings)
    }

    /// Only a write shows whether the file is read-only.
    async fn read_only(&self, deadline: Instant) -> Result<Option<Finding>, LockError> {
        let nothing = &self.scripts().write_nothing;
        match self.exchange(nothing, &[], deadline).await {
            Ok(_) => Ok(None),
            Err(error) if error.code() == ErrorCode::AuthFailed => Ok(Some(Finding::new(
                Severity::Error,
                "sqlite-read-only",
                "the file is read-only here: every acquire and release fails",
                "give this process permission to write to the file and to create files in its folder, \
                 and let the pool open it for writing",
            ))),
            Err(error) => Err(error),
        }
    }

    async fn settings_in_force(&self, deadline: Instant) -> Result<Vec<Finding>, LockError> {
        let script = &self.scripts().settings;
        let rows = self.exchange(script, &[], deadline).await?;
        let row = rows.first().ok_or_else(unreadable)?;
        let (version, journal_mode): (&str, &str) =
            (column(row, "version")?, column(row, "journal_mode")?);
        let synchronous: i64 = column(row, "synchronous")?;
        let mut findings = Vec::new();
        if !is_recent(version) {
            findings.push(Finding::new(
                Severity::Error,
                "sqlite-version",
                format!("SQLite {version} has no clock with milliseconds: operations fail"),
                "build the program with SQLite 3.42 or later, as this crate's own build is",
            ));
        }
        if self.settings().place.is_memory() {
            return Ok(findings);
        }
        match journal_mode {
            "wal" => {}
            "off" | "memory" => findings.push(Finding::new(
                Severity::Error,
                "sqlite-journal-mode",
                format!(
                    "the journal mode is `{journal_mode}`: a process that is killed while it writes \
                     corrupts the file"
                ),
                "set the journal mode to WAL",
            )),
            _ => findings.push(Finding::new(
                Severity::Warning,
                "sqlite-journal-mode",
                format!(
                    "the journal mode is `{journal_mode}`, not WAL: operations that read and those that \
                     write keep each other waiting"
                ),
                "set the journal mode to WAL, in the connect options of a pool; if it does not stay, the \
                 file system cannot share memory between processes: move the file",
            )),
        }
        match synchronous {
            0 => findings.push(Finding::new(
                Severity::Warning,
                "sqlite-synchronous",
                "`synchronous` is OFF: a power failure can corrupt the file",
                "set `synchronous` to FULL",
            )),
            1 => findings.push(Finding::new(
                Severity::Warning,
                "sqlite-synchronous",
                "`synchronous` is NORMAL: after a power failure a fence can be granted a second time",
                "set `synchronous` to FULL, if a resource outside this machine checks fences",
            )),
            _ => {}
        }
        Ok(findings)
    }

    async fn table(
        &self,
        table: &TableName,
        expected: &[(&str, &str)],
        deadline: Instant,
    ) -> Result<Option<Finding>, LockError> {
        let values = [Value::Text(table.as_str())];
        let script = &self.scripts().columns;
        let rows = self.exchange(script, &values, deadline).await?;
        if rows.is_empty() {
            return Ok(Some(Finding::new(
                Severity::Error,
                "sqlite-table-missing",
                format!("there is no table {table}"),
                "run `SqliteBackend::setup_schema`",
            )));
        }
        let mut present = Vec::new();
        for row in &rows {
            let found: (&str, &str) = (column(row, "name")?, column(row, "type")?);
            present.push(found);
        }
        let wrong: Vec<_> = expected
            .iter()
            .filter(|column| !present.contains(column))
            .map(|(name, kind)| format!("{name} {kind}"))
            .collect();
        Ok((!wrong.is_empty()).then(|| {
            Finding::new(
                Severity::Error,
                "sqlite-columns",
                format!("the table {table} lacks columns: {}", wrong.join(", ")),
                "compare it with `SqliteBackend::schema_ddl`, or configure another table",
            )
        }))
    }
}

fn about_file(path: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    let path_shown = path.display();
    findings.extend(match FileSystem::of(path) {
        FileSystem::Local => None,
        FileSystem::Network(name) => Some(Finding::new(
            Severity::Error,
            "sqlite-network-file-system",
            format!("{path_shown} is on a network file system ({name}): a key can have two holders"),
            "move the file to a local disk, or use a store with a server",
        )),
        FileSystem::Fuse => Some(Finding::new(
            Severity::Warning,
            "sqlite-fuse",
            format!(
                "{path_shown} is on a FUSE file system: whether its locks and its shared memory work \
                 depends on the program behind it"
            ),
            "move the file to a local disk, such as a volume instead of a folder of a virtual machine's \
             host",
        )),
        FileSystem::Unknown => Some(Finding::new(
            Severity::Info,
            "sqlite-file-system-unknown",
            format!("cannot determine the file system of {path_shown}"),
            "make sure that it is a local disk",
        )),
    });
    if let Some(free) = free_bytes(path).filter(|free| *free < LEAST_FREE_BYTES) {
        findings.push(Finding::new(
            Severity::Warning,
            "sqlite-disk-space",
            format!("only {free} bytes are free where {path_shown} lies: acquires may fail soon"),
            "free at least 16 MiB, and delete expired locks with `purge_expired`",
        ));
    }
    findings
}

fn is_recent(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= OLDEST_VERSION,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(is_recent("3.42.0") && is_recent("3.100.1") && is_recent("4.0.0"));
        assert!(!is_recent("3.41.2") && !is_recent("3.9.0") && !is_recent("three"));
    }
}
