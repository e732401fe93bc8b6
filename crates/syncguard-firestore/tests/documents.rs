//! The documents in the database, read and written past the store.

mod common;

use std::time::Duration;

use common::{Database, document_id, id, key, lock_fields, now_ms, take, ttl};
use serde_json::json;
use syncguard_core::{
    AcquireResult, ErrorCode, ExtendResult, FENCE_MAX, FailureReason, LockBackend as _, Lookup,
    ReleaseResult,
};
use syncguard_firestore::FirestoreOptions;

const MINUTE: i64 = 60_000;

#[tokio::test]
async fn they_are_those_of_the_typescript_original() {
    let database = Database::new();
    let store = database.store().await;
    let before = now_ms();
    let grant = take(&store, "payment:42").await;
    let after = now_ms();

    let documents = database.list("locks").await;
    assert_eq!(
        documents[0]["name"],
        format!("{}/locks/payment:42", database.root())
    );
    let acquired = documents[0]["fields"]["acquiredAtMs"].clone();
    let acquired_at_ms: i64 = acquired["integerValue"].as_str().unwrap().parse().unwrap();
    assert!((before..=after).contains(&acquired_at_ms));
    assert_eq!(grant.expires_at_ms, acquired_at_ms + 30_000);
    assert_eq!(
        database.only("locks").await,
        json!({
            "lockId": { "stringValue": grant.lock_id.as_str() },
            "expiresAtMs": { "integerValue": grant.expires_at_ms.to_string() },
            "acquiredAtMs": acquired,
            "key": { "stringValue": "payment:42" },
            "fence": { "stringValue": "000000000000001" },
        })
    );
    let counters = database.list("fence_counters").await;
    assert_eq!(
        counters[0]["name"],
        format!("{}/fence_counters/fence:payment:42", database.root())
    );
    let counter = json!({
        "fence": { "stringValue": "000000000000001" },
        "keyDebug": { "stringValue": "payment:42" },
    });
    assert_eq!(database.only("fence_counters").await, counter);

    let _ = store.release(&grant.lock_id).await.unwrap();
    assert!(database.list("locks").await.is_empty());
    assert_eq!(database.only("fence_counters").await, counter);
}

#[tokio::test]
async fn a_lock_of_another_implementation_is_a_lock() {
    let database = Database::new();
    let (store, theirs) = (database.store().await, id());
    let expires = now_ms() + MINUTE;
    database
        .put("locks", "k", lock_fields("k", &theirs, expires, 7))
        .await;
    database.set_fence_counter(&key("k"), 7).await;

    let refused = store.acquire(&key("k"), &id(), ttl(1_000)).await.unwrap();
    assert!(refused.is_locked());
    let info = store
        .lookup_raw(Lookup::Id(&theirs))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((info.expires_at_ms, info.fence.get()), (expires, 7));
    let extended = store.extend(&theirs, ttl(5_000)).await.unwrap();
    assert!(extended.expires_at_ms().unwrap() < expires);
    assert!(store.release(&theirs).await.unwrap().is_released());
    assert_eq!(take(&store, "k").await.fence.get(), 8);
}

#[tokio::test]
async fn every_ttl_is_stored_to_the_millisecond() {
    let database = Database::new();
    let store = database.store().await;
    for (n, millis) in [1, 999, 1_001, 30_000, 10 * 365 * 24 * 3_600_000]
        .into_iter()
        .enumerate()
    {
        let key = key(&format!("k{n}"));
        let grant = store
            .acquire(&key, &id(), ttl(millis))
            .await
            .unwrap()
            .granted()
            .unwrap();
        let documents = database.list("locks").await;
        let stored = |field: &str| -> i64 {
            let with_key = |document: &&serde_json::Value| {
                document["fields"]["key"]["stringValue"] == key.as_str()
            };
            let document = documents.iter().find(with_key).unwrap();
            let number = document["fields"][field]["integerValue"].as_str().unwrap();
            number.parse().unwrap()
        };
        assert_eq!(stored("expiresAtMs"), grant.expires_at_ms);
        let lasts = stored("expiresAtMs") - stored("acquiredAtMs");
        assert_eq!(lasts.unsigned_abs(), millis);
    }
}

