//! `rslock`: a lock of one key, without fence, index or a record of who holds it.

use std::time::Duration;

use anyhow::Result;
use rslock::LockManager;

use crate::drive::{Sample, Stopwatch, Worker, drive};
use crate::workload::{TTL, key_text};

struct Task {
    locks: LockManager,
    task: usize,
    next: u64,
}

impl Worker for Task {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        self.next += 1;
        let key = key_text(self.task, self.next);
        let lock = watch.time(0, self.locks.lock(key.as_str(), TTL)).await?;
        watch.time(1, self.locks.unlock(&lock)).await;
        Ok(())
    }
}

pub(crate) async fn measure(url: &str, tasks: usize, span: Duration) -> Result<Sample> {
    let locks = LockManager::from_clients(vec![redis::Client::open(url)?]);
    let workers = (0..tasks).map(|task| Task {
        locks: locks.clone(),
        task,
        next: 0,
    });
    drive(workers.collect(), span).await
}
