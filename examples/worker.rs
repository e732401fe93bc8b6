//! A worker whose jobs take longer than a TTL, with an orderly shutdown.
//!
//! ```sh
//! cargo run --example worker      # Ctrl-C or SIGTERM stops it early
//! ```
//!
//! Auto-extension renews the lease, so the TTL can be short. After a worker died, its job waits for that
//! long. On SIGINT or SIGTERM the worker starts no further job, stops between two steps, and waits until
//! the background has released its locks.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use syncguard_core::{
    AutoExtend, CancellationToken, ErrorCode, Lease, LockError, LockOptions, Locks,
};
use syncguard_examples::connect;
use tokio::sync::watch;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(1);
const STEPS: u32 = 8;

/// Steps done of each job. In production, a table that refuses a step under an old fence.
type Progress = watch::Sender<BTreeMap<&'static str, u32>>;

async fn work_off(
    jobs: &[&'static str],
    locks: &Locks,
    progress: &Progress,
    shutdown: &CancellationToken,
) -> Result<(), LockError> {
    let options = LockOptions::new()
        .ttl(TTL)
        .auto_extend(AutoExtend::new().max_hold(Duration::from_secs(3600)))
        .cancel_on(shutdown);
    for job in jobs {
        let key = format!("job:{job}");
        let section = async |lease| run(job, &lease, progress, shutdown).await;
        match locks.lock(key).options(&options).run(section).await {
            Ok(receipt) => println!("{job}: {:?}", receipt.value()),
            Err(error) => match error.code() {
                ErrorCode::Aborted => return Ok(()),
                ErrorCode::AcquisitionTimeout => println!("{job}: another worker has it"),
                // Dropped in the middle of a step. The next worker continues after the last one done.
                ErrorCode::LockLost => println!("{job}: lost"),
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

#[derive(Debug)]
enum End {
    Finished,
    /// The next worker continues from here.
    Stopped,
}

async fn run(
    job: &'static str,
    lease: &Lease,
    progress: &Progress,
    shutdown: &CancellationToken,
) -> End {
    let done = progress.borrow().get(job).copied().unwrap_or(0);
    for step in done + 1..=STEPS {
        if shutdown.is_cancelled() {
            return End::Stopped;
        }
        sleep(Duration::from_millis(200)).await;
        progress.send_modify(|steps| {
            steps.insert(job, step);
        });
        let left = lease.remaining();
        println!("{job}: step {step} of {STEPS}, {left:.1?} of the lease left");
    }
    End::Finished
}

/// Works until something stops it: here the third step of the second job, or a signal.
async fn work_until_stopped() -> Result<BTreeMap<&'static str, u32>, Box<dyn Error>> {
    let locks = connect().await?;
    let (progress, shutdown) = (Progress::default(), CancellationToken::new());
    let (mut steps, stop) = (progress.subscribe(), shutdown.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = told_to_end() => {}
            _ = steps.wait_for(|steps| steps.get("thumbnails") == Some(&3)) => {}
        }
        println!("stopping");
        stop.cancel();
    });

    let jobs = ["report", "thumbnails", "mails"];
    let worked = work_off(&jobs, &locks, &progress, &shutdown).await;
    // On every path: a lock that is not drained stays held until its TTL ends.
    let drained = locks.drain(Duration::from_secs(10)).await;
    worked.and(drained)?;
    Ok(progress.borrow().clone())
}

/// Ctrl-C, or the SIGTERM by which schedulers end a process.
async fn told_to_end() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    // Without a handler for it, Ctrl-C ends the process by itself.
    let _ = tokio::signal::ctrl_c().await;
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let steps = work_until_stopped().await?;
    println!("for the next worker: {steps:?}");
    Ok(())
}

#[cfg(test)]
#[tokio::test]
async fn a_long_job_is_finished_and_the_next_stopped() -> Result<(), Box<dyn Error>> {
    let steps = work_until_stopped().await?;
    assert_eq!(steps["report"], STEPS);
    assert!((3..STEPS).contains(&steps["thumbnails"]), "{steps:?}");
    assert!(!steps.contains_key("mails"), "{steps:?}");
    Ok(())
}
