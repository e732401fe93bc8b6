//! Expiry and tolerance to the millisecond, on a clock that the test moves.

use std::time::Duration;

use syncguard_core::{
    AcquireResult, ExtendResult, FENCE_MAX, FailureReason, Grant, LockBackend as _, LockId,
    LockKey, Lookup, ReleaseResult, TIME_TOLERANCE_MS, Ttl,
};
use syncguard_memory::{ManualClock, MemoryStore};

struct Fixture {
    clock: ManualClock,
    store: MemoryStore,
    key: LockKey,
    ttl: Ttl,
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
        Self {
            clock,
            store,
            key: LockKey::new("k").unwrap(),
            ttl,
        }
    }

    async fn acquire(&self) -> Option<Grant> {
        let id = LockId::generate().unwrap();
        self.store
            .acquire(&self.key, &id, self.ttl)
            .await
            .unwrap()
            .granted()
    }

    /// Moves the clock to this many milliseconds after the grant's expiry.
    fn move_past_expiry(&self, grant: &Grant, millis: i64) {
        let by = grant.expires_at_ms + millis - self.clock.now_ms();
        self.clock
            .advance(Duration::from_millis(u64::try_from(by).unwrap()));
    }
}

const LAST_LIVE: i64 = TIME_TOLERANCE_MS - 1;
const FIRST_DEAD: i64 = TIME_TOLERANCE_MS;

#[tokio::test]
async fn a_lease_is_live_through_the_last_millisecond_of_its_tolerance() {
    for millis in [-1, 0, LAST_LIVE] {
        let fixture = Fixture::new();
        let grant = fixture.acquire().await.unwrap();
        fixture.move_past_expiry(&grant, millis);
        assert!(fixture.store.is_locked(&fixture.key).await.unwrap());
        assert_eq!(fixture.acquire().await, None);
        let info = fixture
            .store
            .lookup_raw(Lookup::Id(&grant.lock_id))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(info.expires_at_ms, grant.expires_at_ms);
        assert!(
            fixture
                .store
                .release(&grant.lock_id)
                .await
                .unwrap()
                .is_released()
        );
    }
}

#[tokio::test]
async fn a_lease_is_dead_from_then_on() {
    for millis in [FIRST_DEAD, FIRST_DEAD + 1, 1_000_000] {
        let fixture = Fixture::new();
        let grant = fixture.acquire().await.unwrap();
        fixture.move_past_expiry(&grant, millis);
        assert!(!fixture.store.is_locked(&fixture.key).await.unwrap());
        for by in [Lookup::Key(&fixture.key), Lookup::Id(&grant.lock_id)] {
            assert_eq!(fixture.store.lookup_raw(by).await.unwrap(), None);
        }
        let expired = ReleaseResult::NotHeld {
            reason: Some(FailureReason::Expired),
        };
        assert_eq!(
            fixture.store.release(&grant.lock_id).await.unwrap(),
            expired
        );
        let next = fixture.acquire().await.unwrap();
        assert!(next.fence > grant.fence);
    }
}

#[tokio::test]
async fn an_extend_within_the_tolerance_keeps_others_out_and_after_it_revives_nothing() {
    let fixture = Fixture::new();
    let grant = fixture.acquire().await.unwrap();
    fixture.move_past_expiry(&grant, LAST_LIVE);
    let answer = fixture
        .store
        .extend(&grant.lock_id, fixture.ttl)
        .await
        .unwrap();
    let expires_at_ms = fixture.clock.now_ms() + fixture.ttl.as_millis();
    assert_eq!(answer, ExtendResult::Extended { expires_at_ms });
    assert_eq!(fixture.acquire().await, None);

    fixture.move_past_expiry(
        &Grant {
            expires_at_ms,
            ..grant
        },
        FIRST_DEAD,
    );
    let expired = ExtendResult::NotHeld {
        reason: Some(FailureReason::Expired),
    };
    assert_eq!(
        fixture
            .store
            .extend(&grant.lock_id, fixture.ttl)
            .await
            .unwrap(),
        expired
    );
    assert!(!fixture.store.is_locked(&fixture.key).await.unwrap());
}

#[tokio::test]
async fn an_overrun_holder_leaves_its_successor_alone() {
    let fixture = Fixture::new();
    let overrun = fixture.acquire().await.unwrap();
    fixture.move_past_expiry(&overrun, FIRST_DEAD);
    let next = fixture.acquire().await.unwrap();
    let not_found = Some(FailureReason::NotFound);
    let released = fixture.store.release(&overrun.lock_id).await.unwrap();
    assert_eq!(released, ReleaseResult::NotHeld { reason: not_found });
    let extended = fixture
        .store
        .extend(&overrun.lock_id, fixture.ttl)
        .await
        .unwrap();
    assert_eq!(extended, ExtendResult::NotHeld { reason: not_found });
    let held = fixture
        .store
        .lookup_raw(Lookup::Key(&fixture.key))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (held.lock_id, held.expires_at_ms),
        (next.lock_id, next.expires_at_ms)
    );
}

#[tokio::test]
async fn an_exhausted_fence_counter_grants_nothing_and_does_not_move() {
    let fixture = Fixture::new();
    fixture.store.set_fence_counter(&fixture.key, FENCE_MAX - 1);
    let last = fixture.acquire().await.unwrap();
    assert_eq!(last.fence.get(), FENCE_MAX);
    assert!(
        fixture
            .store
            .release(&last.lock_id)
            .await
            .unwrap()
            .is_released()
    );
    for _ in 0..2 {
        let id = LockId::generate().unwrap();
        let error = fixture
            .store
            .acquire(&fixture.key, &id, fixture.ttl)
            .await
            .unwrap_err();
        assert_eq!(error.code(), syncguard_core::ErrorCode::Internal);
        assert!(!fixture.store.is_locked(&fixture.key).await.unwrap());
    }
}

#[tokio::test]
async fn the_longest_ttl_is_exact() {
    let fixture = Fixture::new();
    let id = LockId::generate().unwrap();
    let answer = fixture
        .store
        .acquire(&fixture.key, &id, Ttl::MAX)
        .await
        .unwrap();
    let AcquireResult::Acquired(grant) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(
        grant.expires_at_ms,
        fixture.clock.now_ms() + Ttl::MAX.as_millis()
    );
}
