//! Expiry and tolerance to the millisecond, on a clock that the test moves.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::mpsc;
use std::time::Duration;

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, CLEANUP_GUARD_MS, ExtendRequest, FENCE_MAX, FailureReason,
    Grant, IsLockedRequest, LockBackend as _, Lookup, LookupRequest, ReleaseRequest,
    TIME_TOLERANCE_MS,
};
use syncguard_core::{
    ErrorCode, ExtendResult, LockError, LockId, LockInfoDebug, LockKey, Locks, ReleaseResult, Ttl,
};
use syncguard_memory::{ManualClock, MemoryBackend};
use tokio::time::Instant;

struct Fixture {
    clock: ManualClock,
    backend: MemoryBackend,
    key: LockKey,
    ttl: Ttl,
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self {
            backend: MemoryBackend::with_clock(clock.clone()),
            clock,
            key: LockKey::new("k").unwrap(),
            ttl: Ttl::new(Duration::from_secs(30)).unwrap(),
        }
    }

    async fn try_acquire(&self, ttl: Ttl) -> Result<AcquireResult, LockError> {
        let id = LockId::generate().unwrap();
        let request = AcquireRequest::new(&self.key, &id, ttl, Instant::now());
        self.backend.acquire(request).await
    }

    async fn acquire(&self) -> Option<Grant> {
        self.try_acquire(self.ttl).await.unwrap().granted()
    }

    async fn release(&self, grant: &Grant) -> ReleaseResult {
        let request = ReleaseRequest::new(&grant.lock_id, Instant::now());
        self.backend.release(request).await.unwrap()
    }

    async fn extend(&self, grant: &Grant) -> ExtendResult {
        let request = ExtendRequest::new(&grant.lock_id, self.ttl, Instant::now());
        self.backend.extend(request).await.unwrap()
    }

    async fn is_locked(&self) -> bool {
        let request = IsLockedRequest::new(&self.key, Instant::now());
        self.backend.is_locked(request).await.unwrap()
    }

    async fn look_up(&self, by: Lookup<'_>) -> Option<LockInfoDebug> {
        let request = LookupRequest::new(by, Instant::now());
        self.backend.lookup_raw(request).await.unwrap()
    }

    /// Moves the clock to this many milliseconds after an expiry.
    fn move_past(&self, expires_at_ms: i64, millis: i64) {
        let by = expires_at_ms + millis - self.clock.now_ms();
        self.clock
            .advance(Duration::from_millis(u64::try_from(by).unwrap()));
    }
}

const LAST_LIVE: i64 = TIME_TOLERANCE_MS - 1;
const FIRST_DEAD: i64 = TIME_TOLERANCE_MS;

const EXPIRED: Option<FailureReason> = Some(FailureReason::Expired);
const NOT_FOUND: Option<FailureReason> = Some(FailureReason::NotFound);

#[tokio::test]
async fn a_lease_is_live_through_the_last_millisecond_of_its_tolerance() {
    for millis in [-1, 0, LAST_LIVE] {
        let fixture = Fixture::new();
        let grant = fixture.acquire().await.unwrap();
        fixture.move_past(grant.expires_at_ms, millis);
        assert!(fixture.is_locked().await);
        assert_eq!(fixture.acquire().await, None);
        let info = fixture.look_up(Lookup::Id(&grant.lock_id)).await.unwrap();
        assert_eq!(info.expires_at_ms, grant.expires_at_ms);
        assert!(fixture.release(&grant).await.is_released());
    }
}

#[tokio::test]
async fn a_lease_is_dead_from_then_on() {
    for millis in [FIRST_DEAD, FIRST_DEAD + 1, 1_000_000] {
        let fixture = Fixture::new();
        let grant = fixture.acquire().await.unwrap();
        fixture.move_past(grant.expires_at_ms, millis);
        assert!(!fixture.is_locked().await);
        for by in [Lookup::Key(&fixture.key), Lookup::Id(&grant.lock_id)] {
            assert_eq!(fixture.look_up(by).await, None);
        }
        let released = fixture.release(&grant).await;
        assert_eq!(released, ReleaseResult::not_held(EXPIRED));
        let next = fixture.acquire().await.unwrap();
        assert!(next.fence > grant.fence);
    }
}

#[tokio::test]
async fn an_extend_within_the_tolerance_keeps_others_out_and_after_it_revives_nothing() {
    let fixture = Fixture::new();
    let grant = fixture.acquire().await.unwrap();
    fixture.move_past(grant.expires_at_ms, LAST_LIVE);
    let expires_at_ms = fixture.clock.now_ms() + fixture.ttl.as_millis();
    let extended = fixture.extend(&grant).await;
    assert_eq!(extended, ExtendResult::extended(expires_at_ms));
    assert_eq!(fixture.acquire().await, None);

    fixture.move_past(expires_at_ms, FIRST_DEAD);
    let extended = fixture.extend(&grant).await;
    assert_eq!(extended, ExtendResult::not_held(EXPIRED));
    assert!(!fixture.is_locked().await);
}

