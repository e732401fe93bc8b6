//! Listings, in the order of keys.

use serde_json::json;
use syncguard_core::{LockInfoDebug, Locks};
use syncguard_testkit::pages;

use crate::common::proxy::Proxy;
use crate::common::{Database, id, lock_fields, now_ms, take};

const MINUTE: i64 = 60_000;

fn keys(pages: &[Vec<LockInfoDebug>]) -> Vec<&str> {
    let locks = pages.iter().flatten();
    locks.map(|lock| lock.key.as_str()).collect()
}

/// Firestore refuses some keys as ids: their documents are named by hashes.
#[tokio::test]
async fn keys_are_listed_by_their_prefix_whatever_their_documents_are_called() {
    let database = Database::new();
    let backend = database.backend().await;
    let names = ["a", "a/1", "a/2", "a0", "__a__", "\u{ffff}", "\u{1f512}"];
    for name in names {
        take(&backend, name).await;
    }
    let locks = Locks::new(backend);
    for page_size in [1, 2, 6, 7, 8] {
        for prefix in ["", "a", "a/", "a/1", "__", "\u{1f512}", "\u{ffff}", "b"] {
            let pages = pages(&locks, prefix, page_size).await.unwrap();
            let mut shown = keys(&pages);
            shown.sort_unstable();
            let mut expected: Vec<_> = names
                .into_iter()
                .filter(|key| key.starts_with(prefix))
                .collect();
            expected.sort_unstable();
            assert_eq!(shown, expected, "{prefix:?} by {page_size}");
        }
    }
}

#[tokio::test]
async fn a_page_is_one_query_that_reads_no_more_documents_than_its_size() {
    let database = Database::new();
    let (proxy, behind_proxy) = Proxy::before(&database).await;
    let locks = behind_proxy.locks().await;
    let names: Vec<_> = (0..8).map(|number| format!("k{number}")).collect();
    let expired = names.iter().map(|name| {
        let fields = lock_fields(name, &id(), now_ms() - MINUTE, 1);
        (name.as_str(), fields)
    });
    database.put_all("locks", expired).await;
    let live = lock_fields("k9", &id(), now_ms() + MINUTE, 1);
    database.put("locks", "k9", live).await;
    let pages = pages(&locks, "k", 4).await.unwrap();
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(proxy.requests(), "RunQuery 3");
}

#[tokio::test]
async fn foreign_documents_are_left_out_and_hide_no_lock() {
    let database = Database::new();
    let backend = database.backend().await;
    take(&backend, "k").await;
    let later = now_ms() + MINUTE;
    // Copies of a lock under other names, before and behind it: they have its key.
    for name in ["a", "z"] {
        database
            .put("locks", name, lock_fields("k", &id(), later, 1))
            .await;
    }
    let other = json!({ "key": { "integerValue": "1" } });
    database.put("locks", "number", other).await;
    let long = json!({ "key": { "stringValue": "k".repeat(2_000) } });
    database.put("locks", "long", long).await;
    database.put("locks", "bare", json!({})).await;
    let locks = Locks::new(backend);
    for page_size in [1, 2, 3, 100] {
        for prefix in ["", "k"] {
            let pages = pages(&locks, prefix, page_size).await.unwrap();
            assert_eq!(keys(&pages), ["k"], "{prefix:?} by {page_size}");
        }
    }
}
