//! Faults that befall the workers themselves, for a store without a server.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Signal, kill_process};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use syncguard_chaos::{Fault, Strike, now_us, schedule};

use super::Settings;
use super::faults::{Blow, PROGRESS};
use super::run::{AFTERMATH, Disturbed, KEYS, WORKERS_END_WITHIN};
use super::store::Store;
use super::worker::{Process, Start};

/// Runs the workers, and kills or pauses one after the other, in the middle of whatever it does. Another
/// takes the place of one that was killed.
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
                killed.extend(workers.remove(victim).kill()?);
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
            eprintln!("    {:.0?}: {} faults", started.elapsed(), blows.len());
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
