//! Deleting expired locks.

use std::time::Duration;

use syncguard_core::backend::{LockBackend as _, PurgeRequest};
use syncguard_core::{ErrorCode, Locks};
use syncguard_firestore::FirestoreOptions;
use tokio::time::Instant;

use crate::common::proxy::{Fault, Proxy};
use crate::common::requests::{is_locked, purge};
use crate::common::{Database, id, key, lock_fields, now_ms, take};

const MINUTE: i64 = 60_000;

/// Locks of every age, with fence counters.
async fn litter(database: &Database) {
    for (name, ended) in [("old", MINUTE), ("older", 10 * MINUTE), ("recent", 1_200)] {
        let fields = lock_fields(name, &id(), now_ms() - ended, 1);
        database.put("locks", name, fields).await;
        database.set_fence_counter(&key(name), 1).await;
    }
    let live = lock_fields("live", &id(), now_ms() + MINUTE, 1);
    database.put("locks", "live", live).await;
}

async fn left(database: &Database) -> Vec<String> {
    let documents = database.list("locks").await;
    let key = |document: &serde_json::Value| {
        document["fields"]["key"]["stringValue"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    documents.iter().map(key).collect()
}

#[tokio::test]
async fn a_purge_deletes_what_expired_long_ago_and_no_fence_counter() {
    for server_time in [false, true] {
        let database = Database::new();
        let options = FirestoreOptions::new().server_time(server_time);
        let backend = database.backend_with(options).await;
        litter(&database).await;
        let purged = backend.purge_expired(purge(100)).await.unwrap();
        let left = left(&database).await;
        // `recent` is within the guard, unless the machine stalls: another client may count it as live.
        assert!(purged == 2 || (purged == 3 && !left.contains(&"recent".to_owned())));
        assert!(left.contains(&"live".to_owned()));
        assert_eq!(database.list("fence_counters").await.len(), 3);
        let next = take(&backend, "old").await;
        assert_eq!(next.fence.get(), 2, "the fence counter is still there");
    }
}

/// Locks that expired a minute ago.
async fn expired(database: &Database, count: usize) {
    let names: Vec<_> = (0..count).map(|n| format!("k{n}")).collect();
    let documents = names.iter().map(|name| {
        let fields = lock_fields(name, &id(), now_ms() - MINUTE, 1);
        (name.as_str(), fields)
    });
    database.put_all("locks", documents).await;
}

#[tokio::test]
async fn a_purge_deletes_at_most_its_limit() {
    let database = Database::new();
    let (proxy, behind_proxy) = Proxy::before(&database).await;
    let backend = behind_proxy.backend().await;
    expired(&database, 5).await;
    for (limit, purged) in [(0, 0), (2, 2), (3, 3), (3, 0)] {
        let answer = backend.purge_expired(purge(limit)).await.unwrap();
        assert_eq!(answer, purged, "of at most {limit}");
    }
    assert!(left(&database).await.is_empty());
    // None for a limit of zero, and no second page where the first one filled the limit.
    assert_eq!(proxy.requests(), "BatchWrite 2, RunQuery 3");
}

#[tokio::test]
async fn a_purge_takes_several_pages_and_the_handle_takes_several_purges() {
    let database = Database::new();
    let backend = database.backend().await;
    expired(&database, 400).await;
    assert_eq!(backend.purge_expired(purge(310)).await.unwrap(), 310);
    assert_eq!(left(&database).await.len(), 90);

    expired(&database, 500).await;
    let long_ago = lock_fields("older", &id(), now_ms() - 10 * MINUTE, 1);
    database.put("locks", "older", long_ago).await;
    let locks = Locks::new(backend);
    assert_eq!(locks.purge_expired().await.unwrap(), 501);
    assert_eq!(locks.purge_expired().await.unwrap(), 0);
    assert!(left(&database).await.is_empty());
}

#[tokio::test]
async fn a_purge_stops_at_its_deadline() {
    let database = Database::new();
    let (proxy, behind_proxy) = Proxy::before(&database).await;
    let backend = behind_proxy.backend().await;
    expired(&database, 3).await;
    proxy.fail_next("RunQuery", Fault::AnsweredLate(Duration::from_secs(3_600)));
    let deadline = Instant::now() + Duration::from_secs(2);
    let stopped = backend.purge_expired(PurgeRequest::new(10, deadline)).await;
    assert_eq!(stopped.unwrap_err().code(), ErrorCode::NetworkTimeout);
    assert_eq!(proxy.requests(), "RunQuery 1");
    assert_eq!(left(&database).await.len(), 3);
}

#[tokio::test]
async fn clean_up_in_is_locked_is_off_by_default_and_spares_what_it_must() {
    let database = Database::new();
    litter(&database).await;
    let plain = database.backend().await;
    for name in ["old", "older", "live", "absent"] {
        assert_eq!(
            plain.is_locked(is_locked(&key(name))).await.unwrap(),
            name == "live"
        );
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(left(&database).await.len(), 4);

    let options = FirestoreOptions::new().cleanup_in_is_locked(true);
    let cleaning = database.backend_with(options).await;
    assert!(cleaning.is_locked(is_locked(&key("live"))).await.unwrap());
    assert!(!cleaning.is_locked(is_locked(&key("old"))).await.unwrap());
    // No second deletion starts within the interval.
    assert!(!cleaning.is_locked(is_locked(&key("older"))).await.unwrap());
    for _ in 0..100 {
        if left(&database).await.len() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut left = left(&database).await;
    left.sort();
    assert_eq!(left, ["live", "older", "recent"]);
    assert_eq!(database.list("fence_counters").await.len(), 3);
}
