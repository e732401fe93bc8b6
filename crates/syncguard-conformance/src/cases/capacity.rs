//! Many locks at once. These cases come last: a store that reads all of its locks for a call would slow the others down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use syncguard_core::LockKey;
use syncguard_core::backend::{Grant, LockBackend, Lookup, MAX_PAGE_SIZE};

use crate::outcome::{require, same, step};
use crate::overdue::unchanged_in_tolerance;
use crate::pages::{CANNOT_LIST, can_list, listed};
use crate::steps::{LONG, acquire, join, next_fence, refused, release};
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

/// A listing of more than a thousand locks shows each of them.
///
/// Proves N1, N2, N5. Granted by many tasks, and listed in pages of the default size and of the greatest, which is too
/// small for all.
pub async fn a_thousand_locks_are_shown<H: Harness>(bench: Bench<H>) -> CaseResult {
    const TASKS: usize = 10;
    const OF_TASK: usize = 110;
    let clients = bench.clients(2).await?;
    if !can_list(&bench, &clients[0]).await? {
        return Ok(CANNOT_LIST);
    }
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let client = clients[task % 2].clone();
        let keys = bench.keys(&format!("one-of-many:{task}"), OF_TASK)?;
        tasks.push(tokio::spawn(async move {
            let mut locks = BTreeMap::new();
            for key in keys {
                let grant = acquire(&client, &key, LONG).await?;
                locks.insert(key.as_str().to_owned(), grant);
                tokio::task::yield_now().await;
            }
            Ok((client, locks))
        }));
    }
    let held = join(tasks).await?;
    for limit in [100, MAX_PAGE_SIZE] {
        let listed = listed(&clients[0], bench.namespace(), limit).await?;
        same("locks of the listing", listed.len(), TASKS * OF_TASK)?;
        for (text, grant) in held.iter().flat_map(|(_, locks)| locks) {
            let found = listed.get(text);
            let found = found.map(|lock| (lock.lock_id, lock.expires_at_ms, lock.fence));
            let expected = (grant.lock_id, grant.expires_at_ms, grant.fence);
            same("one of a thousand locks", found, Some(expected))?;
        }
    }
    let releases = held.into_iter().map(|(client, locks)| {
        tokio::spawn(async move {
            for grant in locks.values() {
                release(&client, &grant.lock_id).await?;
                tokio::task::yield_now().await;
            }
            Ok(())
        })
    });
    join(releases).await?;
    Ok(Outcome::Passed)
}

/// Thousands of locks are held at once: as many as ten seconds allow, and at least the harness's capacity.
///
/// Proves A1, A2, K2, E1, E3, L2, R1. The first ones are shown once they are granted. Once all are, further grants end
/// no lease that is in the tolerance, and each lock is shown, refused to others and released. The ten seconds are for
/// all of that, so a quarter of them is for the grants. There are no more than 10,000, unless the harness asks for
/// more.
pub async fn thousands_of_locks_are_held_at_once<H: Harness>(bench: Bench<H>) -> CaseResult {
    const ENOUGH: usize = 10_000;
    const TASKS: usize = 4;
    const TAKING: Duration = Duration::from_millis(2_500);
    const LONGEST: Duration = Duration::from_secs(60);
    let capacity = bench.harness().capacity();
    let most = capacity.max(ENOUGH).div_ceil(TASKS);
    let clients = bench.clients(4).await?;
    let (began, granted) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let takers = (0..TASKS).map(|task| {
        let client = clients[task % clients.len()].clone();
        let keys = bench.keys(&format!("one-of-many:{task}"), most);
        let granted = Arc::clone(&granted);
        tokio::spawn(async move {
            let mut locks = Vec::new();
            for key in keys? {
                let enough = granted.load(Ordering::Relaxed) >= capacity;
                if began.elapsed() > if enough { TAKING } else { LONGEST } {
                    break;
                }
                let grant = acquire(&client, &key, LONG).await?;
                granted.fetch_add(1, Ordering::Relaxed);
                if began.elapsed() < TAKING {
                    // A store whose lookups slow down with each lock then gets fewer locks.
                    shown(&client, &key, &grant).await?;
                }
                locks.push((key, grant));
            }
            Ok(locks)
        })
    });
    let all = join(takers).await?;
    let held: usize = all.iter().map(Vec::len).sum();
    require(
        held >= capacity,
        format_args!("locks at once: expected {capacity} within {LONGEST:?}, saw {held}"),
    )?;
    let more = bench.keys("one-more", TASKS)?;
    let acquiring_more = || async {
        let more = more.iter().map(|key| next_fence(&clients[1], key));
        try_join_all(more).await.map(drop)
    };
    let unchanged =
        unchanged_in_tolerance(&bench, &clients[0], "further grants", acquiring_more).await?;
    let checks = all.into_iter().enumerate().map(|(task, locks)| {
        let client = clients[(task + 1) % clients.len()].clone();
        tokio::spawn(async move {
            for (key, grant) in &locks {
                shown(&client, key, grant).await?;
                refused(&client, key).await?;
            }
            for (_, grant) in &locks {
                release(&client, &grant.lock_id).await?;
            }
            Ok(())
        })
    });
    join(checks).await?;
    Ok(unchanged)
}

/// Fails unless the id of a grant leads to its lock.
#[track_caller]
fn shown<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    grant: &Grant<B::Fence>,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let found = client.lookup_raw(Lookup::Id(&grant.lock_id)).await?;
        let found = found.map(|info| (info.key, info.expires_at_ms, info.fence));
        let expected = (key.clone(), grant.expires_at_ms, grant.fence);
        same("one of many locks", found, Some(expected))
    })
}
