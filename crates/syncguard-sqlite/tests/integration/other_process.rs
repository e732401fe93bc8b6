//! Another process has the file locked, or the disk takes no more.

use std::env;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{MINUTE, acquire_by, connection, file, is_held, key, options, release, take};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteLockingMode;
use syncguard_core::backend::{AcquireResult, LockBackend as _};
use syncguard_core::{ErrorCode, LockError, Locks};
use syncguard_sqlite::{SqliteBackend, SqliteOptions, Synchronous, sqlx};

/// What the other process does, and to which file. Set there alone.
const DOES: &str = "SYNCGUARD_SQLITE_OTHER_DOES";
const PATH: &str = "SYNCGUARD_SQLITE_OTHER_PATH";

/// The other process: this program again. Without its variables it does nothing.
#[tokio::test]
async fn other() {
    let (Ok(does), Ok(path)) = (env::var(DOES), env::var(PATH)) else {
        return;
    };
    let path = Path::new(&path);
    match does.as_str() {
        "write" => {
            let mut connection = connection(path).await;
            sqlx::raw_sql("BEGIN IMMEDIATE; DELETE FROM syncguard_locks WHERE false")
                .execute(&mut connection)
                .await
                .unwrap();
            stay(path).await;
        }
        // As a program that wants the file for itself, and no shared memory.
        "exclude" => {
            let alone = options(path).locking_mode(SqliteLockingMode::Exclusive);
            let mut connection = alone.connect().await.unwrap();
            sqlx::raw_sql("BEGIN EXCLUSIVE; DELETE FROM syncguard_locks WHERE false; COMMIT")
                .execute(&mut connection)
                .await
                .unwrap();
            stay(path).await;
        }
        "fill" => fill(path).await,
        _ => panic!("{does}"),
    }
}

fn sign(path: &Path) -> std::path::PathBuf {
    path.with_extension("ready")
}

async fn stay(path: &Path) {
    std::fs::write(sign(path), "").unwrap();
    tokio::time::sleep(MINUTE * 60).await;
}

/// Acquires until the disk is full: the system lets files of this process grow only so far. Then a held lock stays.
async fn fill(path: &Path) {
    let options = SqliteOptions::new().synchronous(Synchronous::Normal);
    let backend = SqliteBackend::connect_with(path, options).await.unwrap();
    let locks = Locks::new(backend);
    let held = locks.try_lock("kept").ttl(MINUTE * 60).await.unwrap();
    let held = held.expect("nobody else is there").detach();
    let mut failed = Vec::new();
    for number in 0..100_000_u32 {
        let name = format!("{number}{}", "x".repeat(400));
        match locks.try_lock(&name).ttl(MINUTE * 60).await {
            Ok(guard) => {
                let guard = guard.expect("nobody else is there").detach();
                assert_eq!(guard.fence().get(), 1);
            }
            Err(error) => {
                failed.push(error);
                if failed.len() == 3 {
                    break;
                }
            }
        }
    }
    assert_eq!(failed.len(), 3, "the disk is never full");
    // Shorter than an acquire: some may still find room.
    let (id, mut expires_at_ms) = (*held.lock_id(), held.expires_at_ms());
    let error = loop {
        match locks.extend(id, MINUTE * 120).await {
            Ok(extended) => expires_at_ms = extended.expires_at_ms().unwrap(),
            Err(error) => break error,
        }
    };
    failed.push(error);
    failed.push(locks.release(id).await.unwrap_err());
    let kept = locks.get_by_key("kept").await.unwrap().unwrap();
    assert_eq!(kept.expires_at_ms, expires_at_ms);
    for error in failed {
        // The file system's limit is an input or output error to SQLite, a full disk is not.
        let codes = [ErrorCode::ServiceUnavailable, ErrorCode::RateLimited];
        assert!(codes.contains(&error.code()), "{error}");
        // The commit fails.
        assert!(error.outcome_unknown(), "{error}");
    }
}

fn start(does: &str, path: &Path, limit: &str) -> Other {
    // Without its signal, a limit gives an error.
    let script = format!("trap '' XFSZ; {limit} exec \"$0\" --exact other_process::other");
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .arg(env::current_exe().unwrap())
        .env(DOES, does)
        .env(PATH, path)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Other(command.spawn().unwrap())
}

async fn ready(path: &Path) {
    let until = tokio::time::Instant::now() + MINUTE;
    while !sign(path).exists() {
        assert!(tokio::time::Instant::now() < until, "the other process");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // Of one that has ended there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn attempt(backend: &SqliteBackend) -> Result<AcquireResult, LockError> {
    acquire_by(backend, &key("k"), MINUTE, Duration::from_secs(2)).await
}

#[tokio::test]
async fn a_file_that_another_process_writes_to_for_long_gives_a_known_outcome() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let held = take(&backend, &key("held"), MINUTE * 60).await;
    let other = start("write", &path, "");
    ready(&path).await;
    for _ in 0..2 {
        let error = attempt(&backend).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error}");
        assert!(error.to_string().contains("long transaction"), "{error}");
        assert!(!error.outcome_unknown());
    }
    // Reads need no write lock.
    assert!(is_held(&backend, &key("held")).await);
    // It is killed, and SQLite rolls back what it wrote.
    drop(other);
    assert_eq!(take(&backend, &key("k"), MINUTE).await.fence.get(), 1);
    assert!(
        release(&backend, &held.lock_id)
            .await
            .unwrap()
            .is_released()
    );
}

#[tokio::test]
async fn a_file_that_another_process_has_for_itself_gives_a_typed_error() {
    let (_folder, path) = file();
    let close = syncguard_core::backend::CloseRequest::new(tokio::time::Instant::now() + MINUTE);
    let backend = SqliteBackend::connect(&path).await.unwrap();
    backend.close(close).await.unwrap();
    let other = start("exclude", &path, "");
    ready(&path).await;
    let error = SqliteBackend::connect(&path).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error}");
    drop(other);
    let backend = SqliteBackend::connect(&path).await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
}

#[tokio::test]
async fn a_disk_that_takes_no_more_grants_nothing_twice() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let held = take(&backend, &key("held"), MINUTE * 60).await;
    // In blocks of 512 bytes: 1 MiB.
    let mut other = start("fill", &path, "ulimit -f 2048;");
    assert!(other.0.wait().unwrap().success());
    // This process may go on, and sees each lock that the other one was granted.
    let locks = Locks::new(backend.clone());
    let mut granted = 0;
    for number in 0_u32.. {
        let name = format!("{number}{}", "x".repeat(400));
        match locks.try_lock(&name).await.unwrap() {
            None => granted += 1,
            Some(_) => break,
        }
    }
    assert!(granted > 10, "{granted}");
    assert!(is_held(&backend, &key("held")).await);
    assert!(
        release(&backend, &held.lock_id)
            .await
            .unwrap()
            .is_released()
    );
    let found: String = sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_one(&mut connection(&path).await)
        .await
        .unwrap();
    assert_eq!(found, "ok");
}
