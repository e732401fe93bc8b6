//! Injects faults.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use syncguard_chaos::{Fault, Strike, now_us, schedule};
use syncguard_testkit::{FaultProxy, Faults, Server, Struck};

use super::store::Store;

pub(super) const PROGRESS: Duration = Duration::from_secs(5);

/// An injected fault.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blow {
    pub(super) fault: Fault,
    pub(super) from_us: i64,
    pub(super) to_us: i64,
    /// How often the proxy applied it. `None` for a fault of the server or of a worker.
    pub(super) seen: Option<u64>,
}

impl Blow {
    /// Whether the fault affected a call, given whether a call was in flight.
    pub(super) fn struck(&self, met_a_call: bool) -> bool {
        self.seen.map_or(met_a_call, |seen| seen > 0)
    }
}

/// Injects the store's faults for some time.
pub(super) fn strike(
    store: &Store,
    server: &mut dyn Server,
    proxy: &FaultProxy,
    seed: u64,
    time: Duration,
) -> Result<Vec<Blow>> {
    let started = Instant::now();
    let mut blows = Vec::new();
    let mut told = started;
    for strike in schedule(seed, store.faults) {
        if started.elapsed() + strike.after + strike.lasts > time {
            break;
        }
        thread::sleep(strike.after);
        let from_us = now_us();
        let before = proxy.struck();
        inflict(server, proxy, strike)?;
        blows.push(Blow {
            fault: strike.fault,
            from_us,
            to_us: now_us(),
            seen: seen(strike.fault, before, proxy.struck()),
        });
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            let (time, latest) = (started.elapsed(), strike.fault);
            eprintln!(
                "    {}, {time:.0?}: {} faults, the last: {latest}",
                store.name,
                blows.len()
            );
        }
    }
    thread::sleep(time.saturating_sub(started.elapsed()));
    Ok(blows)
}

fn inflict(server: &mut dyn Server, proxy: &FaultProxy, strike: Strike) -> Result<()> {
    let wait = || thread::sleep(strike.lasts);
    let faults = match strike.fault {
        Fault::Kill => {
            server.kill();
            wait();
            return server.restart();
        }
        Fault::Pause => {
            server.pause()?;
            wait();
            return server.resume();
        }
        Fault::Delay => Faults::delay(strike.delay),
        Fault::Reset => Faults::RESET,
        Fault::Refuse => Faults::REFUSE,
        Fault::DropReply => Faults::DROP_REPLY,
        Fault::CutAtReply => Faults::CUT_AT_REPLY,
        Fault::HalfOpen => Faults::HALF_OPEN,
        Fault::Duplicate => Faults::DUPLICATE,
    };
    proxy.set(faults);
    wait();
    proxy.set(Faults::NONE);
    Ok(())
}

fn seen(fault: Fault, before: Struck, after: Struck) -> Option<u64> {
    match fault {
        Fault::Kill | Fault::Pause | Fault::Refuse => None,
        Fault::Delay => Some(after.delayed - before.delayed),
        Fault::Reset | Fault::CutAtReply => Some(after.reset - before.reset),
        Fault::DropReply => Some(after.swallowed - before.swallowed),
        Fault::HalfOpen => Some(after.half_open - before.half_open),
        Fault::Duplicate => Some(after.duplicated - before.duplicated),
    }
}
