//! Clients whose clocks are off.

mod common;

use std::time::Duration;

use common::warnings::captured;
use common::{Database, id, key, now_ms, take, ttl};
use syncguard_core::{AcquireResult, ErrorCode, LockBackend as _, Lookup, TimeAuthority};
use syncguard_firestore::{FirestoreOptions, RECOMMENDED_SKEW_LIMIT};

const HOUR: i64 = 3_600_000;
const OFFSETS: [i64; 4] = [5_000, -5_000, HOUR, -HOUR];

/// A machine whose clock is off.
fn off(by_ms: i64) -> FirestoreOptions {
    FirestoreOptions::new().with_wall_clock(move || now_ms() + by_ms)
}

#[tokio::test]
async fn with_server_time_no_offset_matters() {
    for offset in OFFSETS {
        let database = Database::new();
        let right = database
            .store_with(FirestoreOptions::new().with_server_time(true))
            .await;
        let wrong = database
            .store_with(off(offset).with_server_time(true))
            .await;
        let authority = wrong.capabilities().time_authority;
        assert_eq!(authority, TimeAuthority::Server);

        let before = now_ms();
        let key = key("k");
        let grant = wrong
            .acquire(&key, &id(), ttl(2_500))
            .await
            .unwrap()
            .granted()
            .unwrap();
        // The emulator reads the clock of this machine.
        assert!((before + 2_500..now_ms() + 2_500).contains(&grant.expires_at_ms));
        let info = right.lookup(Lookup::Key(&key)).await.unwrap().unwrap();
        assert_eq!(info.expires_at_ms, grant.expires_at_ms);
        let (log, ()) = captured(async {
            while now_ms() < grant.expires_at_ms - 100 {
                for store in [&right, &wrong] {
                    let refused = store.acquire(&key, &id(), ttl(2_500)).await.unwrap();
                    // An answer that came late may have been given late.
                    assert!(refused.is_locked() || now_ms() > grant.expires_at_ms);
                }
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        })
        .await;
        assert_eq!(log, "", "to the server's time the clock is nothing");

        let wait = grant.expires_at_ms + 1_100 - now_ms();
        tokio::time::sleep(Duration::from_millis(wait.max(0).unsigned_abs())).await;
        let next = wrong.acquire(&key, &id(), ttl(2_500)).await.unwrap();
        assert!(next.granted().unwrap().fence > grant.fence);
    }
}

#[tokio::test]
async fn with_client_time_an_offset_is_warned_of_once() {
    for offset in OFFSETS {
        let store = Database::new().store_with(off(offset)).await;
        assert_eq!(store.clock_skew_ms(), None);
        let (log, ()) = captured(async {
            let grant = take(&store, "k").await;
            assert!(store.release(&grant.lock_id).await.unwrap().is_released());
            assert!(!store.is_locked(&key("k")).await.unwrap());
        })
        .await;
        assert_eq!(log.matches("are apart").count(), 1, "{log}");
        let skew = store.clock_skew_ms().unwrap();
        assert_eq!(skew.signum(), offset.signum());
        // What is certain of it: without the time that the answer took.
        assert!(skew.abs() <= offset.abs() + 1 && skew.abs() > offset.abs() - 3_000);
    }
}

#[tokio::test]
async fn a_right_clock_is_not_warned_of_however_slow_the_answers() {
    let store = Database::new().store().await;
    let (log, ()) = captured(async {
        for n in 0..20 {
            let grant = take(&store, &format!("k{n}")).await;
            assert!(store.release(&grant.lock_id).await.unwrap().is_released());
        }
    })
    .await;
    assert_eq!(log, "");
    assert!(store.clock_skew_ms().unwrap().abs() <= 1, "rounding alone");
}

#[tokio::test]
async fn if_asked_a_clock_that_is_off_is_refused() {
    for offset in OFFSETS {
        let database = Database::new();
        let right = database.store().await;
        let limited = |options: FirestoreOptions| options.with_skew_limit(RECOMMENDED_SKEW_LIMIT);
        let wrong = database.store_with(limited(off(offset))).await;

        let error = wrong
            .acquire(&key("k"), &id(), ttl(1_000))
            .await
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(error.message().contains("clock") && !error.outcome_unknown());
        assert!(database.list("locks").await.is_empty());
        assert!(database.list("fence_counters").await.is_empty());

        let day = ttl(24 * 3_600_000);
        let grant = right
            .acquire(&key("k"), &id(), day)
            .await
            .unwrap()
            .granted()
            .unwrap();
        let before = database.only("locks").await;
        let error = wrong.extend(&grant.lock_id, day).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert_eq!(database.only("locks").await, before);
        let refused = wrong.acquire(&key("k"), &id(), day).await.unwrap();
        assert_eq!(refused, AcquireResult::Locked, "that needs no clock");
        // Giving back does no harm by any clock.
        assert!(wrong.release(&grant.lock_id).await.unwrap().is_released());

        let server = limited(off(offset)).with_server_time(true);
        let _ = take(&database.store_with(server).await, "k").await;
    }
}
