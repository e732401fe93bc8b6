//! A refusal says after how long the key would be granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use syncguard_core::backend::{AcquireResult, LockBackend as _, TIME_TOLERANCE_MS};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions};

use crate::common::requests::{acquire, extend};
use crate::common::{Database, id, key, lock_fields, now_ms, take, ttl};

const HOUR: i64 = 3_600_000;

/// Tries once: `None` if the key was granted.
async fn refused(backend: &FirestoreBackend, name: &str) -> Option<Duration> {
    let (key, id) = (key(name), id());
    let attempt = backend.acquire(acquire(&key, &id, ttl(30_000))).await;
    match attempt.unwrap() {
        AcquireResult::Acquired(_) => None,
        AcquireResult::Locked { free_in, .. } => Some(free_in.expect("it is known")),
    }
}

/// By a clock that the test moves: a millisecond earlier the key is refused, then it is granted.
#[tokio::test]
async fn the_key_is_granted_after_it_and_not_before() {
    let now = Arc::new(AtomicI64::new(now_ms()));
    let clock = Arc::clone(&now);
    let options = FirestoreOptions::new().wall_clock(move || clock.load(Ordering::SeqCst));
    let database = Database::new();
    let backend = database.backend_with(options).await;

    let _ = take(&backend, "acquired").await;
    let grant = take(&backend, "extended").await;
    let extended = extend(&grant.lock_id, ttl(60_000));
    let extended = backend.extend(extended).await.unwrap();
    assert!(extended.is_extended());
    let written = now.load(Ordering::SeqCst);
    // By another implementation: one has no time left but the tolerance, one has millennia.
    for (name, expires_at_ms) in [
        ("foreign", written + HOUR),
        ("expired", written),
        ("endless", i64::MAX),
    ] {
        let fields = lock_fields(name, &id(), expires_at_ms, 1);
        database.put("locks", name, fields).await;
    }
    let endless = refused(&backend, "endless").await.unwrap();
    assert!(endless > Duration::from_secs(365 * 24 * 3_600));
    for (name, ttl_ms) in [
        ("expired", 0),
        ("acquired", 30_000),
        ("extended", 60_000),
        ("foreign", HOUR),
    ] {
        let told = refused(&backend, name).await.expect(name);
        let since = now.load(Ordering::SeqCst) - written;
        let expected = u64::try_from(ttl_ms + TIME_TOLERANCE_MS - since).unwrap();
        assert_eq!(told, Duration::from_millis(expected), "{name}");
        let millis = i64::try_from(told.as_millis()).unwrap();
        now.fetch_add(millis - 1, Ordering::SeqCst);
        let last = refused(&backend, name).await;
        assert_eq!(last, Some(Duration::from_millis(1)), "{name}");
        now.fetch_add(1, Ordering::SeqCst);
        assert_eq!(refused(&backend, name).await, None, "{name}");
    }
}

/// By the server's clock: an acquire that starts when it is over is granted.
#[tokio::test]
async fn by_the_servers_time_too() {
    let options = || FirestoreOptions::new().server_time(true);
    let wrong = options().wall_clock(|| now_ms() + HOUR);
    let database = Database::new();
    let (holder, other) = (
        database.backend_with(options()).await,
        database.backend_with(wrong).await,
    );
    let grant = take(&holder, "k").await;
    let told = refused(&other, "k").await.unwrap();
    assert!(told <= Duration::from_millis(31_000) && told > Duration::from_secs(1));
    let extended = holder.extend(extend(&grant.lock_id, ttl(4_000))).await;
    assert!(extended.unwrap().is_extended());
    let told = refused(&other, "k").await.unwrap();
    assert!(told <= Duration::from_millis(5_000), "{told:?}");
    tokio::time::sleep(told).await;
    assert_eq!(refused(&other, "k").await, None);
}
