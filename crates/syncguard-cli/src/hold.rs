//! Acquiring a key, for `run` and `acquire`.

use std::convert::Infallible;
use std::future::{IntoFuture as _, pending};
use std::pin::pin;
use std::time::Duration;

use serde_json::json;
use syncguard_core::{
    Attempt, AutoExtend, CancellationToken, LockGuard, LockKey, LockOptions, Locks,
};
use tokio::time::sleep;

use crate::args::HoldArgs;
use crate::exit::{self, Failure};
use crate::output::{Output, age, left};
use crate::signals::Signals;
use crate::{duration, store};

/// How long a wait is silent.
const SILENT: Duration = Duration::from_secs(1);
/// How long the releases of the background may take at the end.
const DRAIN: Duration = Duration::from_secs(10);

/// A key that is held, or the signal that came before.
pub(crate) enum Held {
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
) -> Result<Held, Failure> {
    let key = LockKey::new(&args.key)?;
    let mut options = LockOptions::new().ttl(args.ttl).timeout(args.wait);
    if renewed {
        options = options.auto_extend(AutoExtend::new());
    }
    let locks = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(Held::Interrupted(signal)),
        locks = store.open(store::Purpose::Acquire) => locks?,
    };
    let token = CancellationToken::new();
    let options = options.cancel_on(&token);
    let mut acquired = pin!(contend(&locks, &key, args, &options, output));
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
        (Ok(guard), None) => return Ok(Held::Guard(locks.clone(), guard)),
        (Err(failure), None) => Err(failure),
        // Dropped, a guard releases its lock.
        (_, Some(signal)) => Ok(Held::Interrupted(signal)),
    };
    // The store may have granted the key although the attempt failed.
    settle(&locks).await;
    held
}

/// Waits for what is released in the background.
pub(crate) async fn settle(locks: &Locks) {
    // What remains expires with its TTL.
    let _ = locks.drain(DRAIN).await;
}

async fn contend(
    locks: &Locks,
    key: &LockKey,
    args: &HoldArgs,
    options: &LockOptions,
    output: Output,
) -> Result<LockGuard, Failure> {
    let busy = |message: String| Failure::new(args.conflict_exit_code, message);
    if args.no_wait || args.wait.is_zero() {
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
            announce(locks, key, args.wait, output).await;
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

/// Prints the age and the end of the lease that it waits for. If the store does not know, the wait goes on.
async fn announce(locks: &Locks, key: &LockKey, wait: Duration, output: Output) {
    let Ok(Some(lock)) = locks.get_by_key_raw(key).await else {
        return;
    };
    let most = match wait {
        Duration::MAX => String::new(),
        wait => format!("; waiting for {} at most", duration::show(wait)),
    };
    let text = format!(
        "{} is held for {}, its lease ends in {} unless it is renewed{most}",
        output.key(key),
        duration::show(age(&lock)),
        duration::show(left(&lock)),
    );
    output
        .note(
            "waiting",
            &text,
            json!({ "lock": output.lock_value(&lock) }),
        )
        .await;
}
