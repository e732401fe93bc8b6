//! `syncguard run`: a command under a lock.

use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::json;
use syncguard_core::{Lease, LockError, LockGuard, Locks, ReleaseResult};
use tokio::time::{Instant, sleep_until};

use crate::args::RunArgs;
use crate::duration;
use crate::exit::{self, Failure};
use crate::hold::{self, Acquisition};
use crate::output::Output;
use crate::signals::{Signals, ends};
use crate::store::Store;

#[cfg_attr(unix, path = "run/unix.rs")]
#[cfg_attr(not(unix), path = "run/other.rs")]
mod child;
#[cfg(target_os = "linux")]
mod guard;
#[cfg(target_os = "linux")]
mod shim;

use self::child::Child;

/// Runs the helper that this process is, if `syncguard` itself has started it, and returns its exit code.
#[cfg(target_os = "linux")]
pub(crate) fn as_helper() -> Option<u8> {
    let mut arguments = std::env::args_os();
    arguments.next();
    match arguments.next()?.to_str()? {
        shim::NAME => Some(shim::shim(arguments)),
        guard::NAME => {
            let _ = guard::guard(arguments);
            Some(0)
        }
        _ => None,
    }
}

pub(crate) async fn run(args: &RunArgs, store: &Store, output: Output) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let (locks, guard) = match hold::acquire(&args.hold, true, store, &mut signals, output).await? {
        Acquisition::Guard(locks, guard) => (locks, guard),
        Acquisition::Interrupted(signal) => return Ok(exit::of_signal(signal)),
    };
    let ran = under_the_lock(args, &guard, &mut signals, output).await;
    let expiry = Expiry::of(&guard.lease());
    let released = async {
        let released = guard.release().await;
        report_release(&locks, &expiry, &released, output).await;
        released
    };
    let released = tokio::select! {
        biased;
        released = released => Some(released),
        () = signals.ending_twice() => {
            report_unreleased(&expiry, "stopped waiting for the release of the lock", None, output).await;
            None
        }
    };
    let (status, is_lost) = match ran? {
        Ended::Interrupted(signal) => {
            hold::interrupted_by(signal, output);
            return Ok(exit::of_signal(signal));
        }
        Ended::Lost(status) => (status, true),
        Ended::Command(status) => {
            let is_lost = matches!(released, Some(Ok(released)) if !released.is_released());
            if is_lost {
                let text = "the lease was lost before the command ended: someone released the lock by \
                            its id, or it expired";
                output.note("lost", text, json!({})).await;
            }
            (status, is_lost)
        }
    };
    let code = match is_lost {
        true => exit::LOST,
        false => child::code(status),
    };
    let ended = json!({
        "exitCode": code,
        "status": status.code(),
        "signal": child::signal(status),
        "lost": is_lost,
    });
    output.event("ended", ended);
    Ok(code)
}

/// How the work under the lock ended.
enum Ended {
    Command(ExitStatus),
    /// The lease was lost before the command had ended.
    Lost(ExitStatus),
    /// A signal came before the command was started.
    Interrupted(i32),
}

async fn under_the_lock(
    args: &RunArgs,
    guard: &LockGuard,
    signals: &mut Signals,
    output: Output,
) -> Result<Ended, Failure> {
    let environment = [
        ("SYNCGUARD_KEY", guard.key().as_str().to_owned()),
        ("SYNCGUARD_LOCK_ID", guard.lock_id().as_str().to_owned()),
        ("SYNCGUARD_FENCE", guard.fence().to_string()),
    ];
    // Check this last: a signal of the terminal after the start reaches the command by itself.
    while let Some(received) = signals.arrived() {
        if ends(received.number) {
            return Ok(Ended::Interrupted(received.number));
        }
    }
    // If this process is killed, the command must end before the key is free. The lease was renewed within
    // the last third of the TTL.
    let grace_alone = args.grace.min(args.hold.ttl / 2);
    let mut child = Child::start(&args.command, environment, grace_alone, output)?;
    let is_lost = supervise(&mut child, args.grace, guard, signals, output).await;
    let status = child.reap(is_lost)?;
    Ok(if is_lost {
        Ended::Lost(status)
    } else {
        Ended::Command(status)
    })
}

/// Waits for the end of the command. If the lease is lost, ends the command. Returns whether the lease was
/// lost.
async fn supervise(
    child: &mut Child,
    grace: Duration,
    guard: &LockGuard,
    signals: &mut Signals,
    output: Output,
) -> bool {
    let mut lost = pin!(guard.lost());
    let mut is_lost = false;
    let mut kill_at: Option<Instant> = None;
    loop {
        let kill = async {
            match kill_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = child.ended() => return is_lost,
            () = &mut lost, if !is_lost => {
                is_lost = true;
                child.tell_to_end();
                kill_at = Instant::now().checked_add(grace);
                let text = format!(
                    "the lease on {} is lost: someone else may hold the key. syncguard sent TERM to \
                     the command and sends KILL in {}",
                    output.key(guard.key()),
                    duration::show(grace)
                );
                output.note("lost", &text, json!({ "graceMs": grace.as_millis() })).await;
            }
            () = kill => {
                kill_at = None;
                child.kill();
            }
            received = signals.next() => {
                if !(received.from_terminal && child.is_reached_by_the_terminal()) {
                    child.pass_on(received.number);
                }
            }
        }
    }
}

/// Waits for background releases, and reports a lock that could not be released.
async fn report_release(
    locks: &Locks,
    expiry: &Expiry,
    released: &Result<ReleaseResult, LockError>,
    output: Output,
) {
    hold::settle(locks).await;
    if let Err(error) = released
        && locks.pending() > 0
    {
        report_unreleased(expiry, "failed to release the lock", Some(error), output).await;
    }
}

/// When the store ends a lease that nobody releases. A lease itself says that it has ended once its release has begun.
struct Expiry {
    at_ms: i64,
    at: Instant,
}

impl Expiry {
    fn of(lease: &Lease) -> Self {
        Self {
            at_ms: lease.expires_at_ms(),
            at: Instant::now() + lease.remaining(),
        }
    }
}

async fn report_unreleased(expiry: &Expiry, what: &str, error: Option<&LockError>, output: Output) {
    let mut text = format!(
        "{what}; it expires in {} at the latest",
        duration::show(expiry.at.saturating_duration_since(Instant::now()))
    );
    let mut more = json!({ "expiresAtMs": expiry.at_ms });
    if let Some(error) = error {
        text += &format!(": {}", exit::chain(error));
        more["error"] = serde_json::to_value(error).unwrap_or_default();
    }
    output.note("unreleased", &text, more).await;
}
