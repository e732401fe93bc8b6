//! [`share_a_key`]: whether two processes that want a key all the time both get it.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use syncguard_core::Locks;
use tokio::task::JoinSet;

/// Two processes acquire one key again as soon as they have released it, for six seconds. If one of them then has less
/// than a third of the grants, they go on for up to half a minute: on a busy machine, a store may serve no wake-ups for
/// some seconds.
///
/// # Errors
/// If an operation fails, or if one of them gets less than a third of the grants.
pub async fn share_a_key(processes: [Locks; 2]) -> Result<()> {
    const SHORTEST: Duration = Duration::from_secs(6);
    const LONGEST: Duration = Duration::from_secs(30);
    let (grants, ended) = (
        Arc::new([const { AtomicU32::new(0) }; 2]),
        Arc::new(AtomicBool::new(false)),
    );
    let mut loops = JoinSet::new();
    for (index, locks) in processes.into_iter().enumerate() {
        let (grants, ended) = (Arc::clone(&grants), Arc::clone(&ended));
        loops.spawn(async move {
            while !ended.load(Ordering::Relaxed) {
                let guard = locks.lock("k").timeout(Duration::from_secs(3_600)).await?;
                ensure!(guard.release().await?.is_released(), "the lease was lost");
                grants[index].fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    let began = Instant::now();
    let (counted, shared) = loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let counted: [u32; 2] = array::from_fn(|index| grants[index].load(Ordering::Relaxed));
        let shared = counted.iter().all(|one| one * 3 >= counted.iter().sum());
        if began.elapsed() >= if shared { SHORTEST } else { LONGEST } {
            break (counted, shared);
        }
    };
    ended.store(true, Ordering::Relaxed);
    loops.join_all().await.into_iter().collect::<Result<()>>()?;
    ensure!(shared, "{counted:?}");
    Ok(())
}
