//! Who may extend and release what, and until when.

mod common;

use std::time::Duration;

use common::{Fixture, id, key, ttl};
use syncguard_core::{
    AcquireResult, ExtendResult, FailureReason, LockBackend as _, Lookup, ReleaseResult, acquire,
    extend, get_by_id, get_by_key, is_locked, release,
};
use syncguard_postgres::PostgresOptions;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_overrun_owner_does_not_touch_its_successor() {
    let fixture = Fixture::new().await;
    let overrun = acquire(&fixture.backend, "report", MINUTE)
        .await
        .unwrap()
        .unwrap()
        .detach();
    fixture.age("report", Duration::from_millis(1_001)).await;
    let next = acquire(&fixture.backend, "report", MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert!(next.fence() > overrun.fence());
    let released = release(&fixture.backend, overrun.lock_id()).await.unwrap();
    assert!(!released.is_released());
    let extended = extend(&fixture.backend, overrun.lock_id(), MINUTE)
        .await
        .unwrap();
    assert_eq!(extended.expires_at_ms(), None);
    let info = get_by_key(&fixture.backend, "report")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(info.fence, next.fence());
    assert_eq!(info.expires_at_ms, next.expires_at_ms());
    assert!(next.release().await.unwrap().is_released());
}

#[tokio::test]
async fn a_failed_release_or_extend_says_why() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let not_found = Some(FailureReason::NotFound);
    let expired = Some(FailureReason::Expired);
    assert_eq!(
        store.release(&id()).await.unwrap(),
        ReleaseResult::NotHeld { reason: not_found }
    );
    let extended = store.extend(&id(), ttl(1_000)).await.unwrap();
    assert_eq!(extended, ExtendResult::NotHeld { reason: not_found });

    let id = id();
    let granted = store
        .acquire(&key("overdue"), &id, ttl(60_000))
        .await
        .unwrap();
    assert!(granted.granted().is_some());
    fixture.age("overdue", Duration::from_millis(1_001)).await;
    let before = fixture.lock_rows().await;
    let extended = store.extend(&id, ttl(60_000)).await.unwrap();
    assert_eq!(extended, ExtendResult::NotHeld { reason: expired });
    assert_eq!(fixture.lock_rows().await, before, "no resurrection");
    assert_eq!(
        store.release(&id).await.unwrap(),
        ReleaseResult::NotHeld { reason: expired }
    );
    assert_eq!(
        store.release(&id).await.unwrap(),
        ReleaseResult::NotHeld { reason: not_found }
    );
}

#[tokio::test]
async fn within_the_tolerance_the_owner_may_extend_and_others_may_not_acquire() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let (key, id) = (key("tolerance"), id());
    let _ = store.acquire(&key, &id, ttl(60_000)).await.unwrap();
    fixture.age("tolerance", Duration::from_millis(50)).await;
    assert!(store.is_locked(&key).await.unwrap());
    let other = store
        .acquire(&key, &common::id(), ttl(60_000))
        .await
        .unwrap();
    assert_eq!(other, AcquireResult::Locked);
    let before = fixture.server_now_ms().await;
    let extended = store.extend(&id, ttl(5_000)).await.unwrap();
    let expires_at_ms = extended.expires_at_ms().expect("still ours");
    assert!((before + 5_000..before + 8_000).contains(&expires_at_ms));
    let info = store.lookup(Lookup::Id(&id)).await.unwrap().unwrap();
    assert_eq!(info.expires_at_ms, expires_at_ms);
}

#[tokio::test]
async fn an_extend_may_shorten_and_keeps_the_rest() {
    let fixture = Fixture::new().await;
    let guard = acquire(&fixture.backend, "shorter", MINUTE)
        .await
        .unwrap()
        .unwrap();
    let before = get_by_id(&fixture.backend, guard.lock_id())
        .await
        .unwrap()
        .unwrap();
    let extended = guard.extend(Duration::from_secs(5)).await.unwrap();
    let after = get_by_id(&fixture.backend, guard.lock_id())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(extended.expires_at_ms(), Some(after.expires_at_ms));
    assert!(after.expires_at_ms < before.expires_at_ms);
    assert_eq!(after.acquired_at_ms, before.acquired_at_ms);
    assert_eq!(after.fence, before.fence);
}

#[tokio::test]
async fn a_lock_removed_behind_its_owners_back_is_not_held() {
    let fixture = Fixture::new().await;
    let guard = acquire(&fixture.backend, "removed", MINUTE)
        .await
        .unwrap()
        .unwrap();
    fixture.run("DELETE FROM {locks}").await;
    assert_eq!(guard.extend(MINUTE).await.unwrap().expires_at_ms(), None);
    assert!(!guard.is_valid());
    assert!(fixture.lock_rows().await.is_empty());
}

#[tokio::test]
async fn any_task_and_any_client_may_release() {
    let fixture = Fixture::new().await;
    let lease = acquire(&fixture.backend, "elsewhere", MINUTE)
        .await
        .unwrap()
        .unwrap()
        .detach();
    let elsewhere = fixture.another(PostgresOptions::new()).await;
    let text = lease.lock_id().as_str().to_owned();
    let released = tokio::spawn(async move { release(&elsewhere, text.as_str()).await });
    assert!(released.await.unwrap().unwrap().is_released());
    assert!(!is_locked(&fixture.backend, "elsewhere").await.unwrap());
}
