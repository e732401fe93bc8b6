//! Auto-extension: leases that are kept, leases that are lost, and nothing left running.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use syncguard_core::observe::Operation;
use syncguard_core::{AutoExtend, ErrorCode, ExtendResult, Lease, LockOptions, Locks};
use syncguard_memory::MemoryBackend;
use tokio::time::Instant;

use crate::common::{Fault, FaultyBackend, until_free};

const TTL: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_secs(10);

/// Locks with patience for the paused clock of a test.
fn paused(faulty: &FaultyBackend) -> Locks {
    faulty.builder().operation_timeout(TTL * 10).build()
}

fn options() -> LockOptions {
    LockOptions::new().ttl(TTL).auto_extend(AutoExtend::new())
}

#[tokio::test(start_paused = true)]
async fn a_section_longer_than_its_ttl_keeps_the_lock() {
    let faulty = FaultyBackend::default();
    let locks = paused(&faulty);
    let receipt = locks.lock("k").options(&options()).run(async |lease| {
        for _ in 0..20 {
            tokio::time::sleep(TTL / 2).await;
            assert!(lease.remaining() > TTL / 2, "{:?}", lease.remaining());
        }
    });
    assert!(!receipt.await.unwrap().overran());
    // One renewal a third into each TTL: 300 s, every 10 s.
    let renewals = faulty.calls(Operation::Extend);
    assert!((28..=30).contains(&renewals), "{renewals} renewals");
}

#[tokio::test(start_paused = true)]
async fn one_slow_renewal_does_not_lose_the_lease() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Extend,
        [Fault::DelayReply(TTL / 2 + Duration::from_secs(1))],
    );
    let locks = paused(&faulty);
    let section = async |_| tokio::time::sleep(TTL * 3).await;
    assert!(
        locks
            .lock("k")
            .options(&options())
            .run(section)
            .await
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_tried_again() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Extend,
        [
            Fault::Refuse(ErrorCode::ServiceUnavailable),
            Fault::LoseReply,
            Fault::Refuse(ErrorCode::AuthFailed),
        ],
    );
    let locks = paused(&faulty);
    let section = async |_| tokio::time::sleep(TTL * 2).await;
    assert!(
        locks
            .lock("k")
            .options(&options())
            .run(section)
            .await
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn when_renewals_keep_failing_the_lease_is_lost_at_its_deadline_and_the_section_dropped() {
    for fault in [
        Fault::Refuse(ErrorCode::ServiceUnavailable),
        Fault::LoseReply,
        Fault::Hang,
    ] {
        let faulty = FaultyBackend::default();
        // The first renewal is good; the deadline counts from its start.
        let failing = std::iter::repeat_n(fault, 10_000);
        faulty.plan(
            Operation::Extend,
            std::iter::once(Fault::Pass).chain(failing),
        );
        let locks = paused(&faulty);
        let dropped = Arc::new(AtomicBool::new(false));
        let started = Instant::now();
        let section = async |_| {
            let _on_drop = OnDrop(Arc::clone(&dropped));
            pending::<()>().await;
        };
        let error = locks
            .lock("k")
            .options(&options())
            .run(section)
            .await
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::LockLost);
        assert!(dropped.load(Ordering::SeqCst), "the section went on");
        let deadline = INTERVAL + TTL;
        let lost = started.elapsed();
        assert!(
            lost <= deadline + Duration::from_millis(20),
            "lost after {lost:?}"
        );
        assert!(lost >= deadline, "given up early, after {lost:?}");
        until_free(&faulty.store, "k").await;
    }
}