#[tokio::test]
async fn an_overrun_holder_leaves_its_successor_alone() {
    let fixture = Fixture::new();
    let overrun = fixture.acquire().await.unwrap();
    fixture.move_past(overrun.expires_at_ms, FIRST_DEAD);
    let next = fixture.acquire().await.unwrap();
    let released = fixture.release(&overrun).await;
    assert_eq!(released, ReleaseResult::not_held(NOT_FOUND));
    let extended = fixture.extend(&overrun).await;
    assert_eq!(extended, ExtendResult::not_held(NOT_FOUND));
    let held = fixture.look_up(Lookup::Key(&fixture.key)).await.unwrap();
    assert_eq!(
        (held.lock_id, held.expires_at_ms),
        (next.lock_id, next.expires_at_ms)
    );
}

#[tokio::test]
async fn an_exhausted_fence_counter_grants_nothing_and_does_not_move() {
    let fixture = Fixture::new();
    fixture
        .backend
        .set_fence_counter(&fixture.key, FENCE_MAX - 1);
    let last = fixture.acquire().await.unwrap();
    assert_eq!(last.fence.get(), FENCE_MAX);
    assert!(fixture.release(&last).await.is_released());
    for _ in 0..2 {
        let error = fixture.try_acquire(fixture.ttl).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(!fixture.is_locked().await);
    }
}

#[tokio::test]
async fn the_longest_ttl_is_exact() {
    let fixture = Fixture::new();
    let grant = fixture.try_acquire(Ttl::MAX).await.unwrap().granted();
    let ends = fixture.clock.now_ms() + Ttl::MAX.as_millis();
    assert_eq!(grant.unwrap().expires_at_ms, ends);
}

#[tokio::test]
async fn expired_locks_do_not_pile_up() {
    let clock = ManualClock::new();
    let locks = Locks::new(MemoryBackend::with_clock(clock.clone()));
    let kept = locks.lock("kept").ttl(Duration::from_secs(86_400)).await;
    let kept = kept.unwrap();
    for key in 0..20_000 {
        let lock = locks
            .lock(format!("once:{key}"))
            .ttl(Duration::from_secs(1));
        let _ = lock.await.unwrap().detach();
        clock.advance(Duration::from_millis(40));
    }
    clock.advance(Duration::from_secs(2));
    let left = locks.purge_expired().await.unwrap();
    // Fifty of them are live at any time, by the tolerance, and 225 more are kept for ten seconds.
    assert!((1..400).contains(&left), "{left} expired locks were kept");
    assert_eq!(locks.purge_expired().await.unwrap(), 0);
    assert!(kept.release().await.unwrap().is_released());
}

#[tokio::test]
async fn a_purge_keeps_what_expired_up_to_two_seconds_ago() {
    let fixture = Fixture::new();
    let locks = Locks::new(fixture.backend.clone());
    let grant = fixture.acquire().await.unwrap();
    for (millis, purged) in [(CLEANUP_GUARD_MS, 0), (CLEANUP_GUARD_MS + 1, 1)] {
        fixture.move_past(grant.expires_at_ms, millis);
        assert_eq!(locks.purge_expired().await.unwrap(), purged);
    }
}

/// All of them expire at one instant: no further key of them is acquired, and nobody purges.
#[tokio::test]
async fn two_hundred_thousand_locks_that_expired_are_removed_by_other_calls() {
    let mut fixture = Fixture::new();
    let millisecond = Ttl::new(Duration::from_millis(1)).unwrap();
    for key in 0..200_000 {
        fixture.key = LockKey::new(&format!("once:{key}")).unwrap();
        let result = fixture.try_acquire(millisecond).await.unwrap();
        assert!(result.granted().is_some());
    }
    assert_eq!(fixture.backend.kept("once").locks, 200_000);
    fixture.clock.advance(Duration::from_secs(12));
    fixture.key = LockKey::new("other").unwrap();
    for _ in 0..10_000 {
        let grant = fixture.acquire().await.unwrap();
        assert!(fixture.release(&grant).await.is_released());
    }
    let kept = fixture.backend.kept("once");
    assert!(kept.locks < 100, "{kept:?}");
    assert_eq!(kept.ids, kept.locks);
}

