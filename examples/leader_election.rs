//! Leader election: one candidate leads, another follows when it resigns or dies.
//!
//! ```sh
//! cargo run --example leader_election
//! ```
//!
//! When a leader resigns it releases the lock, and another leads soon. When it dies, another leads once
//! its lease has expired: the TTL is how long nobody leads. The fence is the number of the term. If
//! followers refuse orders of an older term, a leader that was paused does no harm.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use syncguard_core::{
    AutoExtend, Backoff, CancellationToken, ErrorCode, Fence, Lease, LockError, LockOptions,
};
use syncguard_examples::connect;
use tokio::task::JoinSet;
use tokio::time::sleep;

const ELECTION: &str = "leader:scheduler";
const TTL: Duration = Duration::from_secs(1);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);

/// Leads whenever it can, until it must stop.
async fn stand(
    candidate: &str,
    cluster: &Cluster,
    stop: CancellationToken,
) -> Result<(), LockError> {
    let locks = connect().await?;
    let election = LockOptions::new()
        .ttl(TTL)
        .auto_extend(AutoExtend::new())
        .timeout(Duration::MAX)
        .backoff(Backoff::Fixed)
        .retry_delay(BETWEEN_ATTEMPTS)
        .cancel_on(&stop);
    while !stop.is_cancelled() {
        let guard = match locks.lock(ELECTION).options(&election).await {
            Ok(guard) => guard,
            Err(error) if error.code() == ErrorCode::Aborted => return Ok(()),
            Err(error) if error.is_retryable() => {
                eprintln!("{candidate}: {error}");
                sleep(BETWEEN_ATTEMPTS).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let end = tokio::select! {
            end = cluster.lead(candidate, guard.lease()) => end,
            () = guard.lost() => End::Deposed,
            () = stop.cancelled() => End::Resigned,
        };
        println!("{candidate}: {end:?}");
        if end == End::Died {
            // A dead process: its lease is neither renewed nor released.
            let _forgotten = guard.detach();
            return Ok(());
        }
        if let Err(error) = guard.release().await {
            // The background retries it, and the key is free at the latest when its TTL has passed.
            eprintln!("{candidate}: {error}");
        }
        // Let others lead, too.
        sleep(BETWEEN_ATTEMPTS * 2).await;
    }
    Ok(())
}

/// How a term ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Resigned,
    Deposed,
    Died,
}

/// The terms there were: who led, and under which fence.
#[derive(Default)]
struct Cluster {
    terms: Mutex<Vec<(String, Fence)>>,
}

impl Cluster {
    /// A leader's work; every order carries `lease.fence()`. The second leader dies.
    async fn lead(&self, leader: &str, lease: Lease) -> End {
        let term = {
            // A single push happens while it is locked, so no state is half changed.
            let mut terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
            terms.push((leader.to_owned(), lease.fence()));
            terms.len()
        };
        println!("{leader}: leads under fence {}", lease.fence());
        sleep(Duration::from_millis(300)).await;
        if term == 2 { End::Died } else { End::Resigned }
    }

    fn terms(&self) -> Vec<(String, Fence)> {
        let terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        terms.clone()
    }
}

/// Three candidates, until there have been so many terms.
async fn elect(terms: usize) -> Result<Vec<(String, Fence)>, LockError> {
    let (cluster, stop) = (Arc::<Cluster>::default(), CancellationToken::new());
    let mut candidates = JoinSet::new();
    for name in ["ada", "bob", "cleo"] {
        let (cluster, stop) = (Arc::clone(&cluster), stop.clone());
        candidates.spawn(async move { stand(name, &cluster, stop).await });
    }
    while cluster.terms().len() < terms && !candidates.is_empty() {
        sleep(BETWEEN_ATTEMPTS).await;
        if let Some(Ok(ended)) = candidates.try_join_next() {
            ended?;
        }
    }
    stop.cancel();
    candidates
        .join_all()
        .await
        .into_iter()
        .collect::<Result<(), _>>()?;
    Ok(cluster.terms())
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let terms = elect(4).await?;
    println!("{} terms, one after another", terms.len());
    Ok(())
}

#[cfg(test)]
#[tokio::test]
async fn terms_follow_one_another() -> Result<(), LockError> {
    let terms = elect(4).await?;
    assert!(terms.len() >= 4, "a dead leader is followed too: {terms:?}");
    assert!(
        terms.is_sorted_by(|earlier, later| earlier.1 < later.1),
        "{terms:?}"
    );
    Ok(())
}
