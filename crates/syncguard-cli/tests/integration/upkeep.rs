//! Maintenance beside work.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use syncguard_core::{Fence, Locks};
use syncguard_redis::RedisBackend;
use syncguard_sqlite::{SqliteBackend, SqliteOptions, Synchronous};

use crate::common::Stage;

const KEYS: usize = 100;
const ROUNDS: usize = 10_000;
const WORKERS: usize = 8;

async fn locks(stage: &Stage) -> Locks {
    match stage.store.strip_prefix("sqlite:") {
        Some(path) => {
            let options = SqliteOptions::new().synchronous(Synchronous::Normal);
            Locks::new(SqliteBackend::connect_with(path, options).await.unwrap())
        }
        None => Locks::new(RedisBackend::connect(&stage.store).await.unwrap()),
    }
}

/// Acquires, extends and releases keys. Nobody else may hold one meanwhile, and its fences grow.
async fn work(locks: Locks, first: usize, rounds: &AtomicUsize, holders: &Holders) {
    let mut next = first;
    while rounds.load(Ordering::Relaxed) < ROUNDS {
        next = (next + 7) % KEYS;
        let Some(guard) = locks
            .try_lock(format!("key:{next}"))
            .ttl(Duration::from_secs(600))
            .await
            .unwrap()
        else {
            continue;
        };
        {
            let mut holders = holders.lock().unwrap();
            let (held, last) = holders.entry(next).or_insert((false, None));
            assert!(!*held, "two holders of key {next}");
            assert!(*last < Some(guard.fence()), "a fence twice on key {next}");
            (*held, *last) = (true, Some(guard.fence()));
        }
        assert!(
            guard
                .extend(Duration::from_secs(900))
                .await
                .unwrap()
                .is_extended()
        );
        holders
            .lock()
            .unwrap()
            .entry(next)
            .and_modify(|(held, _)| *held = false);
        assert!(guard.release().await.unwrap().is_released());
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the maintenance with the work, and if that fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Who holds a key, and the last fence of each.
type Holders = Mutex<HashMap<usize, (bool, Option<Fence>)>>;

#[test]
fn maintenance_beside_work_removes_no_live_lock() {
    for stage in Stage::each() {
        let (code, text) = stage.outcome(&["run", "another", "--", "true"]);
        assert_eq!(code, 0, "{text}");
        let (rounds, holders) = (AtomicUsize::new(0), Holders::default());
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let maintained = scope.spawn(|| {
                let mut times = 0;
                while !done.load(Ordering::Relaxed) {
                    for command in ["purge", "list"] {
                        let (code, text) = stage.outcome(&[command]);
                        assert_eq!(code, 0, "{text}");
                    }
                    times += 1;
                }
                times
            });
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            let ending = Done(&done);
            runtime.block_on(async {
                let locks = locks(&stage).await;
                let workers = (0..WORKERS).map(|worker| {
                    let first = worker * KEYS / WORKERS;
                    work(locks.clone(), first, &rounds, &holders)
                });
                futures_util::future::join_all(workers).await;
            });
            drop(ending);
            assert!(maintained.join().unwrap() > 0);
        });
        assert!(rounds.load(Ordering::Relaxed) >= ROUNDS);
    }
}
