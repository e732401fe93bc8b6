//! Clients whose clocks are off.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::backend::{LockBackend as _, Lookup, TimeAuthority};
use syncguard_core::observe::{ClockSkew, Observer};
use syncguard_core::{ErrorCode, Locks};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions, RECOMMENDED_SKEW_LIMIT};

use crate::common::requests::{acquire, extend, is_locked, lookup};
use crate::common::warnings::captured;
use crate::common::{Database, id, key, now_ms, released, take, ttl};

const HOUR: i64 = 3_600_000;
const OFFSETS: [i64; 4] = [5_000, -5_000, HOUR, -HOUR];

/// The skews that a handle's observer was notified of.
#[derive(Default)]
struct Skews(Mutex<Vec<i64>>);

impl Skews {
    fn seen(&self) -> Vec<i64> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Skews {
    fn clock_compared(&self, skew: &ClockSkew) {
        assert_eq!(skew.backend, "firestore");
        self.0.lock().unwrap().push(skew.skew_ms);
    }
}

fn observed(backend: &FirestoreBackend) -> (Locks, Arc<Skews>) {
    let skews = Arc::new(Skews::default());
    let locks = Locks::builder(backend.clone())
        .observe(skews.clone())
        .build();
    (locks, skews)
}

/// A machine whose clock is off.
fn off(by_ms: i64) -> FirestoreOptions {
    FirestoreOptions::new().wall_clock(move || now_ms() + by_ms)
}

#[tokio::test]
async fn with_server_time_no_offset_matters() {
    for offset in OFFSETS {
        let database = Database::new();
        let right = database
            .backend_with(FirestoreOptions::new().server_time(true))
            .await;
        let wrong = database.backend_with(off(offset).server_time(true)).await;
        let authority = wrong.capabilities().time_authority;
        assert_eq!(authority, TimeAuthority::Server);

        let before = now_ms();
        let key = key("k");
        let grant = wrong
            .acquire(acquire(&key, &id(), ttl(2_500)))
            .await
            .unwrap()
            .granted()
            .unwrap();
        // The emulator reads the clock of this machine.
        assert!((before + 2_500..now_ms() + 2_500).contains(&grant.expires_at_ms));
        let info = right
            .lookup_raw(lookup(Lookup::Key(&key)))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(info.expires_at_ms, grant.expires_at_ms);
        let (log, ()) = captured(async {
            while now_ms() < grant.expires_at_ms - 100 {
                for backend in [&right, &wrong] {
                    let refused = backend
                        .acquire(acquire(&key, &id(), ttl(2_500)))
                        .await
                        .unwrap();
                    // An answer that came late may have been given late.
                    assert!(refused.is_locked() || now_ms() > grant.expires_at_ms);
                }
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        })
        .await;
        assert_eq!(log, "", "the local clock does not matter to server time");

        let wait = grant.expires_at_ms + 1_100 - now_ms();
        tokio::time::sleep(Duration::from_millis(wait.max(0).unsigned_abs())).await;
        let next = wrong
            .acquire(acquire(&key, &id(), ttl(2_500)))
            .await
            .unwrap();
        assert!(next.granted().unwrap().fence > grant.fence);
    }
}

#[tokio::test]
async fn with_client_time_an_offset_is_logged_once_and_reported_at_every_read() {
    for offset in OFFSETS {
        let backend = Database::new().backend_with(off(offset)).await;
        let (locks, skews) = observed(&backend);
        assert!(skews.seen().is_empty());
        let (log, ()) = captured(async {
            let guard = locks.try_lock("k").await.unwrap().unwrap();
            assert!(guard.release().await.unwrap().is_released());
            assert!(!locks.is_locked("k").await.unwrap());
        })
        .await;
        let warnings = log.matches("local clock differs from Firestore's").count();
        assert_eq!(warnings, 1, "{log}");
        let skews = skews.seen();
        assert_eq!(skews.len(), 3);
        for skew in skews {
            assert_eq!(skew.signum(), offset.signum());
            // What is certain of it: without the time that the answer took.
            assert!(skew.abs() <= offset.abs() + 1 && skew.abs() > offset.abs() - 3_000);
        }
    }
}

#[tokio::test]
async fn a_right_clock_is_not_warned_of_however_slow_the_answers() {
    let (locks, skews) = observed(&Database::new().backend().await);
    let (log, ()) = captured(async {
        for n in 0..20 {
            let guard = locks.try_lock(format!("k{n}")).await.unwrap().unwrap();
            assert!(guard.release().await.unwrap().is_released());
        }
    })
    .await;
    assert_eq!(log, "");
    let skews = skews.seen();
    assert_eq!(skews.len(), 40);
    assert!(skews.iter().all(|skew| skew.abs() <= 1), "rounding alone");
}

#[tokio::test]
async fn every_handle_over_clones_of_a_backend_is_notified_until_it_is_dropped() {
    let backend = Database::new().backend().await;
    // It works without any handle.
    assert!(!backend.is_locked(is_locked(&key("k"))).await.unwrap());
    let (first, heard_by_first) = observed(&backend);
    let (second, heard_by_second) = observed(&backend);
    let heard = || (heard_by_first.seen().len(), heard_by_second.seen().len());
    assert!(!first.is_locked("k").await.unwrap());
    assert_eq!(heard(), (1, 1));
    assert!(!backend.is_locked(is_locked(&key("k"))).await.unwrap());
    assert_eq!(heard(), (2, 2));
    assert!(
        format!("{backend:?}").contains("reporters: 2"),
        "{backend:?}"
    );

    drop(first);
    assert!(!second.is_locked("k").await.unwrap());
    assert_eq!(heard(), (2, 3));
    assert!(
        format!("{backend:?}").contains("reporters: 1"),
        "{backend:?}"
    );

    drop(second);
    assert!(!backend.is_locked(is_locked(&key("k"))).await.unwrap());
    assert!(
        format!("{backend:?}").contains("reporters: 0"),
        "{backend:?}"
    );
    for _ in 0..100 {
        drop(observed(&backend));
    }
    assert!(
        format!("{backend:?}").contains("reporters: 1"),
        "{backend:?}"
    );
}

#[tokio::test]
async fn if_asked_a_clock_that_is_off_is_refused() {
    for offset in OFFSETS {
        let database = Database::new();
        let right = database.backend().await;
        let limited = |options: FirestoreOptions| options.skew_limit(RECOMMENDED_SKEW_LIMIT);
        let wrong = database.backend_with(limited(off(offset))).await;

        let error = wrong
            .acquire(acquire(&key("k"), &id(), ttl(1_000)))
            .await
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(error.message().contains("clock") && !error.outcome_unknown());
        assert!(database.list("locks").await.is_empty());
        assert!(database.list("fence_counters").await.is_empty());

        let day = ttl(24 * 3_600_000);
        let grant = right
            .acquire(acquire(&key("k"), &id(), day))
            .await
            .unwrap()
            .granted()
            .unwrap();
        let before = database.only("locks").await;
        let error = wrong.extend(extend(&grant.lock_id, day)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert_eq!(database.only("locks").await, before);
        let refused = wrong.acquire(acquire(&key("k"), &id(), day)).await.unwrap();
        assert!(refused.is_locked(), "that needs no clock");
        // A release does no harm by any clock.
        assert!(released(&wrong, &grant.lock_id).await);

        let server = limited(off(offset)).server_time(true);
        let _ = take(&database.backend_with(server).await, "k").await;
    }
}
