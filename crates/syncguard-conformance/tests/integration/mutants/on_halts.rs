//! Faults of halted calls where nothing is raced unless the case waits for it: a case refuses them, or is undecided.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use syncguard_conformance::{Report, RunOptions, Status, run};
use syncguard_core::backend::AcquireResult;
use syncguard_core::{ErrorCode, ExtendResult, LockError, LockId, ReleaseResult, Ttl};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::broken::{BrokenHarness, Fault};
use super::case_refuses;
use super::on_clearing::{PurgeDeletesByKey, purgeable};
use super::on_races::ExtendWritesBackAtOnce;
use super::on_stored::PurgingForgetsTheTakenOver;
use super::on_upkeep::PurgesPastTheLimit;
use super::store::{Answer, Ask, Store};

/// Writes back what was released, on a store that takes long to release.
#[derive(Debug, Clone, Default)]
struct ReleasesSlowly(ExtendWritesBackAtOnce);

impl Fault for ReleasesSlowly {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        self.0.extend(store, id, ttl).await
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        tokio::time::sleep(Duration::from_millis(200)).await;
        store.memory.release(id).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_stays_halted_on_a_slow_store() {
    case_refuses::<ReleasesSlowly>("X3", REVIVES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_at_a_time_is_not_believed_of_calls_in_steps() {
    for harness in [
        BrokenHarness::new::<ReleasesSlowly>(),
        BrokenHarness::new::<ExtendWritesBackAtOnce>(),
    ] {
        let report = run_on_one_connection(harness, REVIVES).await;
        let status = report.case(REVIVES).unwrap().status;
        assert_eq!(status, Status::Failed, "{report}");
    }
}

/// No fault: a call keeps all others out even while it is halted, and fails if that takes two seconds. So does an idle
/// transaction.
#[derive(Debug, Clone, Default)]
struct OneAtATime(Arc<Mutex<()>>);

impl OneAtATime {
    async fn idle(&self) -> Answer<MutexGuard<'_, ()>> {
        let turn = self.0.lock().await;
        let idle = Instant::now();
        yield_now().await;
        if idle.elapsed() > Duration::from_secs(2) {
            let code = ErrorCode::ServiceUnavailable;
            return Err(LockError::new(code, "the transaction was idle"));
        }
        Ok(turn)
    }

    /// Waits until the transaction of a halted call has ended.
    async fn wait(&self) {
        let _ = timeout(Duration::from_secs(2), self.0.lock()).await;
    }
}

impl Fault for OneAtATime {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.wait().await;
        store.acquire(ask).await
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let _turn = self.idle().await?;
        store.memory.extend(id, ttl).await
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        self.wait().await;
        store.memory.release(id).await
    }

    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        let _turn = self.idle().await?;
        store.memory.purge_expired(limit).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halted_call_that_keeps_others_out_decides_by_what_the_harness_says() {
    const WHY: &str = "other calls did not end while a call was halted";
    const EXTEND: &str = "tolerance::a_halted_call_takes_nothing_from_a_successor";
    join_all([REVIVES, EXTEND, SPARES].map(async |case| {
        is_undecided::<OneAtATime>(case, WHY).await;
        let report = run_on_one_connection(BrokenHarness::new::<OneAtATime>(), case).await;
        let status = report.case(case).unwrap().status;
        assert_eq!(status, Status::Passed, "{report}");
    }))
    .await;
}

/// Purges in several steps, and finds nothing.
#[derive(Debug, Clone, Default)]
struct PurgesNothing;

impl Fault for PurgesNothing {
    async fn purge_expired(&self, _: &Store, _: u32) -> Answer<u64> {
        yield_now().await;
        Ok(0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_leaves_the_expired_decides_nothing() {
    is_undecided::<PurgesNothing>(SPARES, NOT_MET).await;
}

/// Purges wrongly, beside another client that purges correctly: until that one finds something, or for ever.
#[derive(Debug, Clone, Default)]
struct Rivalled<F, const FOR_EVER: bool> {
    fault: F,
    begun: Arc<AtomicBool>,
}

impl<F: Fault, const FOR_EVER: bool> Fault for Rivalled<F, FOR_EVER> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        if !self.begun.swap(true, Ordering::SeqCst) {
            let memory = store.memory.clone();
            tokio::spawn(async move {
                while memory.purge_expired(500).await.unwrap() == 0 || FOR_EVER {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
        store.acquire(ask).await
    }

    async fn purge_expired(&self, store: &Store, limit: u32) -> Answer<u64> {
        if purgeable(store)
            .await
            .iter()
            .any(|lock| store.keeps_lock(&lock.key))
        {
            return self.fault.purge_expired(store, limit).await;
        }
        if FOR_EVER {
            // Else it looks like a store that deletes expired locks itself.
            yield_now().await;
        }
        Ok(0)
    }
}

const NOT_MET: &str = "the expired locks were gone before the purge";
const REVIVES: &str = "races::a_halted_extend_brings_nothing_back";
const SPARES: &str = "races::a_halted_purge_leaves_successors_alone";
const CLEARS: &str = "stored::a_halted_purge_leaves_nothing";
const STOPS: &str = "upkeep::purging_stops_at_its_limit";

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_came_too_late_is_repeated() {
    tokio::join!(
        case_refuses::<Rivalled<PurgeDeletesByKey, false>>("P1", SPARES),
        case_refuses::<Rivalled<PurgingForgetsTheTakenOver, false>>("G2", CLEARS),
        case_refuses::<Rivalled<PurgesPastTheLimit, false>>("P2", STOPS),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_always_comes_too_late_decides_nothing() {
    tokio::join!(
        is_undecided::<Rivalled<PurgeDeletesByKey, true>>(SPARES, NOT_MET),
        is_undecided::<Rivalled<PurgingForgetsTheTakenOver, true>>(CLEARS, NOT_MET),
    );
}

async fn run_on_one_connection(mut harness: BrokenHarness, case: &str) -> Report {
    harness.one_call_at_a_time = true;
    run(Arc::new(harness), RunOptions::new().filter(case)).await
}

async fn is_undecided<F: Fault>(case: &str, why: &str) {
    let harness = Arc::new(BrokenHarness::new::<F>());
    let report = run(harness, RunOptions::new().filter(case)).await;
    let seen = report.case(case).unwrap();
    assert_eq!(seen.status, Status::Skipped, "{report}");
    assert!(seen.detail.as_deref().unwrap().contains(why), "{report}");
}
