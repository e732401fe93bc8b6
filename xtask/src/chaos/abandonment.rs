//! Ten thousand acquires, each abandoned after a random time: none may leave a lock behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use syncguard_chaos::Rng;
use syncguard_core::Locks;

use tokio::task::JoinSet;

use super::Settings;
use super::store::Store;
use crate::step::announced;
use crate::{Conclusion, Done};

const ACQUIRES: u64 = 10_000;
const KEYS: u64 = 100;
const CLIENTS: u64 = 32;

/// The shortest time to wait for an acquire, in microseconds. A store has the longest.
const SHORTEST_US: u64 = 100;

/// Far longer than the experiment: a key that is free at its end was released.
const TTL: Duration = Duration::from_secs(3_600);

/// The time in which the last of the abandoned locks must be released.
const DRAIN: Duration = Duration::from_secs(60);

/// The outcomes of the acquires.
#[derive(Default)]
struct Outcomes {
    abandoned: AtomicU64,
    granted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

pub(super) fn run(store: &Store, settings: Settings) -> Done {
    let (_server, address, runtime) = store.started()?;
    let locks = runtime.block_on((store.connect)(address, settings.mutant))?;
    let what = format!("abandon {ACQUIRES} acquires on {}", store.name);
    let outcomes = Arc::new(Outcomes::default());
    let held = announced(&what, || {
        let longest_us = store.patience_ms * 1_000;
        runtime.block_on(experiment(&locks, &outcomes, longest_us, settings.seed))
    })?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{}: {} abandoned, {} granted and released, {} refused, {} failed; {held} keys left held",
        store.name,
        count(&outcomes.abandoned),
        count(&outcomes.granted),
        count(&outcomes.refused),
        count(&outcomes.failed),
    );
    // Without a grant, all would pass on a store that grants nothing.
    if held == 0 && count(&outcomes.abandoned) > 0 && count(&outcomes.granted) > 0 {
        return Ok(Conclusion::Passed);
    }
    println!("  FAILED: a key is left held, or no acquire was abandoned, or none was granted");
    Ok(Conclusion::Failed)
}

/// Returns the number of keys that are still held at the end.
async fn experiment(
    locks: &Locks,
    outcomes: &Arc<Outcomes>,
    longest_us: u64,
    seed: u64,
) -> Result<usize> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (locks, outcomes) = (locks.clone(), Arc::clone(outcomes));
        clients.spawn(async move {
            let mut rng = Rng::part(seed, client);
            for _ in 0..ACQUIRES / CLIENTS + 1 {
                let patience = Duration::from_micros(rng.within(SHORTEST_US..longest_us));
                let attempt = locks.try_lock(key(rng.within(0..KEYS))).ttl(TTL);
                let counter = match tokio::time::timeout(patience, attempt).await {
                    Err(_) => &outcomes.abandoned,
                    Ok(Err(_)) => &outcomes.failed,
                    Ok(Ok(None)) => &outcomes.refused,
                    // Dropped, which releases it in the background.
                    Ok(Ok(Some(_guard))) => &outcomes.granted,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended?;
    }
    let deadline = Instant::now() + DRAIN;
    loop {
        locks.drain(DRAIN).await?;
        let mut held = 0;
        for number in 0..KEYS {
            held += usize::from(locks.is_locked(key(number)).await?);
        }
        if held == 0 || Instant::now() >= deadline {
            return Ok(held);
        }
    }
}

fn key(number: u64) -> String {
    format!("chaos:abandoned:{number}")
}
