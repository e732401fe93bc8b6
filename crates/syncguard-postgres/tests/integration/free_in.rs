//! For how long a refused acquire says that the key stays held.

use std::time::Duration;

use syncguard_core::LockKey;
use syncguard_core::backend::{AcquireResult, TIME_TOLERANCE_MS};

use crate::common::{BareCalls as _, Fixture, id, key, ms, ttl};

/// Asks for a held key. The answer agrees with the stored expiry, by the server's clock.
async fn refused(fixture: &Fixture, key: &LockKey) -> Duration {
    let before = fixture.server_now_ms().await;
    let refused = fixture.backend.acquire(key, &id(), ttl(60_000)).await;
    let after = fixture.server_now_ms().await;
    let AcquireResult::Locked { free_in, .. } = refused.unwrap() else {
        panic!("granted although it is held");
    };
    let free_in = free_in.expect("the row says it");
    assert!(free_in > Duration::ZERO);
    let dead_at_ms = fixture.lock_rows().await[0].2 + TIME_TOLERANCE_MS;
    assert!(
        ms(free_in) >= (dead_at_ms - after).max(1),
        "{free_in:?} is too short"
    );
    assert!(
        ms(free_in) <= (dead_at_ms - before).max(1),
        "{free_in:?} is too long"
    );
    free_in
}

/// The first acquire that starts after that time is granted.
async fn is_free_after(fixture: &Fixture, key: &LockKey, free_in: Duration) {
    let dead_at_ms = fixture.lock_rows().await[0].2 + TIME_TOLERANCE_MS;
    tokio::time::sleep(free_in).await;
    let granted = fixture.backend.acquire(key, &id(), ttl(60_000)).await;
    let granted = granted.unwrap().granted().expect("it is free by now");
    assert!(
        granted.expires_at_ms - 60_000 >= dead_at_ms,
        "granted too early"
    );
}

#[tokio::test]
async fn an_acquire_after_free_in_is_granted_at_the_first_ask() {
    let fixture = Fixture::new().await;
    let key = key("k");
    let acquired = fixture.backend.acquire(&key, &id(), ttl(3_000)).await;
    assert!(acquired.unwrap().granted().is_some());
    let free_in = refused(&fixture, &key).await;
    is_free_after(&fixture, &key, free_in).await;
}

#[tokio::test]
async fn no_acquire_before_free_in_is_granted() {
    let fixture = Fixture::new().await;
    let key = key("k");
    let acquired = fixture.backend.acquire(&key, &id(), ttl(1_000)).await;
    let expires_at_ms = acquired.unwrap().granted().unwrap().expires_at_ms;
    let mut last = None;
    let granted = loop {
        match fixture
            .backend
            .acquire(&key, &id(), ttl(60_000))
            .await
            .unwrap()
        {
            AcquireResult::Acquired(granted) => break granted,
            AcquireResult::Locked { free_in, .. } => {
                let free_in = free_in.expect("the row says it");
                assert!(last.is_none_or(|last| free_in <= last), "it counts down");
                last = Some(free_in);
            }
        }
    };
    assert!(last.is_some());
    assert!(granted.expires_at_ms - 60_000 >= expires_at_ms + TIME_TOLERANCE_MS);
}

#[tokio::test]
async fn after_an_extend_it_counts_from_the_new_expiry() {
    let fixture = Fixture::new().await;
    let (key, id) = (key("k"), id());
    let acquired = fixture.backend.acquire(&key, &id, ttl(600_000)).await;
    assert!(acquired.unwrap().granted().is_some());
    assert!(refused(&fixture, &key).await > Duration::from_secs(300));
    let extended = fixture.backend.extend(&id, ttl(3_000)).await;
    assert!(extended.unwrap().is_extended());
    let free_in = refused(&fixture, &key).await;
    is_free_after(&fixture, &key, free_in).await;
}

#[tokio::test]
async fn for_a_lock_that_another_implementation_wrote_as_well() {
    let fixture = Fixture::new().await;
    let now = fixture.server_now_ms().await;
    let id = id();
    fixture
        .run(&format!(
            "INSERT INTO {{locks}} VALUES \
             ('k', '{}', {}, {now}, '000000000000001', 'k')",
            id.as_str(),
            now + 3_000
        ))
        .await;
    let free_in = refused(&fixture, &key("k")).await;
    is_free_after(&fixture, &key("k"), free_in).await;
    // As far ahead as the column can hold.
    fixture
        .run(&format!(
            "UPDATE {{locks}} SET expires_at_ms = {}",
            i64::MAX
        ))
        .await;
    let refused = fixture
        .backend
        .acquire(&key("k"), &crate::common::id(), ttl(1_000))
        .await;
    assert!(refused.unwrap().is_locked());
}
