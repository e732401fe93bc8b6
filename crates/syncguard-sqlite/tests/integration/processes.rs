//! Several processes on one file: none fails, none breaks a lock, and none harms the file by its death.

use std::collections::HashMap;
use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::SqliteConnection;
use syncguard_core::{LockGuard, Locks};
use syncguard_sqlite::{SqliteBackend, SqliteOptions, Synchronous, sqlx};

use crate::common::{connection, file};

/// Where the files of a worker are. Set in its process alone.
const FOLDER: &str = "SYNCGUARD_SQLITE_WORKER_FOLDER";
/// How many pairs it makes.
const PAIRS: &str = "SYNCGUARD_SQLITE_WORKER_PAIRS";

/// No lease ends while a test runs, not even that of a worker that was killed.
const TTL: Duration = Duration::from_secs(600);

const KEYS: usize = 8;

/// More than workers can be killed.
const MANY_KEYS: usize = 1_000;
const FOR_EVER: usize = usize::MAX;

/// The worker: this program again. Without its variables it works on a file of its own.
#[tokio::test]
async fn worker() {
    let own;
    let (folder, pairs) = match (env::var(FOLDER), env::var(PAIRS)) {
        (Ok(folder), Ok(pairs)) => (PathBuf::from(folder), pairs.parse().unwrap()),
        _ => {
            own = file();
            (own.0.path().to_owned(), 10)
        }
    };
    let options = SqliteOptions::new().synchronous(Synchronous::Normal);
    let backend = SqliteBackend::connect_with(folder.join("locks.db"), options).await;
    let locks = Locks::new(backend.unwrap());
    // Everybody begins elsewhere.
    let first = usize::try_from(std::process::id()).unwrap();
    for pair in 0..pairs {
        let guard = if pairs == FOR_EVER {
            // Some keys are those of workers that were killed.
            let key = format!("k{}", (first + pair) % MANY_KEYS);
            locks.try_lock(key).ttl(TTL).await.unwrap()
        } else {
            let key = format!("k{}", (first + pair) % KEYS);
            Some(locks.lock(key).ttl(TTL).timeout(TTL).await.unwrap())
        };
        if let Some(guard) = guard {
            work(&folder, &guard);
            assert!(guard.release().await.unwrap().is_released());
        }
    }
}

/// A section. The operating system's lock on a file of the key shows whether it has the key alone.
fn work(folder: &Path, guard: &LockGuard) {
    let key = guard.key().as_str();
    let alone = File::create(folder.join(key)).unwrap();
    alone.try_lock().expect("nobody else is in the section");
    let mut record = File::options()
        .create(true)
        .append(true)
        .open(folder.join("record"))
        .unwrap();
    let line = format!("{key} {}\n", guard.fence().get());
    record.write_all(line.as_bytes()).unwrap();
}

struct Worker(Child);

impl Worker {
    fn start(folder: &Path, pairs: usize) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "processes::worker"])
            .env(FOLDER, folder)
            .env(PAIRS, pairs.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn has_failed(&mut self) -> bool {
        let ended = self.0.try_wait().unwrap();
        ended.is_some_and(|status| !status.success())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A process that has ended cannot be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many grants were recorded. The fences of each key increase in the order of the sections.
fn checked_record(folder: &Path) -> usize {
    let record = fs::read_to_string(folder.join("record")).unwrap();
    let mut newest: HashMap<&str, u64> = HashMap::new();
    for line in record.lines() {
        let (key, fence) = line.split_once(' ').unwrap();
        let fence = fence.parse().unwrap();
        let before = newest.insert(key, fence).unwrap_or_default();
        assert!(fence > before, "{key}: fence {fence} after {before}");
    }
    record.lines().count()
}

async fn assert_sound(connection: &mut SqliteConnection) {
    let found: String = sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_one(connection)
        .await
        .unwrap();
    assert_eq!(found, "ok");
}

#[tokio::test]
async fn eight_processes_make_a_thousand_pairs_each_without_an_error() {
    let (folder, path) = file();
    let mut workers: Vec<_> = (0..8)
        .map(|_| Worker::start(folder.path(), 1_000))
        .collect();
    for worker in &mut workers {
        assert!(worker.0.wait().unwrap().success());
    }
    assert_eq!(checked_record(folder.path()), 8_000);
    assert_sound(&mut connection(&path).await).await;
}

#[tokio::test]
async fn processes_that_are_killed_leave_a_sound_file_and_their_leases() {
    const FOR: Duration = Duration::from_secs(8);
    let (folder, path) = file();
    let mut connection = connection(&path).await;
    drop(SqliteBackend::connect(&path).await.unwrap());
    let start = || Worker::start(folder.path(), FOR_EVER);
    let mut workers: Vec<_> = (0..4).map(|_| start()).collect();
    let started = Instant::now();
    let mut killed = 0_u32;
    while started.elapsed() < FOR {
        let pause = Duration::from_micros(50_000 + u64::from(killed) * 7_919 % 100_000);
        tokio::time::sleep(pause).await;
        let next = killed as usize % workers.len();
        assert!(!workers[next].has_failed());
        // In the middle of whatever it does.
        workers[next] = start();
        killed += 1;
        assert_sound(&mut connection).await;
    }
    drop(workers);
    assert!(killed > 10);
    assert!(checked_record(folder.path()) > 0);
    assert_sound(&mut connection).await;
}
