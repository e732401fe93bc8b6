//! [`share_a_key`]: whether two processes that want a key all the time both get it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use syncguard_core::Locks;
use tokio::task::JoinSet;

/// Two processes acquire one key again as soon as they have released it, for six seconds.
///
/// # Errors
/// If an operation fails, or if one of them gets less than a third of the grants.
pub async fn share_a_key(processes: [Locks; 2]) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(6);
    let mut loops = JoinSet::new();
    for locks in processes {
        loops.spawn(async move {
            let mut grants = 0_u32;
            while Instant::now() < until {
                let guard = locks.lock("k").timeout(Duration::from_secs(3_600)).await?;
                ensure!(guard.release().await?.is_released(), "the lease was lost");
                grants += 1;
            }
            Ok(grants)
        });
    }
    let grants = loops.join_all().await;
    let grants = grants.into_iter().collect::<Result<Vec<u32>>>()?;
    let all: u32 = grants.iter().sum();
    ensure!(grants.iter().all(|one| one * 3 >= all), "{grants:?}");
    Ok(())
}
