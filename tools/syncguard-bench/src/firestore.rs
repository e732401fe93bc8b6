//! Firestore, on the emulator: compare-and-set, beside its bare requests and beside transactions.

use std::time::Duration;

use anyhow::Result;
use syncguard_core::Locks;
use syncguard_firestore::{FirestoreBackend, FirestoreOptions};
use syncguard_testkit::{FirestoreEmulator, install};

use crate::comparison::{Comparison, Target};
use crate::drive::Sample;
use crate::figure::side_by_side;
use crate::handover::{self, Bounds, Contenders, Targets};
use crate::machine::locked_version;
use crate::report::StoreReport;
use crate::workload::{WORKLOADS, Workload, measure_on};
use crate::{Settings, tell, workload};

mod bare;
mod requests;
mod transactions;

/// Clients in parallel that are compared with one which holds transactions.
const CLIENTS: usize = 8;

/// The emulator's Java virtual machine compiles code that it runs often: measure only after that.
const WARM_UP: u32 = 60;

/// On a busy machine, an emulator that has just started can take longer than any default timeout.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of the emulator, whose work is what a hand-over takes.
const TARGETS: Targets = Targets {
    one: Bounds {
        sections: 0.85,
        wait: 2.0,
        fairness: 0.95,
    },
    all: Bounds {
        sections: 0.6,
        wait: 6.0,
        fairness: 0.7,
    },
    round_trips: Some(10.0),
};

pub(crate) fn measure(settings: &Settings) -> Result<StoreReport> {
    install::install(&[install::FIRESTORE])?;
    let emulator = FirestoreEmulator::start()?;
    tokio::runtime::Runtime::new()?.block_on(all(&emulator.host(), settings))
}

async fn all(host: &str, settings: &Settings) -> Result<StoreReport> {
    let locks = connect(host).await?;
    let mut report = StoreReport {
        store: "firestore",
        versions: [
            ("gcloud-sdk", locked_version("gcloud-sdk")),
            ("tonic", locked_version("tonic")),
        ]
        .into(),
        limit: "the bare requests through the same client of gcloud-sdk: for acquire a \
                BatchGetDocuments and a Commit, for release and extend a RunQuery and a Commit, \
                for a refusal and a lookup the read alone",
        load: Vec::new(),
        comparisons: Vec::new(),
        handover: Vec::new(),
    };
    if !settings.only_hand_over {
        measure_all(host, settings, &locks, &mut report).await?;
    }
    let other = connect(host).await?;
    let read = async || {
        locks.get_by_key("free").await?;
        Ok(())
    };
    let contenders = Contenders::Processes {
        store: "firestore",
        address: host,
    };
    let clients = [&locks, &other];
    handover::measure(clients, contenders, read, &TARGETS, settings, &mut report).await?;
    Ok(report)
}

async fn measure_all(
    host: &str,
    settings: &Settings,
    locks: &Locks,
    report: &mut StoreReport,
) -> Result<()> {
    tell("warming up");
    let span = settings.span;
    for workload in [Workload::Pair, Workload::Extend] {
        workload::measure(locks, workload, CLIENTS, span * WARM_UP / 4).await?;
    }
    transactions::measure(host, span * WARM_UP / 4).await?;
    // Measured first: the emulator reads all documents for a query, and there are few yet.
    tell("transactions");
    report
        .comparisons
        .push(beside_transactions(host, settings).await?);
    for workload in WORKLOADS {
        for &tasks in settings.tasks {
            tell(&format!("{}, {tasks} tasks", workload.name()));
            load(host, locks, workload, tasks, settings, report).await?;
        }
    }
    Ok(())
}

async fn load(
    host: &str,
    locks: &Locks,
    workload: Workload,
    tasks: usize,
    settings: &Settings,
    report: &mut StoreReport,
) -> Result<()> {
    let (mut ours, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..settings.repetitions {
        ours.push(workload::measure(locks, workload, tasks, settings.span).await?);
        limits.push(bare::measure(host, workload, tasks, settings.span).await?);
    }
    report.add_load(workload, tasks, &ours, &limits);
    if workload != Workload::Pair {
        return Ok(());
    }
    let beside = |unit, figure: fn(&Sample) -> Option<f64>, target| {
        let name = format!("acquire and release, {tasks} tasks");
        let runs = side_by_side(&ours, &limits, figure);
        Comparison::new(name, unit, "bare requests", &runs, target)
    };
    report.comparisons.extend([
        beside(
            "pairs/s",
            |run| Some(run.steps_per_second),
            Some(Target::AtLeast(0.9)),
        )?,
        beside("µs CPU of client", |run| run.cpu_us, None)?,
    ]);
    Ok(())
}

/// Eight clients on different keys, beside one that holds transactions.
async fn beside_transactions(host: &str, settings: &Settings) -> Result<Comparison> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(connect(host).await?);
    }
    let span = settings.span * 4;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..settings.repetitions {
        ours.push(measure_on(None, &clients, Workload::Pair, CLIENTS, span).await?);
        theirs.push(transactions::measure(host, span).await?);
    }
    Comparison::new(
        format!("acquire and release, {CLIENTS} clients"),
        "pairs/s",
        "one client's transactions",
        &side_by_side(&ours, &theirs, |run| Some(run.steps_per_second)),
        Some(Target::AtLeast(5.0)),
    )
}

pub(crate) async fn connect(host: &str) -> Result<Locks> {
    let options = FirestoreOptions::new().request_timeout(PATIENCE);
    let backend = FirestoreBackend::connect_emulator(host, requests::PROJECT, options).await?;
    Ok(Locks::builder(backend).operation_timeout(PATIENCE).build())
}