/// `/` `.` `..` and `__x__` are no document ids.
#[tokio::test]
async fn forbidden_keys_go_by_their_hash_through_every_operation() {
    for text in ["/", "a/b", "a/b/c/d", ".", "..", "__x__", "____", "__\n/__"] {
        let database = Database::new();
        let store = database.store().await;
        let grant = take(&store, text).await;
        let hashed = document_id(text);
        assert_eq!(hashed.len(), 22);
        let root = database.root();
        let name = |documents: &[serde_json::Value]| documents[0]["name"].clone();
        assert_eq!(
            name(&database.list("locks").await),
            format!("{root}/locks/{hashed}")
        );
        assert_eq!(
            name(&database.list("fence_counters").await),
            format!("{root}/fence_counters/fence:{hashed}")
        );
        assert_eq!(database.only("locks").await["key"]["stringValue"], text);

        assert!(store.is_locked(&key(text)).await.unwrap());
        let by_key = store
            .lookup_raw(Lookup::Key(&key(text)))
            .await
            .unwrap()
            .unwrap();
        let by_id = store
            .lookup_raw(Lookup::Id(&grant.lock_id))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(by_key, by_id);
        assert_eq!(by_key.key.as_str(), text);
        assert!(
            store
                .extend(&grant.lock_id, ttl(60_000))
                .await
                .unwrap()
                .expires_at_ms()
                .is_some()
        );
        assert!(store.release(&grant.lock_id).await.unwrap().is_released());
        assert_eq!(take(&store, text).await.fence.get(), 2);
    }
}

#[tokio::test]
async fn an_extend_changes_the_expiry_alone() {
    let database = Database::new();
    let (store, holder) = (database.store().await, id());
    let mut fields = lock_fields("k", &holder, now_ms() + MINUTE, 3);
    fields["note"] = json!({ "stringValue": "someone's own" });
    database.put("locks", "k", fields.clone()).await;

    let extended = store.extend(&holder, ttl(90_000)).await.unwrap();
    let expires_at_ms = extended.expires_at_ms().unwrap();
    fields["expiresAtMs"] = json!({ "integerValue": expires_at_ms.to_string() });
    assert_eq!(database.only("locks").await, fields);
}

#[tokio::test]
async fn a_lock_removed_behind_the_holders_back_is_not_held() {
    let database = Database::new();
    let store = database.store().await;
    let grant = take(&store, "k").await;
    database.delete("locks", "k").await;

    let reason = Some(FailureReason::NotFound);
    let extended = store.extend(&grant.lock_id, ttl(1_000)).await.unwrap();
    assert_eq!(extended, ExtendResult::NotHeld { reason });
    let released = store.release(&grant.lock_id).await.unwrap();
    assert_eq!(released, ReleaseResult::NotHeld { reason });
    assert_eq!(
        store.lookup(Lookup::Id(&grant.lock_id)).await.unwrap(),
        None
    );
    assert!(database.list("locks").await.is_empty(), "nothing came back");
}

#[tokio::test]
async fn foreign_documents_are_refused_and_left_alone() {
    let good = lock_fields("k", &id(), 1_000, 1);
    let spoilt = [
        ("lockId", json!({ "stringValue": "short" })),
        ("lockId", json!({ "integerValue": "1" })),
        ("expiresAtMs", json!({ "stringValue": "1000" })),
        ("expiresAtMs", json!({ "doubleValue": 1000.5 })),
        ("acquiredAtMs", json!({ "nullValue": null })),
        ("key", json!({ "stringValue": "" })),
        ("fence", json!({ "stringValue": "1" })),
        ("fence", json!({ "integerValue": "1" })),
    ];
    for (field, value) in spoilt {
        let database = Database::new();
        let store = database.store().await;
        let mut fields = good.clone();
        fields[field] = value;
        database.put("locks", "k", fields.clone()).await;

        let error = store
            .acquire(&key("k"), &id(), ttl(1_000))
            .await
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{field}");
        assert!(error.message().contains(field) && !error.outcome_unknown());
        assert!(store.is_locked(&key("k")).await.is_err());
        assert!(store.lookup_raw(Lookup::Key(&key("k"))).await.is_err());
        assert_eq!(database.only("locks").await, fields);
        assert!(database.list("fence_counters").await.is_empty());
    }
}

#[tokio::test]
async fn a_counter_that_is_none_or_used_up_grants_nothing() {
    let database = Database::new();
    let store = database.store().await;
    let counter = |text: &str| json!({ "fence": { "stringValue": text } });

    let used_up = format!("{FENCE_MAX:015}");
    for (text, code) in [
        (used_up.as_str(), ErrorCode::Internal),
        ("999999999999999", ErrorCode::Internal),
        ("12", ErrorCode::InvalidArgument),
        ("-00000000000001", ErrorCode::InvalidArgument),
    ] {
        database
            .put("fence_counters", "fence:k", counter(text))
            .await;
        let error = store
            .acquire(&key("k"), &id(), ttl(1_000))
            .await
            .unwrap_err();
        assert_eq!(error.code(), code, "{text}");
        assert!(!error.outcome_unknown());
        assert!(database.list("locks").await.is_empty());
        assert_eq!(database.only("fence_counters").await, counter(text));
    }
    database.set_fence_counter(&key("k"), FENCE_MAX - 1).await;
    assert_eq!(take(&store, "k").await.fence.get(), FENCE_MAX);
}

