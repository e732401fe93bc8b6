//! The commands of one operation each: `status`, `acquire`, `extend`, `release`, `purge`.

use std::io::{self, IsTerminal as _, Write as _};

use serde_json::json;
use syncguard_core::{LockId, LockInfoDebug, LockKey, Ttl};

use crate::args::{ExtendArgs, HoldArgs, ReleaseArgs, StatusArgs};
use crate::duration;
use crate::exit::{self, Failure};
use crate::hold::{self, Acquisition};
use crate::output::Output;
use crate::signals::Signals;
use crate::store::{Purpose, Store};

pub(crate) async fn status(
    args: &StatusArgs,
    store: &Store,
    output: Output,
) -> Result<u8, Failure> {
    let found = match (&args.id, &args.key) {
        (Some(id), _) => {
            let id = LockId::parse(id)?;
            store.open(Purpose::Look).await?.get_by_id_raw(id).await?
        }
        (None, Some(key)) => {
            let key = LockKey::new(key)?;
            store
                .open(Purpose::Look)
                .await?
                .get_by_key_raw(&key)
                .await?
        }
        (None, None) => return Err(Failure::usage("name a key, or a lock id by --id")),
    };
    let (text, value) = match &found {
        Some(lock) => (
            output.table(lock),
            json!({ "held": true, "lock": output.lock_value(lock) }),
        ),
        None if args.id.is_some() => ("the id holds no lock".to_owned(), json!({ "held": false })),
        None => ("free".to_owned(), json!({ "held": false })),
    };
    output.result(&text, &value)?;
    Ok(if found.is_some() { 0 } else { exit::NO })
}

pub(crate) async fn acquire(args: &HoldArgs, store: &Store, output: Output) -> Result<u8, Failure> {
    if args.conflict_exit_code == 0 {
        return Err(Failure::usage(
            "`--conflict-exit-code 0` is for `run`: a script could not tell that `acquire` got no lock",
        ));
    }
    let mut signals = Signals::listen()?;
    let (locks, guard) = match hold::acquire(args, false, store, &mut signals, output).await? {
        Acquisition::Guard(locks, guard) => (locks, guard),
        Acquisition::Interrupted(signal) => return Ok(exit::of_signal(signal)),
    };
    let value = json!({
        "lockId": guard.lock_id().as_str(),
        "keyHash": guard.key().hash_id(),
        "lockIdHash": guard.lock_id().hash_id(),
        "fence": guard.fence(),
        "expiresAtMs": guard.expires_at_ms(),
    });
    match output.result_that_is_needed(guard.lock_id().as_str(), &value) {
        Ok(()) => drop(guard.detach()),
        Err(failure) => {
            // Nobody knows the id.
            drop(guard);
            hold::settle(&locks).await;
            return Err(failure);
        }
    }
    Ok(0)
}

pub(crate) async fn extend(
    args: &ExtendArgs,
    store: &Store,
    output: Output,
) -> Result<u8, Failure> {
    let (id, ttl) = (LockId::parse(&args.id)?, Ttl::new(args.ttl)?);
    let locks = store.open(Purpose::Look).await?;
    let extended = locks.extend(id, ttl.as_duration()).await?;
    let text = match extended.is_extended() {
        true => format!("extended: the lease ends in {}", duration::show(args.ttl)),
        false => "the id holds no lock: it was released, or has expired".to_owned(),
    };
    output.result(&text, &extended)?;
    Ok(if extended.is_extended() { 0 } else { exit::NO })
}

pub(crate) async fn release(
    args: &ReleaseArgs,
    store: &Store,
    output: Output,
) -> Result<u8, Failure> {
    let (locks, id, gone) = match (&args.force, &args.id) {
        (Some(key), _) => {
            let key = LockKey::new(key)?;
            let locks = store.open(Purpose::Look).await?;
            let Some(lock) = locks.get_by_key_raw(&key).await? else {
                output.result("free: nothing to release", &json!({ "ok": false }))?;
                return Ok(exit::NO);
            };
            if !args.yes && !confirmed(&lock, output)? {
                output
                    .note("declined", "nothing was released", json!({}))
                    .await;
                return Ok(exit::NO);
            }
            (
                locks,
                lock.lock_id,
                "that lock has ended in the meantime; nothing was released",
            )
        }
        (None, Some(id)) => {
            let id = LockId::parse(id)?;
            let locks = store.open(Purpose::Look).await?;
            (
                locks,
                id,
                "the id holds no lock: it was released, or has expired",
            )
        }
        (None, None) => return Err(Failure::usage("name a lock id, or a key by --force")),
    };
    let released = locks.release(id).await;
    hold::settle(&locks).await;
    let released = released?;
    let text = if released.is_released() {
        "released"
    } else {
        gone
    };
    output.result(text, &released)?;
    Ok(if released.is_released() { 0 } else { exit::NO })
}

/// Shows a lock and asks.
fn confirmed(lock: &LockInfoDebug, output: Output) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() || output.is_json() {
        return Err(Failure::usage(
            "release --force asks for confirmation on a terminal; pass --yes to release without it",
        ));
    }
    let mut terminal = io::stderr();
    let asked = write!(
        terminal,
        "{}\nIts holder is not notified and may still be working. Release it? [y/N] ",
        output.table(lock)
    );
    let mut answer = String::new();
    asked
        .and_then(|()| terminal.flush())
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(|error| Failure::new(exit::INTERNAL, format!("cannot ask: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

pub(crate) async fn purge(store: &Store, output: Output) -> Result<u8, Failure> {
    let locks = store.open(Purpose::Look).await?;
    let purged = locks.purge_expired().await?;
    let text = format!("expired locks that were deleted: {purged}");
    output.result(&text, &json!({ "purged": purged }))?;
    Ok(0)
}
