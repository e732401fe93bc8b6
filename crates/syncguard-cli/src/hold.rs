//! Acquiring a key, for `run` and `acquire`.

use std::convert::Infallible;
use std::future::{IntoFuture as _, pending};
use std::pin::pin;
use std::time::Duration;

use serde_json::json;
use syncguard_core::{
    Attempt, AutoExtend, CancellationToken, LockGuard, LockKey, LockOptions, Locks, Ttl,
};
use tokio::time::{Instant, sleep, timeout_at};

use crate::args::HoldArgs;
use crate::exit::{self, Failure};
use crate::output::{Output, age, left};
use crate::signals::Signals;
use crate::{duration, store};

/// How long a wait lasts before it is reported.
const SILENT: Duration = Duration::from_secs(1);
/// Default of how long to wait for the key.
const DEFAULT_WAIT: Duration = Duration::from_secs(10);
/// The first and the longest pause between attempts to reach the store.
const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// How long background releases may take at the end.
const DRAIN: Duration = Duration::from_secs(10);

/// An acquired key, or the signal that came first.
pub(crate) enum Acquisition {
    Guard(Locks, LockGuard),
    Interrupted(i32),
}

/// Acquires a key, unless a signal that ends the process comes first.
pub(crate) async fn acquire(
    args: &HoldArgs,
    renewed: bool,
    store: &store::Store,
    signals: &mut Signals,
    output: Output,
) -> Result<Acquisition, Failure> {
    let key = LockKey::new(&args.key)?;
    let ttl = Ttl::new(args.ttl)?;
    let wait = Wait::of(args);
    let locks = tokio::select! {
        biased;
        signal = signals.ending() => {
            interrupted_by(signal, output);
            return Ok(Acquisition::Interrupted(signal));
        }
        locks = connect(store, wait, args.quiet, output) => locks?,
    };
    let token = CancellationToken::new();
    let mut options = LockOptions::new()
        .ttl(ttl.as_duration())
        .timeout(wait.left())
        .retry_failures(wait.covers_the_store)
        .cancel_on(&token);
    if renewed {
        options = options.auto_extend(AutoExtend::new());
    }
    let mut acquired = pin!(contend(&locks, &key, args, wait, &options, output));
    let mut interrupted = None;
    let acquired = loop {
        tokio::select! {
            biased;
            signal = signals.ending() => {
                token.cancel();
                interrupted = interrupted.or(Some(signal));
            }
            acquired = &mut acquired => break acquired,
        }
    };
    let held = match (acquired, interrupted) {
        (Ok(guard), None) => return Ok(Acquisition::Guard(locks.clone(), guard)),
        (Err(failure), None) => Err(failure),
        // Dropping the guard releases the lock.
        (_, Some(signal)) => {
            interrupted_by(signal, output);
            Ok(Acquisition::Interrupted(signal))
        }
    };
    // The store may have granted the key although the attempt failed.
    tokio::select! {
        biased;
        _ = signals.ending() => {}
        () = settle(&locks) => {}
    }
    held
}

/// How long to wait, and for what.
#[derive(Debug, Clone, Copy)]
struct Wait {
    started: Instant,
    at_most: Duration,
    /// `--wait` was given: also wait for a store that cannot be reached.
    covers_the_store: bool,
}

impl Wait {
    fn of(args: &HoldArgs) -> Self {
        let asked = if args.no_wait {
            Some(Duration::ZERO)
        } else {
            args.wait
        };
        let at_most = asked.unwrap_or(DEFAULT_WAIT);
        Self {
            started: Instant::now(),
            at_most,
            covers_the_store: asked.is_some() && !at_most.is_zero(),
        }
    }

    /// `None` for ever.
    fn deadline(self) -> Option<Instant> {
        self.started.checked_add(self.at_most)
    }

    fn left(self) -> Duration {
        self.at_most.saturating_sub(self.started.elapsed())
    }

    /// For a message.
    fn shown(self) -> String {
        match self.at_most {
            Duration::MAX => String::new(),
            at_most => format!("; waiting for {} at most", duration::show(at_most)),
        }
    }
}

