//! What preflight finds.

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use syncguard_core::{Finding, Locks, Severity};
use syncguard_sqlite::{SqliteBackend, SqliteOptions, Synchronous, sqlx};

use crate::common::{connection, file, options};

async fn findings(backend: SqliteBackend) -> Vec<(Severity, &'static str)> {
    let found = Locks::new(backend).preflight().await.unwrap();
    let known = |finding: &Finding| (finding.severity(), finding.code());
    // Where nobody tells, that is a finding; and the disk may be full.
    let of_the_machine = ["sqlite-file-system-unknown", "sqlite-disk-space"];
    let found = found.iter().map(known);
    found
        .filter(|(_, code)| !of_the_machine.contains(code))
        .collect()
}

async fn over(target: SqliteConnectOptions) -> SqliteBackend {
    let pool = SqlitePool::connect_with(target).await.unwrap();
    SqliteBackend::with_pool(pool, SqliteOptions::new()).unwrap()
}

async fn of_pool(target: SqliteConnectOptions) -> Vec<(Severity, &'static str)> {
    findings(over(target).await).await
}

#[tokio::test]
async fn a_file_of_its_own_has_none() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    assert_eq!(findings(backend).await, []);
}

#[tokio::test]
async fn settings_that_weaken_the_locks_are_found() {
    let (_folder, path) = file();
    let weak = SqliteOptions::new().synchronous(Synchronous::Normal);
    let backend = SqliteBackend::connect_with(&path, weak).await.unwrap();
    let normal = (Severity::Warning, "sqlite-synchronous");
    assert_eq!(findings(backend).await, [normal]);

    let off = options(&path).synchronous(SqliteSynchronous::Off);
    assert_eq!(of_pool(off).await, [normal]);
    let read_only = options(&path).create_if_missing(false).read_only(true);
    let refused = (Severity::Error, "sqlite-read-only");
    assert_eq!(of_pool(read_only).await, [refused]);
    for (mode, severity) in [
        (SqliteJournalMode::Delete, Severity::Warning),
        (SqliteJournalMode::Memory, Severity::Error),
        (SqliteJournalMode::Off, Severity::Error),
    ] {
        let (_folder, path) = file();
        let backend = over(options(&path).journal_mode(mode)).await;
        backend.setup_schema().await.unwrap();
        let found = findings(backend).await;
        assert_eq!(found, [(severity, "sqlite-journal-mode")], "{mode:?}");
    }
}

#[tokio::test]
async fn tables_that_are_missing_or_foreign_are_found() {
    let (_folder, path) = file();
    let missing = (Severity::Error, "sqlite-table-missing");
    assert_eq!(of_pool(options(&path)).await, [missing, missing]);
    let mut other = connection(&path).await;
    let foreign = "CREATE TABLE syncguard_locks (key TEXT PRIMARY KEY, owner TEXT)";
    sqlx::raw_sql(foreign).execute(&mut other).await.unwrap();
    let columns = (Severity::Error, "sqlite-columns");
    assert_eq!(of_pool(options(&path)).await, [columns, missing]);
}

#[tokio::test]
async fn a_store_in_memory_says_so() {
    let backend = SqliteBackend::connect(":memory:").await.unwrap();
    let memory = (Severity::Info, "sqlite-memory");
    assert_eq!(findings(backend).await, [memory]);
}

#[tokio::test]
async fn nothing_is_left_behind() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let mut other = connection(&path).await;
    let version = async |other: &mut sqlx::SqliteConnection| -> i64 {
        let version = sqlx::query_scalar("PRAGMA data_version");
        version.fetch_one(other).await.unwrap()
    };
    let before = version(&mut other).await;
    Locks::new(backend).preflight().await.unwrap();
    assert_eq!(version(&mut other).await, before);
}
