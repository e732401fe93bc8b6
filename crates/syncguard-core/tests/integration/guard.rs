//! Guards and leases: released on every path, and honest about what remains.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use syncguard_core::observe::{Operation, ReleaseFailure, ReleaseStage};
use syncguard_core::{
    CancellationToken, ErrorCode, ExtendResult, LockGuard, LockId, Locks, hash_key,
};
use syncguard_memory::{ManualClock, MemoryBackend};
use tokio::time::timeout;

use crate::common::{Fault, FaultyBackend, is_held, until_free};

const MINUTE: Duration = Duration::from_secs(60);

async fn take(locks: &Locks) -> LockGuard {
    locks
        .try_lock("k")
        .ttl(MINUTE)
        .await
        .unwrap()
        .expect("the key is free")
}

/// Runs `test` on a runtime of its own and leaves the runtime to the caller.
fn runtime(threads: usize) -> tokio::runtime::Runtime {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder
        .worker_threads(threads.max(1))
        .enable_all()
        .build()
        .unwrap()
}

#[tokio::test]
async fn release_frees_the_key_at_once_and_a_second_client_sees_it() {
    let store = MemoryBackend::default();
    let [first, second] = [(), ()].map(|()| Locks::new(store.clone()));
    let guard = take(&first).await;
    assert!(second.try_lock("k").ttl(MINUTE).await.unwrap().is_none());
    assert!(guard.release().await.unwrap().is_released());
    assert!(second.try_lock("k").ttl(MINUTE).await.unwrap().is_some());
}

#[tokio::test]
async fn a_detached_lock_outlives_its_guard_and_is_released_by_id_elsewhere() {
    let store = MemoryBackend::default();
    let lease = take(&Locks::new(store.clone())).await.detach();
    let id = lease.lock_id().as_str().to_owned();
    let elsewhere = Locks::new(store.clone());
    let answer = tokio::spawn(async move { elsewhere.release(&id).await });
    assert!(answer.await.unwrap().unwrap().is_released());
    until_free(&store, "k").await;
}

