//! Listing: what is refused before the store is asked, and what observers are notified of.

use std::future::IntoFuture as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::list::KeyPrefix;
use syncguard_core::observe::{Observer, Operation, OperationEnd, OperationOutcome};
use syncguard_core::{CancellationToken, ErrorCode, LockGuard, LockKey, Locks};
use syncguard_memory::MemoryBackend;

use crate::common::{Fault, FaultyBackend};

async fn held(locks: &Locks, keys: &[&str]) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for key in keys {
        guards.push(locks.try_lock(*key).await.unwrap().unwrap());
    }
    guards
}

/// The keys of all pages.
async fn keys(locks: &Locks, prefix: &str, page_size: u32) -> Vec<String> {
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        let request = locks.list_raw().prefix(prefix).page_size(page_size);
        let page = request.after(after).await.unwrap();
        keys.extend(page.locks.iter().map(|lock| lock.key.as_str().to_owned()));
        after = page.next;
        if after.is_none() {
            return keys;
        }
    }
}

#[tokio::test]
async fn a_listing_goes_from_page_to_page() {
    let locks = Locks::new(MemoryBackend::default());
    let _guards = held(&locks, &["a:1", "a:2", "a:3", "b"]).await;
    for page_size in [1, 2, 3, 4, 1_000] {
        let all = ["a:1", "a:2", "a:3", "b"];
        assert_eq!(keys(&locks, "", page_size).await, all);
        assert_eq!(keys(&locks, "a:", page_size).await, all[..3]);
    }
    let page = locks.list().prefix("a:").page_size(2).await.unwrap();
    let hashes: Vec<_> = page.locks.iter().map(|lock| lock.key_hash).collect();
    let expected = ["a:1", "a:2"].map(|key| LockKey::new(key).unwrap().hash_id());
    assert_eq!(hashes, expected);
    assert!(!page.may_repeat);
    // A cursor can be used again, and by a handle on the same store.
    let observed = locks.observed_by(Arc::<Notes>::default());
    for locks in [&locks, &locks.clone(), &observed] {
        let next = locks.list_raw().prefix("a:").after(page.next.clone());
        assert_eq!(next.await.unwrap().locks[0].key.as_str(), "a:3");
    }
}

#[tokio::test]
async fn what_cannot_be_listed_is_refused_before_the_store_is_asked() {
    let faulty = FaultyBackend::default();
    let (locks, other) = (faulty.locks(), faulty.locks());
    let _guards = held(&locks, &["a:1", "a:2"]).await;
    let page = locks.list().prefix("a:").page_size(1).await.unwrap();
    let cursor = page.next.unwrap();
    let asked = faulty.calls(Operation::List);
    let too_long = "x".repeat(513);
    for (request, word) in [
        (locks.list().page_size(0), "1 to 1000"),
        (locks.list().page_size(1_001), "1 to 1000"),
        (locks.list().prefix("a\0"), "U+0000"),
        (locks.list().prefix(&too_long), "512 bytes"),
        (locks.list().after(cursor.clone()), "another prefix"),
        (
            locks.list().prefix("a").after(cursor.clone()),
            "another prefix",
        ),
        (
            other.list().prefix("a:").after(cursor.clone()),
            "another `Locks`",
        ),
    ] {
        let error = request.await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert_eq!(error.operation(), Some(Operation::List));
        assert!(error.to_string().contains(word), "{error}");
    }
    let token = CancellationToken::new();
    token.cancel();
    let cancelled = locks.list().cancel_on(&token).await.unwrap_err();
    assert_eq!(cancelled.code(), ErrorCode::Aborted);
    assert_eq!(faulty.calls(Operation::List), asked);
    // Another spelling of the prefix is the same prefix.
    let _guards = held(&locks, &["caf\u{e9}:1", "caf\u{e9}:2"]).await;
    let page = locks.list().prefix("cafe\u{301}").page_size(1).await;
    let next = locks.list().prefix("caf\u{e9}").after(page.unwrap().next);
    assert_eq!(next.await.unwrap().locks.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_listing_ends_by_its_deadline_and_changes_nothing() {
    let faulty = FaultyBackend::default();
    faulty.plan(Operation::List, [Fault::Hang, Fault::Hang]);
    let locks = faulty.locks();
    let error = locks.list().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(error.is_retryable() && !error.outcome_unknown());
    let token = CancellationToken::new();
    let request = locks.list().cancel_on(&token);
    let cancelled = tokio::spawn(request.into_future());
    tokio::time::sleep(Duration::from_millis(10)).await;
    token.cancel();
    let error = cancelled.await.unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::Aborted);
    assert!(!error.outcome_unknown());
}

#[derive(Default)]
struct Notes(Mutex<Vec<(Operation, OperationOutcome)>>);

impl Observer for Notes {
    fn operation_ended(&self, end: &OperationEnd<'_>) {
        assert!(end.key.is_none() && end.lock_id.is_none());
        self.0.lock().unwrap().push((end.operation, end.outcome));
    }
}

#[tokio::test]
async fn every_page_is_observed() {
    let notes = Arc::<Notes>::default();
    let locks = Locks::new(MemoryBackend::default()).observed_by(notes.clone());
    assert!(locks.list().await.unwrap().locks.is_empty());
    assert!(locks.list_raw().page_size(0).await.is_err());
    let unlisted = Locks::new(FaultyBackend::named("unlisted")).observed_by(notes.clone());
    let error = unlisted.list().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "list: the backend `unlisted` cannot list its locks [InvalidArgument]"
    );
    let refused = OperationOutcome::Failed {
        code: ErrorCode::InvalidArgument,
        outcome_unknown: false,
    };
    let outcomes = [OperationOutcome::Ok, refused, refused];
    let expected = outcomes.map(|outcome| (Operation::List, outcome));
    assert_eq!(*notes.0.lock().unwrap(), expected);
}

#[tokio::test]
async fn neither_prefix_nor_cursor_nor_page_shows_a_key() {
    let locks = Locks::new(MemoryBackend::default());
    let guards = held(&locks, &["customer:secret:1", "customer:secret:2"]).await;
    let request = locks.list().prefix("customer:secret").page_size(1);
    let shown = format!("{request:?}");
    let page = request.await.unwrap();
    let raw = locks.list_raw().prefix("customer:secret").await.unwrap();
    let next = locks.list().after(page.next.clone());
    let prefix = KeyPrefix::new("customer:secret").unwrap();
    let shown = format!("{shown} {page:?} {raw:?} {next:?} {prefix:?}");
    assert!(!shown.contains("secret"), "{shown}");
    assert!(
        !guards
            .iter()
            .any(|guard| shown.contains(guard.lock_id().as_str()))
    );
}
