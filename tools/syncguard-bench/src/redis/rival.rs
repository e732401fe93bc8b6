//! `rslock`: a lock of one key, without fence, index or record of its holder. And our scripts through the
//! driver of `rslock`, which shows how much of the difference is due to the scripts.

use std::time::Duration;

use anyhow::{Result, ensure};
use redis::Value;
use redis::aio::MultiplexedConnection;
use rslock::LockManager;

use super::scripts::{Flavour, Names, Step, script};
use crate::drive::{Sample, Stopwatch, Worker, drive, drive_on};
use crate::server_cpu::ServerCpu;
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

pub(crate) async fn measure(
    server: ServerCpu,
    url: &str,
    tasks: usize,
    span: Duration,
) -> Result<Sample> {
    let locks = LockManager::from_clients(vec![redis::Client::open(url)?]);
    let workers = (0..tasks).map(|task| Task {
        locks: locks.clone(),
        task,
        next: 0,
    });
    drive_on(Some(server), workers.collect(), span).await
}

struct BareTask {
    connection: MultiplexedConnection,
    digests: [String; 2],
    task: usize,
    next: u64,
}

impl Worker for BareTask {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        self.next += 1;
        let names = Names::of(&key_text(self.task, self.next));
        let [acquire, release] = [(Step::Acquire, 0), (Step::Release, 1)]
            .map(|(step, index)| names.command(Flavour::Ours, step, &self.digests[index]));
        let granted = acquire.query_async(&mut self.connection);
        let granted: Value = watch.time(0, granted).await?;
        let released = release.query_async(&mut self.connection);
        let released: Value = watch.time(1, released).await?;
        let expected = matches!(granted, Value::BulkString(_)) && released == Value::Int(1);
        ensure!(expected, "a free key was refused");
        Ok(())
    }
}

/// Measures our scripts with only that driver around them.
pub(crate) async fn our_scripts(
    connection: &MultiplexedConnection,
    tasks: usize,
    span: Duration,
) -> Result<Sample> {
    let mut connection = connection.clone();
    let mut digests = [String::new(), String::new()];
    for (digest, step) in digests.iter_mut().zip([Step::Acquire, Step::Release]) {
        *digest = script(Flavour::Ours, step)
            .load_async(&mut connection)
            .await?;
    }
    let workers = (0..tasks).map(|task| BareTask {
        connection: connection.clone(),
        digests: digests.clone(),
        task,
        next: 0,
    });
    drive(workers.collect(), span).await
}
