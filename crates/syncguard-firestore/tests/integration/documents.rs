//! The documents in the database, read and written without the backend.

use std::time::Duration;

use serde_json::json;
use syncguard_core::backend::{
    FENCE_MAX, FailureReason, LockBackend as _, Lookup, MAX_KEY_LENGTH_BYTES,
};
use syncguard_core::{ErrorCode, ExtendResult, LockId, Locks, ReleaseResult};
use syncguard_firestore::{FirestoreOptions, STORAGE_KEY_LIMIT};

use crate::common::requests::{acquire, extend, is_locked, lookup, release};
use crate::common::{Database, document_id, id, key, lock_fields, now_ms, released, take, ttl};

const MINUTE: i64 = 60_000;

#[tokio::test]
async fn they_are_those_of_the_typescript_original() {
    let database = Database::new();
    let backend = database.backend().await;
    let before = now_ms();
    let grant = take(&backend, "payment:42").await;
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

    assert!(released(&backend, &grant.lock_id).await);
    assert!(database.list("locks").await.is_empty());
    assert_eq!(database.only("fence_counters").await, counter);
}

#[tokio::test]
async fn a_lock_of_another_implementation_is_a_lock() {
    let database = Database::new();
    let (backend, theirs) = (database.backend().await, id());
    let expires = now_ms() + MINUTE;
    database
        .put("locks", "k", lock_fields("k", &theirs, expires, 7))
        .await;
    database.set_fence_counter(&key("k"), 7).await;

    let refused = backend
        .acquire(acquire(&key("k"), &id(), ttl(1_000)))
        .await
        .unwrap();
    assert!(refused.is_locked());
    let info = backend
        .lookup_raw(lookup(Lookup::Id(&theirs)))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((info.expires_at_ms, info.fence.get()), (expires, 7));
    let extended = backend.extend(extend(&theirs, ttl(5_000))).await.unwrap();
    assert!(extended.expires_at_ms().unwrap() < expires);
    assert!(released(&backend, &theirs).await);
    assert_eq!(take(&backend, "k").await.fence.get(), 8);
}

#[tokio::test]
async fn every_ttl_is_stored_to_the_millisecond() {
    let database = Database::new();
    let backend = database.backend().await;
    for (n, millis) in [1, 999, 1_001, 30_000, 10 * 365 * 24 * 3_600_000]
        .into_iter()
        .enumerate()
    {
        let key = key(&format!("k{n}"));
        let grant = backend
            .acquire(acquire(&key, &id(), ttl(millis)))
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
        let backend = database.backend().await;
        let grant = take(&backend, text).await;
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

        assert!(backend.is_locked(is_locked(&key(text))).await.unwrap());
        let by_key = backend
            .lookup_raw(lookup(Lookup::Key(&key(text))))
            .await
            .unwrap()
            .unwrap();
        let by_id = backend
            .lookup_raw(lookup(Lookup::Id(&grant.lock_id)))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(by_key, by_id);
        assert_eq!(by_key.key.as_str(), text);
        assert!(
            backend
                .extend(extend(&grant.lock_id, ttl(60_000)))
                .await
                .unwrap()
                .expires_at_ms()
                .is_some()
        );
        assert!(released(&backend, &grant.lock_id).await);
        assert_eq!(take(&backend, text).await.fence.get(), 2);
    }
}

#[tokio::test]
async fn an_extend_changes_the_expiry_alone() {
    let database = Database::new();
    let (backend, holder) = (database.backend().await, id());
    let mut fields = lock_fields("k", &holder, now_ms() + MINUTE, 3);
    fields["note"] = json!({ "stringValue": "someone's own" });
    database.put("locks", "k", fields.clone()).await;

    let extended = backend.extend(extend(&holder, ttl(90_000))).await.unwrap();
    let expires_at_ms = extended.expires_at_ms().unwrap();
    fields["expiresAtMs"] = json!({ "integerValue": expires_at_ms.to_string() });
    assert_eq!(database.only("locks").await, fields);
}

#[tokio::test]
async fn a_lock_removed_behind_the_holders_back_is_not_held() {
    let database = Database::new();
    let backend = database.backend().await;
    let grant = take(&backend, "k").await;
    database.delete("locks", "k").await;

    let reason = Some(FailureReason::NotFound);
    let extended = backend
        .extend(extend(&grant.lock_id, ttl(1_000)))
        .await
        .unwrap();
    assert_eq!(extended, ExtendResult::not_held(reason));
    let released = backend.release(release(&grant.lock_id)).await.unwrap();
    assert_eq!(released, ReleaseResult::not_held(reason));
    assert_eq!(
        backend
            .lookup_raw(lookup(Lookup::Id(&grant.lock_id)))
            .await
            .unwrap(),
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
        let backend = database.backend().await;
        let mut fields = good.clone();
        fields[field] = value;
        database.put("locks", "k", fields.clone()).await;

        let error = backend
            .acquire(acquire(&key("k"), &id(), ttl(1_000)))
            .await
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{field}");
        assert!(error.message().contains(field) && !error.outcome_unknown());
        assert!(backend.is_locked(is_locked(&key("k"))).await.is_err());
        assert!(
            backend
                .lookup_raw(lookup(Lookup::Key(&key("k"))))
                .await
                .is_err()
        );
        assert_eq!(database.only("locks").await, fields);
        assert!(database.list("fence_counters").await.is_empty());
    }
}

