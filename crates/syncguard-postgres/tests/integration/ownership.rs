//! Who may extend and release what, and until when.

use std::time::Duration;

use syncguard_core::backend::{FailureReason, Lookup};
use syncguard_core::{ExtendResult, ReleaseResult};

use crate::common::{BareCalls as _, Fixture, id, key, ttl};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_failed_release_or_extend_says_why() {
    let fixture = Fixture::new().await;
    let backend = &fixture.backend;
    let not_found = Some(FailureReason::NotFound);
    let expired = Some(FailureReason::Expired);
    assert_eq!(
        backend.release(&id()).await.unwrap(),
        ReleaseResult::not_held(not_found)
    );
    let extended = backend.extend(&id(), ttl(1_000)).await.unwrap();
    assert_eq!(extended, ExtendResult::not_held(not_found));

    let id = id();
    let granted = backend
        .acquire(&key("overdue"), &id, ttl(60_000))
        .await
        .unwrap();
    assert!(granted.granted().is_some());
    fixture.age("overdue", Duration::from_millis(1_001)).await;
    let before = fixture.lock_rows().await;
    let extended = backend.extend(&id, ttl(60_000)).await.unwrap();
    assert_eq!(extended, ExtendResult::not_held(expired));
    assert_eq!(fixture.lock_rows().await, before, "no resurrection");
    assert_eq!(
        backend.release(&id).await.unwrap(),
        ReleaseResult::not_held(expired)
    );
    assert_eq!(
        backend.release(&id).await.unwrap(),
        ReleaseResult::not_held(not_found)
    );
}

#[tokio::test]
async fn within_the_tolerance_the_owner_may_extend_and_release_and_others_may_not_acquire() {
    let fixture = Fixture::new().await;
    let backend = &fixture.backend;
    let (key, id) = (key("tolerance"), id());
    let _ = backend.acquire(&key, &id, ttl(60_000)).await.unwrap();
    fixture.age("tolerance", Duration::from_millis(50)).await;
    assert!(backend.is_locked(&key).await.unwrap());
    let other = backend
        .acquire(&key, &crate::common::id(), ttl(60_000))
        .await
        .unwrap();
    assert!(other.is_locked());
    let before = fixture.server_now_ms().await;
    let extended = backend.extend(&id, ttl(5_000)).await.unwrap();
    let expires_at_ms = extended.expires_at_ms().expect("still ours");
    assert!((before + 5_000..before + 8_000).contains(&expires_at_ms));
    let info = backend.lookup_raw(Lookup::Id(&id)).await.unwrap().unwrap();
    assert_eq!(info.expires_at_ms, expires_at_ms);
    fixture.age("tolerance", Duration::from_millis(50)).await;
    assert!(backend.release(&id).await.unwrap().is_released());
}

#[tokio::test]
async fn a_lock_removed_behind_its_owners_back_is_not_held() {
    let fixture = Fixture::new().await;
    let guard = fixture
        .locks
        .try_lock("removed")
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap();
    fixture.run("DELETE FROM {locks}").await;
    assert_eq!(guard.extend(MINUTE).await.unwrap().expires_at_ms(), None);
    assert!(!guard.is_valid());
    assert!(fixture.lock_rows().await.is_empty());
}
