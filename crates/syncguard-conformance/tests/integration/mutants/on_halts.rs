//! Faults of halted calls where nothing is raced unless the case waits for it: a case refuses them, or is undecided.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use syncguard_conformance::{RunOptions, Status, run};
use syncguard_core::backend::{AcquireResult, TIME_TOLERANCE_MS};
use syncguard_core::{ExtendResult, LockId, LockInfoDebug, ReleaseResult, Ttl};
use tokio::sync::Mutex;
use tokio::task::yield_now;

use super::broken::{BrokenHarness, Fault};
use super::on_clearing::PurgeDeletesByKey;
use super::on_races::ExtendWritesBackAtOnce;
use super::on_stored::PurgingForgetsTheTakenOver;
use super::refuses;
use super::store::{Answer, Ask, Store, now_ms};

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
    refuses::<ReleasesSlowly>("X3", "races::a_halted_extend_brings_nothing_back").await;
}

/// No fault: a call keeps all others out, even while it is halted.
#[derive(Debug, Clone, Default)]
struct OneAtATime(Arc<Mutex<()>>);

impl Fault for OneAtATime {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let _turn = self.0.lock().await;
        yield_now().await;
        store.memory.extend(id, ttl).await
    }

    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        let _turn = self.0.lock().await;
        store.memory.release(id).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halted_call_that_keeps_others_out_decides_nothing() {
    is_undecided::<OneAtATime>("races::a_halted_extend_brings_nothing_back").await;
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
        let expired = |lock: &LockInfoDebug| lock.expires_at_ms + TIME_TOLERANCE_MS <= now_ms();
        let mut expired = store.unreleased().into_iter().filter(expired);
        if expired.any(|lock| store.keeps_lock(&lock.key)) {
            return self.fault.purge_expired(store, limit).await;
        }
        yield_now().await;
        Ok(0)
    }
}

const SPARES: &str = "races::a_halted_purge_leaves_successors_alone";
const CLEARS: &str = "stored::a_halted_purge_leaves_nothing";

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_came_too_late_is_repeated() {
    tokio::join!(
        refuses::<Rivalled<PurgeDeletesByKey, false>>("P1", SPARES),
        refuses::<Rivalled<PurgingForgetsTheTakenOver, false>>("G2", CLEARS),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_always_comes_too_late_decides_nothing() {
    tokio::join!(
        is_undecided::<Rivalled<PurgeDeletesByKey, true>>(SPARES),
        is_undecided::<Rivalled<PurgingForgetsTheTakenOver, true>>(CLEARS),
    );
}

async fn is_undecided<F: Fault>(case: &str) {
    let harness = Arc::new(BrokenHarness::new::<F>());
    let report = run(harness, RunOptions::new().filter(case)).await;
    assert_eq!(
        report.case(case).unwrap().status,
        Status::Skipped,
        "{report}"
    );
}