#[tokio::test]
async fn a_counter_that_is_none_or_used_up_grants_nothing() {
    let database = Database::new();
    let backend = database.backend().await;
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
        let error = backend
            .acquire(acquire(&key("k"), &id(), ttl(1_000)))
            .await
            .unwrap_err();
        assert_eq!(error.code(), code, "{text}");
        assert!(!error.outcome_unknown());
        assert!(database.list("locks").await.is_empty());
        assert_eq!(database.only("fence_counters").await, counter(text));
    }
    database.set_fence_counter(&key("k"), FENCE_MAX - 1).await;
    assert_eq!(take(&backend, "k").await.fence.get(), FENCE_MAX);
}

#[tokio::test]
async fn collections_of_ones_own() {
    let database = Database::new();
    let options = || {
        FirestoreOptions::new()
            .lock_collection("app locks")
            .fence_collection("_app.fences")
    };
    let backend = database.backend_with(options()).await;
    let grant = take(&backend, "k").await;
    assert_eq!(database.list("app%20locks").await.len(), 1);
    assert_eq!(database.list("_app.fences").await.len(), 1);
    assert!(database.list("locks").await.is_empty());
    let other = database.backend_with(options()).await;
    assert!(released(&other, &grant.lock_id).await);
}

#[tokio::test]
async fn names_as_long_as_they_may_be() {
    let database = Database::new();
    let options = FirestoreOptions::new()
        .lock_collection("l".repeat(STORAGE_KEY_LIMIT))
        .fence_collection("f".repeat(STORAGE_KEY_LIMIT));
    let locks = Locks::new(database.backend_with(options).await);
    let alike = ["a", "b"].map(|end| "\u{e9}".repeat(255) + "-" + end);
    for (key, fences) in [(&alike[0], [1, 2]), (&alike[1], [1, 2])] {
        assert_eq!(key.len(), MAX_KEY_LENGTH_BYTES);
        for fence in fences {
            let guard = locks.try_lock(key).await.unwrap().unwrap();
            assert_eq!(guard.fence().get(), fence);
            let by_key = locks.get_by_key_raw(key).await.unwrap().unwrap();
            let by_id = locks.get_by_id_raw(guard.lock_id()).await.unwrap().unwrap();
            assert_eq!((by_key.key.as_str(), &by_key), (key.as_str(), &by_id));
            let listed = locks.list_raw().prefix(key.as_str()).await.unwrap();
            assert_eq!(listed.locks, [by_key]);
            assert!(
                guard
                    .extend(Duration::from_secs(60))
                    .await
                    .unwrap()
                    .is_extended()
            );
            assert!(guard.release().await.unwrap().is_released());
            assert!(!locks.is_locked(key).await.unwrap());
        }
    }
}

/// Two documents with one lock id: see ADR-014.
mod duplicates {
    use super::*;
    use crate::common::warnings::captured;

    async fn pair(first_ends: i64, second_ends: i64) -> (Database, LockId) {
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
            let (backend, before) = (database.backend().await, database.list("locks").await);
            let (log, ()) = captured(async {
                let extended = backend.extend(extend(&twice, ttl(1_000))).await.unwrap();
                assert_eq!(extended.expires_at_ms(), None);
                assert!(!released(&backend, &twice).await);
                assert_eq!(
                    backend
                        .lookup_raw(lookup(Lookup::Id(&twice)))
                        .await
                        .unwrap(),
                    None
                );
            })
            .await;
            assert_eq!(
                log.matches("several documents have one lock id").count(),
                3,
                "{log}"
            );
            assert!(!log.contains(twice.as_str()), "{log}");
            for name in ["a", "b"] {
                let hash = key(name).hash_id().to_string();
                assert_eq!(log.matches(&hash).count(), 3, "{log}");
            }
            assert_eq!(database.list("locks").await, before);
        }
    }

    #[tokio::test]
    async fn keep_their_keys_locked_until_they_expire() {
        let (database, _) = pair(MINUTE, -MINUTE).await;
        let backend = database.backend().await;
        let live = backend
            .acquire(acquire(&key("a"), &id(), ttl(1_000)))
            .await
            .unwrap();
        assert!(live.is_locked());
        assert_eq!(take(&backend, "b").await.fence.get(), 1);
    }
}