/// Reports to programs the signal that ended a wait.
pub(crate) fn interrupted_by(signal: i32, output: Output) {
    let code = exit::of_signal(signal);
    output.event("interrupted", json!({ "signal": signal, "exitCode": code }));
}

/// Connects to the store. If the wait covers that, retries until the wait ends.
async fn connect(
    store: &store::Store,
    wait: Wait,
    quiet: bool,
    output: Output,
) -> Result<Locks, Failure> {
    let [mut pause, longest] = RETRY;
    let mut announced = quiet;
    let mut last = None;
    loop {
        let opened = store.open(store::Purpose::Acquire);
        let opened = match wait.deadline().filter(|_| wait.covers_the_store) {
            None => opened.await,
            Some(deadline) => match (timeout_at(deadline, opened).await, last) {
                (Ok(opened), _) => opened,
                (Err(_), last) => Err(last.unwrap_or_else(|| {
                    Failure::new(
                        exit::UNAVAILABLE,
                        "the store did not answer until the wait ended",
                    )
                })),
            },
        };
        let failure = match opened {
            Err(failure) if failure.code == exit::UNAVAILABLE && wait.covers_the_store => failure,
            opened => return opened,
        };
        if wait.left().is_zero() {
            return Err(failure);
        }
        if !announced && wait.started.elapsed() >= SILENT {
            announced = true;
            let text = format!("the store cannot be reached: {store}{}", wait.shown());
            let more = json!({ "store": store.to_string() });
            output.note("unavailable", &text, more).await;
        }
        last = Some(failure);
        sleep(pause.min(wait.left())).await;
        pause = longest.min(pause * 2);
    }
}

/// Waits for background releases.
pub(crate) async fn settle(locks: &Locks) {
    // Locks that are not released expire with their TTL.
    let _ = locks.drain(DRAIN).await;
}

async fn contend(
    locks: &Locks,
    key: &LockKey,
    args: &HoldArgs,
    wait: Wait,
    options: &LockOptions,
    output: Output,
) -> Result<LockGuard, Failure> {
    let busy = |message: String| Failure::new(args.conflict_exit_code, message);
    if wait.at_most.is_zero() {
        return match locks.try_lock(key).options(options).attempt().await? {
            Attempt::Acquired(guard) => Ok(guard),
            Attempt::Locked { free_in, .. } => {
                let key = output.key(key);
                let left = free_in.map_or_else(String::new, |free_in| {
                    format!(
                        "; it is free in {} at the latest, unless the holder renews it",
                        duration::show(free_in)
                    )
                });
                Err(busy(format!("busy: someone else holds {key}{left}")))
            }
        };
    }
    let mut waiting = pin!(locks.lock(key).options(options).into_future());
    let announced = async {
        sleep(SILENT).await;
        if !args.quiet {
            announce(locks, key, wait, output).await;
        }
        pending::<Infallible>().await
    };
    let acquired = tokio::select! {
        biased;
        acquired = &mut waiting => acquired,
        never = announced => match never {},
    };
    acquired.map_err(|error| {
        let failure = Failure::from(error);
        match failure.code {
            exit::BUSY => Failure {
                code: args.conflict_exit_code,
                message: format!(
                    "busy: someone else holds {}: {}",
                    output.key(key),
                    failure.message
                ),
                ..failure
            },
            _ => failure,
        }
    })
}

/// Prints the age and the end of the holder's lease. Prints nothing if the store does not know them.
async fn announce(locks: &Locks, key: &LockKey, wait: Wait, output: Output) {
    let Ok(Some(lock)) = locks.get_by_key_raw(key).await else {
        return;
    };
    let text = format!(
        "{} is held for {}, its lease ends in {} unless it is renewed{}",
        output.key(key),
        duration::show_age(age(&lock)),
        duration::show(left(&lock)),
        wait.shown(),
    );
    output
        .note(
            "waiting",
            &text,
            json!({ "lock": output.lock_value(&lock) }),
        )
        .await;
}