#[tokio::test]
async fn remaining_follows_extends_up_and_down_and_ends_with_the_lock() {
    let locks = Locks::new(MemoryBackend::default());
    let guard = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
    assert!(guard.remaining() <= MINUTE && guard.remaining() > MINUTE / 2);

    for ttl in [MINUTE * 10, MINUTE / 2] {
        let answer = guard.extend(ttl).await.unwrap();
        assert_eq!(answer.expires_at_ms(), Some(guard.expires_at_ms()));
        assert!(guard.remaining() <= ttl && guard.remaining() > ttl / 2);
    }

    assert!(locks.release(guard.lock_id()).await.unwrap().is_released());
    assert!(matches!(
        guard.extend(MINUTE).await.unwrap(),
        ExtendResult::NotHeld { .. }
    ));
    assert!(!guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn after_an_extend_of_unknown_outcome_the_shorter_lease_counts() {
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::Extend, [Fault::LoseReply]);
    let locks = faulty.locks();
    let guard = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
    let error = guard.extend(Duration::from_secs(2)).await.unwrap_err();
    assert!(error.outcome_unknown());
    assert!(guard.remaining() <= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn the_local_deadline_counts_through_suspend() {
    let slept = Arc::new(AtomicU64::new(0));
    let clock = {
        let slept = Arc::clone(&slept);
        move || Duration::from_secs(slept.load(Ordering::SeqCst))
    };
    let locks = Locks::builder(MemoryBackend::default());
    let locks = locks.monotonic_clock(clock).build();
    let guard = take(&locks).await;
    assert!(guard.is_valid());
    let mut lost = pin!(guard.lost());
    timeout(Duration::ZERO, &mut lost).await.unwrap_err();
    slept.store(3_600, Ordering::SeqCst);
    assert!(!guard.is_valid());
    assert_eq!(guard.remaining(), Duration::ZERO);
    // Its timer does not know of the suspend.
    let lost = timeout(Duration::from_millis(1_100), lost).await;
    lost.expect("the holder learns of it within a second");
}

#[tokio::test]
async fn a_dropped_guard_releases_and_drain_waits_for_it() {
    let store = MemoryBackend::default();
    let locks = Locks::new(store.clone());
    let guards = (0..50).map(async |n| locks.try_lock(format!("k{n}")).ttl(MINUTE).await);
    for guard in guards {
        drop(guard.await.unwrap().unwrap());
    }
    locks.drain(Duration::from_secs(10)).await.unwrap();
    assert_eq!(locks.pending(), 0);
    for n in 0..50 {
        assert!(!is_held(&store, &format!("k{n}")).await);
    }
    // Draining does not close anything.
    drop(take(&locks).await);
    until_free(&store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn drain_says_when_releases_are_still_pending() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Release,
        [Fault::DelayRequest(Duration::from_secs(3))],
    );
    let locks = faulty.locks();
    drop(locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap());
    let error = locks.drain(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    locks.drain(MINUTE).await.unwrap();
    until_free(&faulty.store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_gives_up_does_not_blind_another() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Release,
        [Fault::DelayRequest(Duration::from_secs(3))],
    );
    let locks = faulty.locks();
    drop(locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap());
    let (impatient, patient) =
        tokio::join!(locks.drain(Duration::from_secs(1)), locks.drain(MINUTE));
    assert!(impatient.is_err());
    patient.unwrap();
}

#[test]
fn released_outside_any_runtime_it_says_so_and_is_released_by_the_one_that_took_it() {
    let store = MemoryBackend::default();
    let locks = Locks::new(store.clone());
    let runtime = runtime(2);
    let guard = runtime.block_on(take(&locks));
    let outside = std::thread::spawn(move || {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match Future::poll(std::pin::pin!(guard.release()), &mut context) {
            std::task::Poll::Ready(answer) => answer,
            std::task::Poll::Pending => panic!("it waits for a runtime"),
        }
    });
    let error = outside.join().unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    runtime.block_on(until_free(&store, "k"));
}

#[tokio::test(start_paused = true)]
async fn an_extend_that_is_answered_after_the_release_brings_nothing_back() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    for explicit in [true, false] {
        let guard = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
        let lease = guard.lease();
        faulty.plan(
            Operation::Extend,
            [Fault::DelayReply(Duration::from_secs(2))],
        );
        let extending = tokio::spawn({
            let lease = guard.lease();
            async move { lease.extend(MINUTE * 10).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        if explicit {
            assert!(guard.release().await.unwrap().is_released());
        } else {
            drop(guard);
        }
        assert!(extending.await.unwrap().unwrap().expires_at_ms().is_some());
        assert!(!lease.is_valid());
        lease.lost().await;
        locks.drain(MINUTE).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn extends_of_one_lease_take_turns_so_that_the_last_one_counts() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    let guard = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
    // The long one is at the store first and answered last, were they made at once.
    faulty.plan(
        Operation::Extend,
        [Fault::DelayReply(Duration::from_secs(2))],
    );
    let (long, short) = tokio::join!(
        guard.extend(MINUTE * 10),
        guard.extend(Duration::from_secs(20)),
    );
    assert!(long.is_ok() && short.is_ok());
    assert!(
        guard.remaining() <= Duration::from_secs(20),
        "{:?}",
        guard.remaining()
    );
}

#[tokio::test(start_paused = true)]
async fn an_extend_that_was_refused_for_certain_shortens_nothing() {
    let faulty = FaultyBackend::default();
    let refused = Fault::Refuse(ErrorCode::ServiceUnavailable);
    faulty.plan(Operation::Extend, [refused]);
    let locks = faulty.locks();
    let guard = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
    assert!(guard.extend(Duration::from_secs(2)).await.is_err());
    assert!(guard.remaining() > MINUTE / 2);
}

#[test]
fn outside_a_runtime_lock_and_drain_fail_with_a_typed_error_too() {
    let locks = Locks::new(MemoryBackend::default());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let options = syncguard_core::LockOptions::new();
    let locking = std::pin::pin!(locks.lock("k").options(&options).run(async |_| ()));
    let std::task::Poll::Ready(Err(error)) = Future::poll(locking, &mut context) else {
        panic!("it waits for a runtime");
    };
    assert_eq!(error.code(), ErrorCode::Internal);
    let draining = std::pin::pin!(locks.drain(MINUTE));
    let std::task::Poll::Ready(Err(error)) = Future::poll(draining, &mut context) else {
        panic!("it waits for a runtime");
    };
    assert_eq!(error.code(), ErrorCode::Internal);
}

#[test]
fn dropped_outside_any_runtime_it_is_released_by_the_one_that_took_it() {
    let store = MemoryBackend::default();
    let locks = Locks::new(store.clone());
    for threads in [0, 2] {
        let runtime = runtime(threads);
        let guard = runtime.block_on(take(&locks));
        std::thread::spawn(move || drop(guard)).join().unwrap();
        runtime.block_on(until_free(&store, "k"));
    }
}

#[test]
fn dropped_inside_another_runtimes_block_on_it_neither_blocks_nor_panics() {
    let store = MemoryBackend::default();
    let locks = Locks::new(store.clone());
    let (taker, other) = (runtime(0), runtime(0));
    let guard = taker.block_on(take(&locks));
    other.block_on(async move { drop(guard) });
    taker.block_on(until_free(&store, "k"));
}

#[test]
fn dropped_after_its_runtime_is_gone_it_leaves_the_lock_to_the_ttl() {
    let clock = ManualClock::new();
    let store = MemoryBackend::with_clock(clock.clone());
    let locks = Locks::new(store.clone());
    for threads in [0, 2] {
        let gone = runtime(threads);
        let guard = gone.block_on(take(&locks));
        drop(gone);
        drop(guard);
        clock.advance(MINUTE * 2);
        runtime(0).block_on(until_free(&store, "k"));
    }
}

#[test]
fn dropped_by_a_runtime_that_shuts_down_it_neither_blocks_nor_panics() {
    for threads in [0, 2] {
        let (started, running) = mpsc::channel();
        let runtime = runtime(threads);
        let task = runtime.spawn(async move {
            let _guard = take(&Locks::new(MemoryBackend::default())).await;
            started.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        runtime.block_on(async {
            while running.try_recv().is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        drop(runtime);
        drop(task);
    }
}

#[tokio::test]
async fn dropped_while_unwinding_it_is_released() {
    let store = MemoryBackend::default();
    let guard = take(&Locks::new(store.clone())).await;
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _guard = guard;
        panic!("on purpose");
    }));
    assert!(unwound.is_err());
    until_free(&store, "k").await;
}

#[tokio::test]
async fn failures_of_a_dropped_guards_release_reach_the_handler_and_a_panic_in_it_is_contained() {
    let faulty = FaultyBackend::default();
    let seen: Arc<Mutex<Vec<ReleaseFailure>>> = Arc::default();
    let locks = faulty.builder().on_release_error({
        let seen = Arc::clone(&seen);
        move |failure| {
            seen.lock().unwrap().push(failure.clone());
            panic!("a handler's own mistake");
        }
    });
    faulty.plan(
        Operation::Release,
        [Fault::Refuse(ErrorCode::ServiceUnavailable)],
    );
    let locks = locks.build();
    let guard = locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap();
    let id = *guard.lock_id();
    drop(guard);
    locks.drain(MINUTE).await.unwrap();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let [failure] = seen.as_slice() else {
        panic!("{seen:?}")
    };
    assert_eq!(failure.stage(), ReleaseStage::Drop);
    assert_eq!(failure.key_hash(), Some(hash_key("k")));
    assert_eq!(failure.lock_id_hash(), Some(hash_key(id.as_str())));
    let error = failure.error();
    assert_eq!(
        (error.code(), error.operation()),
        (ErrorCode::ServiceUnavailable, Some(Operation::Release))
    );
    assert_eq!(error.key().unwrap().as_str(), "k");
    until_free(&faulty.store, "k").await;
}

#[tokio::test(start_paused = true)]
async fn the_dispose_timeout_is_reported_and_the_release_goes_on() {
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::Release, [Fault::Hang]);
    let seen: Arc<Mutex<Vec<ErrorCode>>> = Arc::default();
    let locks = faulty
        .builder()
        .dispose_timeout(Duration::from_millis(200))
        .operation_timeout(MINUTE)
        .on_release_error({
            let seen = Arc::clone(&seen);
            move |failure| seen.lock().unwrap().push(failure.error().code())
        })
        .build();
    drop(locks.try_lock("k").ttl(MINUTE).await.unwrap().unwrap());
    until_free(&faulty.store, "k").await;
    assert_eq!(*seen.lock().unwrap(), [ErrorCode::NetworkTimeout]);
}

#[tokio::test]
async fn a_lock_that_is_gone_is_no_failure_of_a_dropped_guard() {
    let seen = Arc::new(AtomicU64::new(0));
    let locks = Locks::builder(MemoryBackend::default()).on_release_error({
        let seen = Arc::clone(&seen);
        move |_| {
            seen.fetch_add(1, Ordering::SeqCst);
        }
    });
    let locks = locks.build();
    let guard = take(&locks).await;
    assert!(locks.release(guard.lock_id()).await.unwrap().is_released());
    drop(guard);
    locks.drain(MINUTE).await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn outside_a_runtime_operations_fail_with_a_typed_error() {
    let locks = Locks::new(MemoryBackend::default());
    let thread = std::thread::spawn(move || {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let call = std::pin::pin!(locks.try_lock("k").ttl(MINUTE).into_future());
        match Future::poll(call, &mut context) {
            std::task::Poll::Ready(Err(error)) => error,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(thread.join().unwrap().code(), ErrorCode::Internal);
}

#[tokio::test(start_paused = true)]
async fn one_combinator_cancels_every_operation() {
    let faulty = FaultyBackend::default();
    for operation in [Operation::Acquire, Operation::Release, Operation::Extend] {
        faulty.plan(operation, [Fault::Hang]);
    }
    let (locks, token) = (faulty.locks(), CancellationToken::new());
    let id = LockId::generate().unwrap();
    let soon = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        token.cancel();
    };
    let (taken, released, extended, ()) = tokio::join!(
        locks.try_lock("k").ttl(MINUTE).cancel_on(&token),
        locks.release(id).cancel_on(&token),
        locks.extend(id, MINUTE).cancel_on(&token),
        soon,
    );
    for error in [
        taken.unwrap_err(),
        released.unwrap_err(),
        extended.unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::Aborted);
        assert!(error.outcome_unknown());
    }
    // A read has no outcome to be unsure of.
    faulty.plan(Operation::IsLocked, [Fault::Hang]);
    let token = CancellationToken::new();
    let (asked, ()) = tokio::join!(locks.is_locked("k").cancel_on(&token), async {
        token.cancel();
    },);
    let error = asked.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Aborted);
    assert!(!error.outcome_unknown());
    // Cancelled already: no call is made.
    let before = faulty.calls(Operation::IsLocked);
    let asked = locks.is_locked("k").cancel_on(&token).await;
    assert_eq!(asked.unwrap_err().code(), ErrorCode::Aborted);
    assert_eq!(faulty.calls(Operation::IsLocked), before);
}
