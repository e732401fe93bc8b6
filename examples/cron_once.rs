//! A cron job that runs once a tick, although the scheduler of every replica fires.
//!
//! ```sh
//! cargo run --example cron_once
//! ```
//!
//! The lock is named after the tick, and outlives the job: a replica whose clock is late must find it held.
//! A job that fails releases it, so that another replica tries. If a replica dies in the middle, nobody
//! does this tick's work. A job that must not be skipped needs a record of what is done, as in
//! `webhook_idempotency`.

use std::error::Error;
use std::time::{Duration, UNIX_EPOCH};

use syncguard_core::{Fence, LockError, Locks};
use syncguard_examples::connect;
use tokio::task::JoinSet;

/// Longer than the job takes and the replicas' clocks differ, shorter than until the next tick.
const TICK_TAKEN: Duration = Duration::from_secs(10 * 60);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Tick {
    Done(Fence),
    Failed(String),
    TakenByAnother,
}

async fn on_tick(
    locks: &Locks,
    tick: u128,
    job: impl AsyncFnOnce(Fence) -> Result<(), String>,
) -> Result<Tick, LockError> {
    let key = format!("cron:nightly-report:{tick}");
    let Some(guard) = locks.try_lock(key).ttl(TICK_TAKEN).await? else {
        return Ok(Tick::TakenByAnother);
    };
    match job(guard.fence()).await {
        Ok(()) => {
            let lease = guard.detach();
            Ok(Tick::Done(lease.fence()))
        }
        Err(reason) => {
            if !guard.release().await?.is_released() {
                eprintln!("the lock expired before the job failed");
            }
            Ok(Tick::Failed(reason))
        }
    }
}

async fn nightly_report(_fence: Fence) -> Result<(), String> {
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(())
}

/// Replicas whose schedulers fire at the same moment.
async fn all_at_once(tick: u128) -> Result<Vec<Tick>, LockError> {
    let mut replicas = JoinSet::new();
    for _ in 0..3 {
        let locks = connect().await?;
        replicas.spawn(async move { on_tick(&locks, tick, nightly_report).await });
    }
    replicas.join_all().await.into_iter().collect()
}

/// Replicas whose clocks differ, the first of which cannot do the job.
async fn one_by_one(tick: u128) -> Result<Vec<Tick>, LockError> {
    let no_disk = async |_| Err("no space left on device".to_owned());
    Ok(vec![
        on_tick(&connect().await?, tick, no_disk).await?,
        on_tick(&connect().await?, tick, nightly_report).await?,
        on_tick(&connect().await?, tick, nightly_report).await?,
    ])
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let tonight = UNIX_EPOCH.elapsed()?.as_millis();
    println!("three replicas, at the same moment:");
    for outcome in all_at_once(tonight).await? {
        println!("  {outcome:?}");
    }
    println!("the night after, one by one, the first without disk space:");
    for outcome in one_by_one(tonight + 1).await? {
        println!("  {outcome:?}");
    }
    Ok(())
}

#[cfg(test)]
#[tokio::test]
async fn every_tick_is_done_once() -> Result<(), Box<dyn Error>> {
    let tonight = UNIX_EPOCH.elapsed()?.as_nanos();
    let done = |outcomes: &[Tick]| {
        let done = outcomes.iter().filter(|tick| matches!(tick, Tick::Done(_)));
        done.count()
    };
    assert_eq!(done(&all_at_once(tonight).await?), 1);

    let outcomes = one_by_one(tonight + 1).await?;
    assert!(matches!(outcomes[0], Tick::Failed(_)), "{outcomes:?}");
    assert!(matches!(outcomes[1], Tick::Done(_)), "{outcomes:?}");
    assert_eq!(outcomes[2], Tick::TakenByAnother);
    Ok(())
}