struct OnDrop(Arc<AtomicBool>);
impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_removed_behind_the_holders_back_is_lost_at_the_next_renewal() {
    let faulty = FaultyBackend::default();
    let locks = paused(&faulty);
    let removed = Instant::now();
    let section = async |lease: Lease| {
        assert!(locks.release(lease.lock_id()).await.unwrap().is_released());
        pending::<()>().await;
    };
    let error = locks
        .lock("k")
        .options(&options())
        .run(section)
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::LockLost);
    assert!(removed.elapsed() <= INTERVAL + Duration::from_millis(100));
    // The store has said that there is nothing to release: nobody asks again.
    locks.drain(TTL).await.unwrap();
    assert_eq!(faulty.calls(Operation::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_sees_one_renewal_at_a_time() {
    for (slowness, kept) in [(INTERVAL * 6 / 5, true), (INTERVAL * 3, false)] {
        let faulty = FaultyBackend::default();
        faulty.plan(
            Operation::Extend,
            std::iter::repeat_n(Fault::DelayRequest(slowness), 100),
        );
        let locks = paused(&faulty);
        let guard = locks.try_lock("k").ttl(TTL).await.unwrap().unwrap();
        let guard = guard.auto_extend(AutoExtend::new());
        for _ in 0..50 {
            tokio::time::sleep(INTERVAL / 2).await;
            assert!(faulty.in_flight(Operation::Extend) <= 1);
        }
        assert_eq!(guard.is_valid(), kept, "{slowness:?}");
        assert!(faulty.calls(Operation::Extend) >= 1);
    }
}

#[tokio::test(start_paused = true)]
async fn released_while_a_renewal_is_in_flight_the_key_is_free_and_the_renewal_gone() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Extend,
        [Fault::DelayRequest(TTL / 2), Fault::DelayReply(TTL / 2)],
    );
    let locks = paused(&faulty);
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    for explicit in [true, false] {
        let guard = locks.try_lock("k").ttl(TTL).await.unwrap().unwrap();
        let lease = guard.lease();
        let guard = guard.auto_extend(AutoExtend::new());
        tokio::time::sleep(INTERVAL + Duration::from_secs(1)).await;
        assert_eq!(faulty.in_flight(Operation::Extend), 1);
        if explicit {
            assert!(guard.release().await.unwrap().is_released());
        } else {
            drop(guard);
            locks.drain(TTL).await.unwrap();
        }
        assert!(!locks.is_locked("k").await.unwrap());
        assert_eq!((faulty.in_flight(Operation::Extend), tasks()), (0, before));
        assert!(!lease.is_valid());
        lease.lost().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_shortened_by_hand_is_renewed_in_time() {
    let faulty = FaultyBackend::default();
    let locks = paused(&faulty);
    let receipt = locks.lock("k").options(&options()).run(async |lease| {
        tokio::time::sleep(INTERVAL / 5).await;
        let shortened = lease.extend(Duration::from_secs(2)).await.unwrap();
        assert!(shortened.expires_at_ms().is_some());
        tokio::time::sleep(TTL * 2).await;
    });
    assert!(!receipt.await.unwrap().overran());
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_the_renewals_and_so_the_lease() {
    let faulty = FaultyBackend::default();
    let locks = paused(&faulty);
    let max_hold = TTL * 4;
    let options = LockOptions::new()
        .ttl(TTL)
        .auto_extend(AutoExtend::new().max_hold(max_hold));
    let started = Instant::now();
    let error = locks
        .lock("k")
        .options(&options)
        .run(async |_| pending::<()>().await)
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::LockLost);
    assert!(started.elapsed() >= max_hold);
    assert!(started.elapsed() <= max_hold + TTL);
    until_free(&faulty.store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn a_lookup_does_not_move_the_local_deadline() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Extend,
        std::iter::repeat_n(Fault::Refuse(ErrorCode::ServiceUnavailable), 1_000),
    );
    let locks = paused(&faulty);
    let started = Instant::now();
    let guard = locks.try_lock("k").ttl(TTL).await.unwrap().unwrap();
    let guard = guard.auto_extend(AutoExtend::new());
    let asking = async {
        loop {
            assert!(locks.get_by_key("k").await.unwrap().is_some());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::select! {
        () = guard.lost() => {}
        () = asking => {}
    }
    assert!(started.elapsed() <= TTL + Duration::from_millis(20));
    assert!(!guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn after_thousands_of_renewed_locks_no_task_is_left_and_no_lock_revived() {
    let store = MemoryBackend::default();
    let locks = Locks::new(store.clone());
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..50_u32 {
        let locks = locks.clone();
        workers.spawn(async move {
            let key = format!("k{worker}");
            for round in 0..40_u32 {
                let ttl = Duration::from_secs(3);
                let guard = locks
                    .try_lock(&key)
                    .ttl(ttl)
                    .await
                    .unwrap()
                    .expect("the key is free");
                let guard = guard.auto_extend(AutoExtend::new());
                tokio::time::sleep(ttl * ((worker + round) % 25) / 30).await;
                let lease = guard.lease();
                let _ = guard.release().await.unwrap();
                let late = lease.extend(ttl).await.unwrap();
                assert!(matches!(late, ExtendResult::NotHeld { .. }));
                assert!(!locks.is_locked(&key).await.unwrap());
            }
        });
    }
    workers.join_all().await;
    locks.drain(TTL).await.unwrap();
    while tasks() > before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(format!("{store:?}").contains("locks: 0"), "{store:?}");
}

#[test]
fn a_holder_that_was_paused_past_its_ttl_finds_out_on_waking() {
    let store = MemoryBackend::default();
    let ttl = Duration::from_millis(1_500);
    let (pausing, holder_is_paused) = std::sync::mpsc::channel();
    let other = std::thread::spawn({
        let store = store.clone();
        move || {
            block_on(async move {
                holder_is_paused.recv().unwrap();
                let locks = Locks::new(store);
                let patient = LockOptions::new()
                    .retry_delay(Duration::from_millis(20))
                    .timeout(TTL)
                    .max_retries(10_000);
                let fence = locks
                    .lock("k")
                    .options(&patient)
                    .run(async |lease| lease.fence())
                    .await;
                fence.unwrap().into_value()
            })
        }
    });
    block_on(async move {
        let locks = Locks::new(store.clone());
        let guard = locks.try_lock("k").ttl(ttl).await.unwrap().unwrap();
        let guard = guard.auto_extend(AutoExtend::new());
        pausing.send(()).unwrap();
        // The thread sleeps, and with it the runtime: the same as a stopped process.
        let others_fence = other.join().unwrap();
        assert!(others_fence > guard.fence());
        assert!(!guard.is_valid());
        guard.lost().await;
        let late = guard.extend(ttl).await.unwrap();
        assert!(matches!(late, ExtendResult::NotHeld { .. }));
        let next = locks.try_lock("k").ttl(ttl).await.unwrap().unwrap();
        assert!(next.fence() > others_fence);
    });
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

/// The holder's runtime is no longer driven, so that its renewal neither runs nor ends.
#[test]
fn a_release_does_not_wait_for_a_runtime_that_stands_still() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    let (standing, other) = (runtime().unwrap(), runtime().unwrap());
    let faulty = FaultyBackend::default();
    let timeout = Duration::from_millis(200);
    let locks = faulty.builder().operation_timeout(timeout).build();
    let held = async {
        let guard = locks.lock("k").options(&options()).await.unwrap();
        tokio::task::yield_now().await;
        guard
    };
    let guard = standing.block_on(held);
    other.block_on(async {
        let release = tokio::time::timeout(timeout * 50, guard.release());
        assert!(release.await.unwrap().unwrap().is_released());
        assert!(!locks.is_locked("k").await.unwrap());
    });
}
