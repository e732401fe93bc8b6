//! Faults of the workers themselves, for a store without a server.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Signal, kill_process};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use syncguard_chaos::{Call, Fault, Invocation, Response, Strike, now_us, schedule};
use syncguard_core::{LockId, Locks};
use tokio::runtime::Runtime;

use super::Settings;
use super::faults::{Blow, PROGRESS};
use super::run::{AFTERMATH, Disturbed, KEYS, WORKERS_END_WITHIN};
use super::store::Store;
use super::worker::{Process, Start, connect};

/// Runs the workers, and kills or pauses one after the other, at any point of its work. A new worker
/// replaces a killed one.
pub(super) fn disturb(store: &Store, address: &str, settings: Settings) -> Result<Disturbed> {
    let time = Duration::from_secs(settings.seconds);
    let until_us = now_us() + i64::try_from((time + AFTERMATH).as_micros())?;
    let start = |worker| {
        Process::start(&Start {
            store,
            address,
            worker,
            seed: settings.seed,
            until_us,
            keys: &KEYS,
            mutant: settings.mutant,
            registers: None,
        })
    };
    let runtime = Runtime::new()?;
    let locks = runtime.block_on(connect(store, address, None))?;
    let workers = (1..=settings.workers).map(start);
    let mut workers = workers.collect::<Result<Vec<_>>>()?;
    let mut newest = settings.workers;
    let (mut killed, mut blows) = (Vec::new(), Vec::new());
    let started = Instant::now();
    let mut told = started;
    for Strike {
        after,
        fault,
        lasts,
        ..
    } in schedule(settings.seed, store.faults)
    {
        if started.elapsed() + after + lasts > time {
            break;
        }
        thread::sleep(after);
        let victim = blows.len() % workers.len();
        let from_us = now_us();
        match fault {
            Fault::Kill => {
                let calls = workers.remove(victim).kill()?;
                killed.extend(runtime.block_on(release_left(&locks, &calls))?);
                killed.extend(calls);
                newest += 1;
                workers.push(start(newest)?);
            }
            Fault::Pause => {
                kill_process(workers[victim].pid(), Signal::STOP)?;
                thread::sleep(lasts);
                kill_process(workers[victim].pid(), Signal::CONT)?;
            }
            other => bail!("{other} needs a server"),
        }
        blows.push(Blow {
            fault,
            from_us,
            to_us: now_us(),
            seen: None,
        });
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            eprintln!(
                "    {}, {:.0?}: {} faults",
                store.name,
                started.elapsed(),
                blows.len()
            );
        }
    }
    thread::sleep(time.saturating_sub(started.elapsed()));
    let deadline = Instant::now() + AFTERMATH + WORKERS_END_WITHIN;
    let workers = workers.into_iter().map(|worker| worker.finish(deadline));
    Ok(Disturbed {
        workers: workers.collect::<Result<_>>()?,
        killed,
        blows,
    })
}

/// How often a release is tried.
const ATTEMPTS: u32 = 10;

/// Releases what a worker held when it was killed, since its leases last longer than the run. Returns the
/// calls that this took.
async fn release_left(locks: &Locks, calls: &[Call]) -> Result<Vec<Call>> {
    let settled = |id: &str| {
        let ended = |call: &Call| matches!(call.response, Response::Released | Response::NotHeld);
        let releases =
            |call: &Call| matches!(&call.invocation, Invocation::Release { id: of } if of == id);
        calls.iter().any(|call| releases(call) && ended(call))
    };
    let mut made = Vec::new();
    for call in calls {
        let Invocation::Acquire { id, .. } = &call.invocation else {
            continue;
        };
        let may_hold = matches!(call.response, Response::Granted { .. } | Response::Unknown);
        if !may_hold || settled(id) {
            continue;
        }
        let lock_id = LockId::parse(id)?;
        for _ in 0..ATTEMPTS {
            let invoked_us = now_us();
            let response = match locks.release(lock_id).await {
                Ok(result) if result.is_released() => Response::Released,
                Ok(_) => Response::NotHeld,
                Err(error) if error.outcome_unknown() => Response::Unknown,
                Err(_) => Response::Failed,
            };
            let answered = matches!(response, Response::Released | Response::NotHeld);
            made.push(Call {
                client: 0,
                invoked_us,
                returned_us: (response != Response::Unknown).then(now_us),
                key: call.key.clone(),
                invocation: Invocation::Release { id: id.clone() },
                response,
            });
            if answered {
                break;
            }
        }
    }
    Ok(made)
}

/// Fails if SQLite finds the file damaged.
pub(super) async fn ensure_sound(path: &str) -> Result<()> {
    let mut connection = SqliteConnectOptions::new().filename(path).connect().await?;
    let found: String = sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_one(&mut connection)
        .await?;
    connection
        .close()
        .await
        .context("the file cannot be closed")?;
    ensure!(found == "ok", "the file is damaged: {found}");
    Ok(())
}