#[tokio::test]
async fn locks_are_removed_by_their_latest_expiry() {
    let mut fixture = Fixture::new();
    let (short, long) = (Ttl::new(Duration::from_millis(1)).unwrap(), fixture.ttl);
    let (mut grants, count) = (Vec::new(), 500);
    for (name, first, then) in [("shortened", long, short), ("prolonged", short, long)] {
        for key in 0..count {
            fixture.key = LockKey::new(&format!("{name}:{key}")).unwrap();
            let result = fixture.try_acquire(first).await.unwrap();
            grants.push((result.granted().unwrap(), then));
        }
    }
    for (grant, then) in grants {
        fixture.ttl = then;
        assert!(fixture.extend(&grant).await.is_extended());
    }
    fixture.clock.advance(Duration::from_secs(12));
    fixture.key = LockKey::new("other").unwrap();
    for _ in 0..count {
        let grant = fixture.acquire().await.unwrap();
        let _ = fixture.release(&grant).await;
    }
    assert_eq!(fixture.backend.kept("shortened").locks, 0);
    assert_eq!(fixture.backend.kept("prolonged").locks, count);
}

/// Store, lease and wait follow the same clock where a test pauses that.
#[tokio::test(start_paused = true)]
async fn paused_time_moves_the_store_and_the_lease() {
    let locks = Locks::new(MemoryBackend::default());
    let minute = Duration::from_secs(60);
    let overrun = locks.lock("k").ttl(minute).await.unwrap();
    let waiting = locks.lock("k").timeout(minute * 2).max_retries(1_000);
    let next = waiting.await.unwrap();
    assert!(next.fence() > overrun.fence() && !overrun.is_valid());
    tokio::time::advance(minute * 60).await;
    next.lost().await;
    assert!(!locks.is_locked("k").await.unwrap());
}

/// Tokio's time stands still until every task waits for a timer: nothing here has to.
#[tokio::test(start_paused = true)]
async fn moving_the_clock_wakes_who_waits_for_the_end_of_a_lease() {
    let clock = ManualClock::new();
    let locks = Locks::builder(MemoryBackend::with_clock(clock.clone()))
        .monotonic_clock(clock.monotonic())
        .build();
    let ttl = Duration::from_secs(30);
    let guard = locks.lock("k").ttl(ttl).await.unwrap();
    let started = Instant::now();
    let (lost, ()) = tokio::join!(
        async {
            guard.lost().await;
            guard.remaining()
        },
        async {
            clock.advance(ttl / 2);
            tokio::task::yield_now().await;
            clock.advance(ttl / 2);
        }
    );
    assert_eq!(lost, Duration::ZERO);
    assert_eq!(started.elapsed(), Duration::ZERO);
}

/// A loop over one call of `Locks`.
type Loop = fn(Locks) -> Pin<Box<dyn Future<Output = Infallible> + Send>>;

/// One that keeps its thread would hang the runtime: each runs on a thread of its own.
#[test]
fn a_loop_of_calls_lets_other_tasks_run() {
    let loops: [(&str, Loop); 5] = [
        ("is_locked", |locks| {
            Box::pin(async move {
                loop {
                    assert!(locks.is_locked("held").await.unwrap());
                }
            })
        }),
        ("get_by_key", |locks| {
            Box::pin(async move {
                loop {
                    assert!(locks.get_by_key("held").await.unwrap().is_some());
                }
            })
        }),
        ("a refused acquire", |locks| {
            Box::pin(async move {
                loop {
                    assert!(locks.try_lock("held").await.unwrap().is_none());
                }
            })
        }),
        ("acquire and release", |locks| {
            Box::pin(async move {
                loop {
                    let guard = locks.try_lock("free").await.unwrap().unwrap();
                    assert!(guard.release().await.unwrap().is_released());
                }
            })
        }),
        ("extend", |locks| {
            Box::pin(async move {
                let guard = locks.try_lock("free").await.unwrap().unwrap();
                loop {
                    let extended = guard.extend(Duration::from_secs(60)).await.unwrap();
                    assert!(extended.is_extended());
                }
            })
        }),
    ];
    for (name, calls) in loops {
        let (ended, ends) = mpsc::channel();
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(async {
                let locks = Locks::new(MemoryBackend::default());
                let _held = locks.lock("held").await.unwrap();
                let calls = tokio::spawn(calls(locks.clone()));
                tokio::time::sleep(Duration::from_millis(20)).await;
                assert!(!calls.is_finished(), "a call failed");
                ended.send(()).unwrap();
            });
        });
        let end = ends.recv_timeout(Duration::from_secs(30));
        assert!(end.is_ok(), "a loop over {name}: {end:?}");
    }
}
