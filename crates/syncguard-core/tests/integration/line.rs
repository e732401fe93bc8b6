//! Callers of one process that wait for one key: their order, who asks the store, and what is left
//! behind.

use std::future::{IntoFuture as _, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use syncguard_core::observe::{Observer, Operation, WaitEnd, WaitStart};
use syncguard_core::{AutoExtend, CancellationToken, ErrorCode, LockGuard, LockId, Locks};
use syncguard_memory::MemoryBackend;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{Fault, FaultyBackend};

const MINUTE: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

/// Locks of this process and of another one, on one store.
fn two_processes() -> (Locks, Locks) {
    let store = MemoryBackend::default();
    (Locks::new(store.clone()), Locks::new(store))
}

async fn held(locks: &Locks, key: &str) -> LockGuard {
    locks.try_lock(key).ttl(MINUTE).await.unwrap().unwrap()
}

/// Begins to wait in a task of its own, and returns once the task waits.
async fn waiter(locks: &Locks, limit: Duration) -> tokio::task::JoinHandle<Option<LockGuard>> {
    let request = locks.lock("k").ttl(MINUTE).timeout(limit);
    let task = tokio::spawn(async move { request.await.ok() });
    sleep(MS).await;
    task
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_callers_are_served_in_order_with_three_requests_each_at_most() {
    const CALLERS: usize = 10_000;
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    let holder = held(&locks, "k").await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (locks, served) = (locks.clone(), Arc::clone(&served));
        callers.spawn(async move {
            let section = async |_| {
                served.lock().unwrap().push(caller);
                sleep(MS).await;
            };
            locks.lock("k").timeout(10 * MINUTE).run(section).await
        });
    }
    sleep(MINUTE).await;
    let before = faulty.calls(Operation::Acquire);
    assert!(before < 100, "the line asks once in a while: {before}");
    let started = Instant::now();
    let _ = holder.release().await.unwrap();
    while let Some(receipt) = callers.join_next().await {
        assert!(receipt.unwrap().unwrap().release_error().is_none());
    }
    assert_eq!(*served.lock().unwrap(), (0..CALLERS).collect::<Vec<_>>());
    let requests = faulty.calls(Operation::Acquire) - before + faulty.calls(Operation::Release);
    assert!(requests <= CALLERS * 3, "{requests}");
    // Nobody waited for a poll: each section takes a tick or two of the clock.
    assert!(started.elapsed() < 3 * MS * 10_000);
}

#[tokio::test]
async fn waiting_adds_less_than_two_kibibytes_to_a_task() {
    let locks = Locks::new(MemoryBackend::default());
    let request = locks.lock("k");
    let info = allocation_counter::measure(|| drop(request.into_future()));
    assert!(info.bytes_total < 2_048, "{} bytes", info.bytes_total);
}

#[test]
fn a_lock_that_nobody_waits_for_allocates_no_line() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let locks = Locks::new(MemoryBackend::default());
    let pair = || {
        runtime.block_on(async {
            let guard = locks.try_lock("k").await.unwrap().unwrap();
            let _ = guard.release().await.unwrap();
        });
    };
    pair();
    let info = allocation_counter::measure(pair);
    // The key, the two requests, the store's two answers, and the lease.
    assert!(info.count_total <= 6, "{info:?}");
}

