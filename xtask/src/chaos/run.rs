//! One run: workers, faults, and the check of the history.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use syncguard_chaos::{
    Call, Fault, History, Invocation, Response, check_ended, now_us, seen, wall_clock_offset_us,
};
use syncguard_core::Locks;
use syncguard_testkit::{FaultProxy, Server};

use super::Settings;
use super::faults::{Blow, strike};
use super::processes;
use super::report::{Report, report};
use super::store::{Site, Store};
use super::worker::{Finished, Process, Start, connect};
use crate::Done;
use crate::step::announced;

/// Few, so that they are contended.
pub(super) const KEYS: [&str; 3] = ["chaos:a", "chaos:b", "chaos:c"];

/// The pause after the faults, in which every worker must get a reply again. A driver may need some seconds
/// to notice which of its connections are dead.
pub(super) const AFTERMATH: Duration = Duration::from_secs(8);

/// From then on workers release what they may hold, which takes a few seconds after calls of unknown outcome.
pub(super) const WORKERS_END_WITHIN: Duration = Duration::from_secs(60);

/// The clocks of a machine differ by less than this in a run.
const DRIFT_US: i64 = 20_000;

pub(super) fn run(store: &Store, settings: Settings) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let starting = format!("start a server for {}", store.name);
    let mut site = announced(&starting, store.start)?;
    let direct = site.address();
    runtime.block_on((store.prepare)(direct.clone()))?;

    let what = format!(
        "chaos on {}: {} s, {} processes, seed {}",
        store.name, settings.seconds, settings.workers, settings.seed
    );
    let offset_us = wall_clock_offset_us();
    let Disturbed {
        workers,
        killed,
        blows,
    } = announced(&what, || match &mut site {
        Site::Server(server) => disturb(store, server.as_mut(), settings),
        Site::File(_) => processes::disturb(store, &direct, settings),
    })?;
    // The remaining locks are read without the proxy.
    let looked = runtime.block_on(async {
        let locks = connect(store, &direct, None).await?;
        look(&locks).await
    })?;
    let drift_us = (wall_clock_offset_us() - offset_us).abs();
    ensure!(
        drift_us < 1_000_000,
        "the machine's clock was set during the run: nothing can be said"
    );
    let history = History {
        calls: workers
            .iter()
            .flat_map(|worker| &worker.calls)
            .cloned()
            .chain(killed)
            .chain(looked)
            .collect(),
        clock_offset_us: offset_us,
        clock_drift_us: DRIFT_US + drift_us,
        redelivery: blows
            .iter()
            .filter(|blow| blow.fault == Fault::Duplicate)
            .map(|blow| (blow.from_us, blow.to_us))
            .collect(),
    };
    if let Site::File(_) = site {
        runtime.block_on(processes::ensure_sound(&direct))?;
    }
    let violations = announced(&format!("check the history of {}", store.name), || {
        Ok(check_ended(&history))
    })?;
    report(&Report {
        store,
        settings,
        history: &history,
        workers: &workers,
        blows: &blows,
        violations: &violations,
    })
}

/// The results of a run under faults.
pub(super) struct Disturbed {
    pub(super) workers: Vec<Finished>,
    /// The calls of workers that were killed.
    pub(super) killed: Vec<Call>,
    pub(super) blows: Vec<Blow>,
}

/// Runs the workers while faults are injected.
fn disturb(store: &Store, server: &mut dyn Server, settings: Settings) -> Result<Disturbed> {
    let proxy = FaultProxy::start(server.port())?;
    let time = Duration::from_secs(settings.seconds);
    let until_us = now_us() + i64::try_from((time + AFTERMATH).as_micros())?;
    let address = proxy.address();
    let workers = (1..=settings.workers)
        .map(|worker| {
            Process::start(&Start {
                store,
                address: &address,
                worker,
                seed: settings.seed,
                until_us,
                keys: &KEYS,
                mutant: settings.mutant,
                registers: None,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let blows = strike(store, server, &proxy, settings.seed, time)?;
    let deadline = Instant::now() + AFTERMATH + WORKERS_END_WITHIN;
    let workers = workers
        .into_iter()
        .map(|worker| worker.finish(deadline))
        .collect::<Result<_>>()?;
    Ok(Disturbed {
        workers,
        killed: Vec::new(),
        blows,
    })
}

/// Reads every key, as calls of the history.
async fn look(locks: &Locks) -> Result<Vec<Call>> {
    let mut calls = Vec::new();
    for name in KEYS {
        let invoked_us = now_us();
        let response: Response = seen(locks.get_by_key_raw(name).await?.as_ref());
        calls.push(Call {
            client: 0,
            invoked_us,
            returned_us: Some(now_us()),
            key: name.to_owned(),
            invocation: Invocation::LookupByKey,
            response,
        });
    }
    Ok(calls)
}
