//! A worker whose jobs take longer than a TTL, and which stops in good order.
//!
//! ```sh
//! cargo run --example worker      # Ctrl-C stops it early
//! ```
//!
//! Auto-extension keeps the lease alive, so the TTL can be short: it is how long a job rests after a
//! worker died. Told to stop, the worker takes no further job, breaks off between two steps, and
//! waits for what is released in the background.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use syncguard_core::{
    AnyBackend, AutoExtend, CancellationToken, ErrorCode, Lease, LockError, LockOptions,
    ManagedBackend as _, lock,
};
use syncguard_examples::connect;
use tokio::sync::watch;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(1);
const STEPS: u32 = 8;

/// Steps done of each job. In earnest a table, which refuses a step under an old fence.
type Progress = watch::Sender<BTreeMap<&'static str, u32>>;

async fn work_off(
    jobs: &[&'static str],
    backend: &AnyBackend,
    progress: &Progress,
    shutdown: &CancellationToken,
) -> Result<(), LockError> {
    let options = LockOptions::new()
        .with_ttl(TTL)
        .with_auto_extend(AutoExtend::new().with_max_hold(Duration::from_secs(3600)))
        .with_cancellation(shutdown.clone());
    for job in jobs {
        let key = format!("job:{job}");
        let section = async |lease| run(job, &lease, progress, shutdown).await;
        match lock(backend, key, options.clone(), section).await {
            Ok(receipt) => println!("{job}: {:?}", receipt.value()),
            Err(error) => match error.code() {
                ErrorCode::Aborted => return Ok(()),
                ErrorCode::AcquisitionTimeout => println!("{job}: another worker has it"),
                // Dropped in the middle of a step. Whoever has it now goes on from the last one done.
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
    /// The next worker goes on from here.
    BrokenOff,
}

async fn run(
    job: &'static str,
    lease: &Lease<AnyBackend>,
    progress: &Progress,
    shutdown: &CancellationToken,
) -> End {
    let done = progress.borrow().get(job).copied().unwrap_or(0);
    for step in done + 1..=STEPS {
        if shutdown.is_cancelled() {
            return End::BrokenOff;
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

/// Works until something stops it: here the third step of the second job, or Ctrl-C.
async fn work_until_stopped() -> Result<BTreeMap<&'static str, u32>, Box<dyn Error>> {
    let backend = connect().await?;
    let (progress, shutdown) = (Progress::default(), CancellationToken::new());
    let (mut steps, stop) = (progress.subscribe(), shutdown.clone());
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = steps.wait_for(|steps| steps.get("thumbnails") == Some(&3)) => {}
        }
        println!("stopping");
        stop.cancel();
    });

    let jobs = ["report", "thumbnails", "mails"];
    let worked = work_off(&jobs, &backend, &progress, &shutdown).await;
    // On every path: what is not drained is not free before its TTL ends.
    let drained = backend.drain(Duration::from_secs(10)).await;
    worked.and(drained)?;
    Ok(progress.borrow().clone())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let steps = work_until_stopped().await?;
    println!("for the next worker: {steps:?}");
    Ok(())
}

#[cfg(test)]
#[tokio::test]
async fn a_long_job_is_finished_and_the_next_broken_off() -> Result<(), Box<dyn Error>> {
    let steps = work_until_stopped().await?;
    assert_eq!(steps["report"], STEPS);
    assert!((3..STEPS).contains(&steps["thumbnails"]), "{steps:?}");
    assert!(!steps.contains_key("mails"), "{steps:?}");
    Ok(())
}