#[tokio::test(start_paused = true)]
async fn the_next_caller_is_served_at_once_however_the_guard_ends() {
    async fn by_release(_: &Locks, guard: LockGuard) {
        let _ = guard.release().await.unwrap();
    }
    async fn by_drop(_: &Locks, guard: LockGuard) {
        drop(guard);
    }
    async fn by_id(locks: &Locks, guard: LockGuard) {
        let id: LockId = *guard.lock_id();
        let _ = locks.release(id).await.unwrap();
        // The guard is kept, and is of no use.
        sleep(MINUTE).await;
        drop(guard);
    }
    async fn by_id_once_detached(locks: &Locks, guard: LockGuard) {
        let lease = guard.detach();
        let _ = locks.release(*lease.lock_id()).await.unwrap();
    }
    macro_rules! each {
        ($($give_up:ident),+) => {$(
            let locks = Locks::builder(MemoryBackend::default()).wake_ups(false).build();
            let guard = held(&locks, "k").await;
            let (first, second) = (waiter(&locks, MINUTE).await, waiter(&locks, MINUTE).await);
            let now = Instant::now();
            let giving_up = tokio::spawn({
                let locks = locks.clone();
                async move { $give_up(&locks, guard).await }
            });
            let guard = first.await.unwrap().expect(stringify!($give_up));
            let waited = now.elapsed();
            assert!(waited <= MS, "{}: {waited:?}", stringify!($give_up));
            drop(guard);
            assert!(second.await.unwrap().is_some());
            giving_up.await.unwrap();
        )+};
    }
    // Without wake-ups from the store, a lock that was detached is found by asking again.
    each!(by_release, by_drop, by_id);
    let locks = Locks::new(MemoryBackend::default());
    let guard = held(&locks, "k").await;
    let waiting = waiter(&locks, MINUTE).await;
    by_id_once_detached(&locks, guard).await;
    assert!(waiting.await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_kept_beyond_its_lease_holds_nobody_up() {
    let locks = Locks::new(MemoryBackend::default());
    let ttl = Duration::from_secs(10);
    let kept = locks.try_lock("k").ttl(ttl).await.unwrap().unwrap();
    let started = Instant::now();
    let next = locks.lock("k").timeout(MINUTE).await.unwrap();
    // The memory store honours the tolerance of one second.
    assert!(
        started.elapsed() <= ttl + Duration::from_millis(1_010),
        "{:?}",
        started.elapsed()
    );
    drop(kept);
    sleep(MS).await;
    assert!(next.is_valid() && locks.owns(*next.lock_id()).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn the_head_of_the_line_leaves_at_any_point_and_the_next_moves_up() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    for polls in 0..40 {
        let holder = held(&locks, "k").await;
        if polls % 2 == 0 {
            faulty.plan(Operation::Acquire, [Fault::DelayReply(MS)]);
        }
        let mut head = Box::pin(locks.lock("k").timeout(MINUTE).into_future());
        let mut polled = 0;
        let some_polls = poll_fn(|context| {
            polled += 1;
            let ready = head.as_mut().poll(context).is_ready();
            if ready || polled > polls {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        drop(timeout(Duration::from_secs(3), some_polls).await);
        let next = waiter(&locks, MINUTE).await;
        drop(head);
        drop(holder);
        let guard = timeout(Duration::from_secs(5), next).await;
        let guard = guard
            .expect("it waits for a caller that is gone")
            .unwrap()
            .unwrap();
        let _ = guard.release().await.unwrap();
        locks.drain(MINUTE).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_in_the_line_heeds_its_token_and_its_timeout() {
    let (_, locks) = two_processes();
    let holder = held(&locks, "k").await;
    let head = waiter(&locks, MINUTE).await;
    let token = CancellationToken::new();
    let started = Instant::now();
    let second = Duration::from_secs(1);
    let error = locks.lock("k").timeout(second).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert_eq!(error.wait().unwrap().attempts, 0);
    assert!(started.elapsed() >= second);
    let cancelled = locks
        .lock("k")
        .timeout(MINUTE)
        .cancel_on(&token)
        .into_future();
    let cancel = async {
        sleep(second).await;
        token.cancel();
    };
    let (result, ()) = tokio::join!(cancelled, cancel);
    let error = result.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Aborted);
    assert!(!error.outcome_unknown());
    drop(holder);
    assert!(head.await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_timeout_says_that_this_process_holds_the_key() {
    let (locks, elsewhere) = two_processes();
    let guard = held(&locks, "k").await;
    let error = locks.lock("k").await.unwrap_err();
    assert!(
        error.to_string().contains("a guard of this process"),
        "{error}"
    );
    let _ = guard.release().await.unwrap();
    let _guard = held(&elsewhere, "k").await;
    let error = locks.lock("k").await.unwrap_err();
    assert!(error.to_string().contains("the key stayed held"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_comes_free_late_is_acquired_within_the_longest_delay() {
    for freed_after in [3, 8, 14, 20].map(Duration::from_secs) {
        let store = MemoryBackend::default();
        let elsewhere = Locks::new(store.clone());
        let locks = Locks::builder(store).wake_ups(false).build();
        let holder = held(&elsewhere, "k").await;
        let waiting = waiter(&locks, Duration::from_secs(30)).await;
        sleep(freed_after).await;
        let _ = holder.release().await.unwrap();
        let freed = Instant::now();
        assert!(waiting.await.unwrap().is_some());
        assert!(
            freed.elapsed() <= Duration::from_millis(1_002),
            "{:?}",
            freed.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_elsewhere_wakes_the_head_of_the_line_at_once() {
    let (locks, elsewhere) = two_processes();
    for _ in 0..100 {
        let holder = held(&elsewhere, "k").await;
        let (first, second) = (waiter(&locks, MINUTE).await, waiter(&locks, MINUTE).await);
        sleep(Duration::from_secs(7)).await;
        let freed = Instant::now();
        let _ = holder.release().await.unwrap();
        drop(first.await.unwrap().unwrap());
        drop(second.await.unwrap().unwrap());
        assert!(freed.elapsed() <= MS, "{:?}", freed.elapsed());
        locks.drain(MINUTE).await.unwrap();
    }
}

/// The other process asks 1 ms after its wake-up, when a caller of this one has the key again.
#[tokio::test(start_paused = true)]
async fn a_process_that_always_asks_later_gets_its_turn() {
    let faulty = FaultyBackend::default();
    let (locks, elsewhere) = (Locks::new(faulty.store.clone()), faulty.locks());
    faulty.plan(
        Operation::Acquire,
        std::iter::repeat_n(Fault::DelayRequest(MS), 10_000),
    );
    let mut busy = JoinSet::new();
    for _ in 0..3 {
        let locks = locks.clone();
        busy.spawn(async move {
            loop {
                let section = async |_| sleep(2 * MS).await;
                let _ = locks.lock("k").timeout(MINUTE).run(section).await.unwrap();
            }
        });
    }
    sleep(Duration::from_secs(3)).await;
    let started = Instant::now();
    for _ in 0..10 {
        let guard = elsewhere.lock("k").timeout(MINUTE).await.unwrap();
        assert!(guard.release().await.unwrap().is_released());
    }
    assert!(started.elapsed() < 10 * Duration::from_millis(300));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_never_is_in_place_holds_nobody_up() {
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::Lock, std::iter::repeat_n(Fault::Hang, 1_000));
    let (locks, elsewhere) = (faulty.locks(), Locks::new(faulty.store.clone()));
    let holder = held(&elsewhere, "k").await;
    let (first, second) = (waiter(&locks, MINUTE).await, waiter(&locks, MINUTE).await);
    sleep(Duration::from_secs(20)).await;
    let freed = Instant::now();
    let _ = holder.release().await.unwrap();
    let guard = first.await.unwrap().unwrap();
    assert!(
        freed.elapsed() <= Duration::from_millis(1_002),
        "{:?}",
        freed.elapsed()
    );
    let freed = Instant::now();
    let _ = guard.release().await.unwrap();
    drop(second.await.unwrap().unwrap());
    assert!(freed.elapsed() <= MS, "{:?}", freed.elapsed());
}

/// The caller's own polls are too far apart to find the release.
#[tokio::test(start_paused = true)]
async fn a_watch_that_failed_is_placed_a_second_later() {
    let faulty = FaultyBackend::default();
    faulty.plan(
        Operation::Lock,
        [Fault::Refuse(ErrorCode::ServiceUnavailable); 2],
    );
    let (locks, elsewhere) = (faulty.locks(), Locks::new(faulty.store.clone()));
    let holder = held(&elsewhere, "k").await;
    let request = locks.lock("k").timeout(MINUTE).retry_delay(MINUTE);
    let waiting = tokio::spawn(async move { request.await.ok() });
    sleep(Duration::from_secs(5)).await;
    assert_eq!(faulty.calls(Operation::Lock), 3);
    let freed = Instant::now();
    let _ = holder.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    assert!(freed.elapsed() <= MS, "{:?}", freed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_delays_of_one_caller_are_not_those_of_the_callers_behind_it() {
    let store = MemoryBackend::default();
    let elsewhere = Locks::new(store.clone());
    let locks = Locks::builder(store).wake_ups(false).build();
    let holder = held(&elsewhere, "k").await;
    let slow = locks.lock("k").timeout(MINUTE).retry_delay(MINUTE / 2);
    let slow = tokio::spawn(async move { slow.await.ok() });
    sleep(MS).await;
    let next = waiter(&locks, Duration::from_secs(5)).await;
    sleep(Duration::from_secs(1)).await;
    let _ = holder.release().await.unwrap();
    let guard = slow.await.unwrap().unwrap();
    let _ = guard.release().await.unwrap();
    assert!(next.await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_own_release_in_flight_is_no_contention_from_outside() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    let holder = held(&locks, "k").await;
    faulty.plan(Operation::Release, [Fault::DelayRequest(5 * MS)]);
    let releasing = tokio::spawn(async move { holder.release().await });
    sleep(MS).await;
    // Refused by the lock that is being released, and then handed over.
    let guard = locks.lock("k").await.unwrap();
    assert!(releasing.await.unwrap().unwrap().is_released());
    drop(guard);
    locks.drain(MINUTE).await.unwrap();
    let started = Instant::now();
    for _ in 0..100 {
        let _ = locks.lock("k").await.unwrap().release().await.unwrap();
    }
    assert_eq!(started.elapsed(), Duration::ZERO, "it never stood back");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_elsewhere_is_followed_at_once_and_without_polls() {
    let (locks, elsewhere) = two_processes();
    let lease = held(&elsewhere, "k").await.detach();
    let waits = Arc::new(Waits::default());
    let locks = locks.observed_by(waits.clone());
    let started = Instant::now();
    let longest = Duration::from_secs(3_600);
    let request = locks.lock("k").timeout(longest).retry_delay(longest);
    let _guard = request.await.unwrap();
    assert!(!lease.is_valid());
    assert!(started.elapsed() <= MINUTE + Duration::from_millis(1_010));
    assert_eq!(waits.polls.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_extends_is_not_asked_for_each_extend() {
    let faulty = FaultyBackend::default();
    let (locks, elsewhere) = (faulty.locks(), Locks::new(faulty.store.clone()));
    let options = elsewhere.try_lock("k").ttl(Duration::from_millis(300));
    let holder = options
        .auto_extend(AutoExtend::new())
        .await
        .unwrap()
        .unwrap();
    let waiting = waiter(&locks, MINUTE).await;
    sleep(Duration::from_secs(40)).await;
    // Once in half a second at the most, and those of the back-off that leads there; it extends 400 times.
    let asked = faulty.calls(Operation::Acquire);
    assert!(asked <= 100, "{asked}");
    let _ = holder.release().await.unwrap();
    assert!(waiting.await.unwrap().is_some());
}

#[derive(Default)]
struct Waits {
    ahead: Mutex<Vec<usize>>,
    polls: AtomicUsize,
    wake_ups: AtomicUsize,
    hand_overs: AtomicUsize,
}

impl Observer for Waits {
    fn wait_started(&self, wait: &WaitStart<'_>) {
        self.ahead.lock().unwrap().push(wait.ahead);
    }

    fn wait_ended(&self, wait: &WaitEnd<'_>) {
        let add = |sum: &AtomicUsize, count: u32| {
            sum.fetch_add(count.try_into().unwrap(), Ordering::SeqCst);
        };
        add(&self.polls, wait.summary.polls);
        add(&self.wake_ups, wait.summary.wake_ups);
        add(&self.hand_overs, wait.summary.hand_overs);
    }
}

#[tokio::test(start_paused = true)]
async fn observers_hear_of_the_line_of_hand_overs_and_of_wake_ups() {
    let (locks, elsewhere) = two_processes();
    let waits = Arc::new(Waits::default());
    let locks = locks.observed_by(waits.clone());
    let holder = held(&elsewhere, "k").await;
    let (first, second) = (waiter(&locks, MINUTE).await, waiter(&locks, MINUTE).await);
    drop(holder);
    sleep(MS).await;
    drop(first.await.unwrap());
    drop(second.await.unwrap());
    assert_eq!(*waits.ahead.lock().unwrap(), [0, 1]);
    assert_eq!(waits.polls.load(Ordering::SeqCst), 0);
    assert_eq!(waits.wake_ups.load(Ordering::SeqCst), 1);
    assert_eq!(waits.hand_overs.load(Ordering::SeqCst), 1);
}