#[tokio::test]
async fn collections_of_ones_own() {
    let database = Database::new();
    let options = || {
        FirestoreOptions::new()
            .with_lock_collection("app locks")
            .with_fence_collection("_app.fences")
    };
    let store = database.store_with(options()).await;
    let grant = take(&store, "k").await;
    assert_eq!(database.list("app%20locks").await.len(), 1);
    assert_eq!(database.list("_app.fences").await.len(), 1);
    assert!(database.list("locks").await.is_empty());
    let other = database.store_with(options()).await;
    assert!(other.release(&grant.lock_id).await.unwrap().is_released());
}

/// Decision record 014: two documents with one lock id.
mod duplicates {
    use super::*;
    use common::warnings::captured;

    async fn pair(first_ends: i64, second_ends: i64) -> (Database, syncguard_core::LockId) {
        let (database, twice) = (Database::new(), id());
        for (name, ends) in [("a", first_ends), ("b", second_ends)] {
            let fields = lock_fields(name, &twice, now_ms() + ends, 1);
            database.put("locks", name, fields).await;
        }
        (database, twice)
    }

    #[tokio::test]
    async fn warn_and_nothing_live_is_changed() {
        for ends in [(MINUTE, MINUTE), (MINUTE, -MINUTE), (-MINUTE, MINUTE)] {
            let (database, twice) = pair(ends.0, ends.1).await;
            let (store, before) = (database.store().await, database.list("locks").await);
            let (log, ()) = captured(async {
                let extended = store.extend(&twice, ttl(1_000)).await.unwrap();
                assert_eq!(extended.expires_at_ms(), None);
                assert!(!store.release(&twice).await.unwrap().is_released());
                assert_eq!(store.lookup(Lookup::Id(&twice)).await.unwrap(), None);
            })
            .await;
            assert_eq!(
                log.matches("several documents have one lock id").count(),
                3,
                "{log}"
            );
            assert!(!log.contains(twice.as_str()), "{log}");
            assert_eq!(database.list("locks").await, before);
        }
    }

    #[tokio::test]
    async fn keep_their_keys_locked_until_they_expire() {
        let (database, _) = pair(MINUTE, -MINUTE).await;
        let store = database.store().await;
        let live = store.acquire(&key("a"), &id(), ttl(1_000)).await.unwrap();
        assert_eq!(live, AcquireResult::Locked);
        assert_eq!(take(&store, "b").await.fence.get(), 1);
    }
}

mod clean_up {
    use super::*;

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
    async fn purges_what_is_long_expired_and_no_fence() {
        for server_time in [false, true] {
            let database = Database::new();
            let options = FirestoreOptions::new().with_server_time(server_time);
            let store = database.store_with(options).await;
            litter(&database).await;
            // Expired, and within the guard: another client may count it as live.
            let fresh = lock_fields("fresh", &id(), now_ms() + 20_000, 1);
            database.put("locks", "fresh", fresh).await;
            let purged = store.purge_expired().await.unwrap();
            let left = left(&database).await;
            // On a machine that stalls, the recent one is long expired too.
            assert!(purged == 2 || (purged == 3 && !left.contains(&"recent".to_owned())));
            assert!(left.contains(&"live".to_owned()) && left.contains(&"fresh".to_owned()));
            assert_eq!(database.list("fence_counters").await.len(), 3);
            assert_eq!(
                take(&store, "old").await.fence.get(),
                2,
                "the fence goes on"
            );
        }
    }

    #[tokio::test]
    async fn purges_more_than_a_page() {
        let database = Database::new();
        let store = database.store().await;
        let names: Vec<_> = (0..310).map(|n| format!("k{n}")).collect();
        for name in &names {
            let fields = lock_fields(name, &id(), now_ms() - MINUTE, 1);
            database.put("locks", name, fields).await;
        }
        assert_eq!(store.purge_expired().await.unwrap(), 310);
        assert_eq!(store.purge_expired().await.unwrap(), 0);
        assert!(left(&database).await.is_empty());
    }

    #[tokio::test]
    async fn by_is_locked_is_off_by_default_and_spares_what_it_must() {
        let database = Database::new();
        litter(&database).await;
        let plain = database.store().await;
        for name in ["old", "older", "live", "absent"] {
            assert_eq!(plain.is_locked(&key(name)).await.unwrap(), name == "live");
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(left(&database).await.len(), 4);

        let options = FirestoreOptions::new().with_cleanup_in_is_locked(true);
        let cleaning = database.store_with(options).await;
        assert!(cleaning.is_locked(&key("live")).await.unwrap());
        assert!(!cleaning.is_locked(&key("old")).await.unwrap());
        // The second within the interval is let be.
        assert!(!cleaning.is_locked(&key("older")).await.unwrap());
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
}
