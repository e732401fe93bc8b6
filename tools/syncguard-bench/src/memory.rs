//! Memory: the cost of policy and contract alone, because the store costs almost nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use syncguard_core::{LockId, Locks};
use syncguard_memory::MemoryBackend;

use crate::comparison::Comparison;
use crate::drive::{Sample, Stopwatch, Worker, drive};
use crate::figure::side_by_side;
use crate::handover::{self, Contenders, Targets};
use crate::report::StoreReport;
use crate::workload::{WORKLOADS, Workload, key_text};
use crate::{Settings, tell, workload};

pub(crate) fn measure(settings: &Settings) -> Result<StoreReport> {
    tokio::runtime::Runtime::new()?.block_on(all(settings))
}

async fn all(settings: &Settings) -> Result<StoreReport> {
    let locks = Locks::new(MemoryBackend::default());
    let mut report = StoreReport {
        store: "memory",
        versions: [].into(),
        limit: "a map behind a mutex: an id put in where there is none, and taken out again",
        load: Vec::new(),
        comparisons: Vec::new(),
        handover: Vec::new(),
    };
    let workloads = match settings.only_hand_over {
        true => &[][..],
        false => &WORKLOADS[..],
    };
    for &workload in workloads {
        for &tasks in settings.tasks {
            tell(&format!("{}, {tasks} tasks", workload.name()));
            let (mut ours, mut limits) = (Vec::new(), Vec::new());
            for _ in 0..settings.repetitions {
                // It remembers each call's time.
                let span = settings.span / 5;
                ours.push(workload::measure(&locks, workload, tasks, span).await?);
                if workload == Workload::Pair {
                    limits.push(bare(tasks, span).await?);
                }
            }
            report.add_load(workload, tasks, &ours, &limits);
            if workload == Workload::Pair {
                report.comparisons.push(Comparison::new(
                    format!("client CPU of a pair, {tasks} tasks"),
                    "µs",
                    "a map behind a mutex",
                    &side_by_side(&ours, &limits, |run| run.cpu_us),
                    None,
                )?);
            }
        }
    }
    let store = MemoryBackend::default();
    let handles = [(); 4].map(|()| Locks::new(store.clone()));
    let targets = Targets::of_a_fast_store(None);
    let (clients, contenders) = ([&handles[0], &handles[1]], Contenders::Handles(&handles));
    let nothing = async || Ok(());
    handover::measure(
        clients,
        contenders,
        nothing,
        &targets,
        settings,
        &mut report,
    )
    .await?;
    Ok(report)
}

/// Who holds which key.
type Holders = Arc<Mutex<HashMap<String, LockId>>>;

async fn bare(tasks: usize, span: Duration) -> Result<Sample> {
    let holders = Holders::default();
    let workers = (0..tasks).map(|task| Bare {
        holders: Arc::clone(&holders),
        task,
        next: 0,
    });
    drive(workers.collect(), span).await
}

struct Bare {
    holders: Holders,
    task: usize,
    next: u64,
}

impl Worker for Bare {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        self.next += 1;
        let (key, id) = (key_text(self.task, self.next), LockId::generate()?);
        let holders = &self.holders;
        let hold = async {
            let mut holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
            holders.insert(key.clone(), id).is_none()
        };
        let taken = watch.time(0, hold).await;
        let free = async {
            let mut holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
            holders.remove(&key).is_some()
        };
        let freed = watch.time(1, free).await;
        ensure!(taken && freed, "a key was not free");
        // As a task that waits for its store would.
        tokio::task::yield_now().await;
        Ok(())
    }
}
