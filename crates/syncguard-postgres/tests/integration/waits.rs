//! What happens to time while an operation waits inside the server.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Postgres, Transaction};
use syncguard_core::{Backoff, LockOptions};
use syncguard_postgres::PostgresBackend;

use crate::common::{BareCalls as _, Fixture, id, key, ttl};

async fn holding(fixture: &Fixture, sql: &str) -> Transaction<'static, Postgres> {
    let mut transaction = fixture.sql.begin().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(fixture.filled(sql)))
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction
}

#[tokio::test]
async fn of_a_stalled_extend_and_an_acquire_exactly_one_succeeds() {
    // The row is freed inside the tolerance, after it, and long after it.
    for (acquire_after, freed_after) in [(100, 200), (700, 900), (700, 1_500), (100, 1_500)] {
        let fixture = Fixture::new().await;
        let (key, first) = (key("stalled"), id());
        let _ = fixture
            .backend
            .acquire(&key, &first, ttl(60_000))
            .await
            .unwrap();
        fixture.age("stalled", Duration::from_millis(500)).await;
        let busy = holding(&fixture, "SELECT * FROM {locks} FOR UPDATE").await;

        let (backend, second) = (fixture.backend.clone(), id());
        let extend = tokio::spawn({
            let backend = backend.clone();
            async move { backend.extend(&first, ttl(60_000)).await.unwrap() }
        });
        let acquire = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(acquire_after)).await;
            backend.acquire(&key, &second, ttl(60_000)).await.unwrap()
        });
        tokio::time::sleep(Duration::from_millis(freed_after)).await;
        busy.rollback().await.unwrap();

        let extended = extend.await.unwrap().expires_at_ms();
        let acquired = acquire.await.unwrap().granted();
        let both = extended.is_some() && acquired.is_some();
        assert!(!both, "{extended:?} {acquired:?}");
        if acquire_after == 700 {
            // By then the tolerance was over: one of them gets the key.
            assert!(extended.is_some() || acquired.is_some());
        }
        let holder = extended
            .map(|_| first)
            .or(acquired.map(|grant| grant.lock_id));
        if let Some(holder) = holder {
            assert!(
                fixture
                    .backend
                    .release(&holder)
                    .await
                    .unwrap()
                    .is_released()
            );
        }
    }
}

#[tokio::test]
async fn an_extend_that_waited_counts_from_after_the_wait() {
    let fixture = Fixture::new().await;
    let (key, id) = (key("late"), id());
    let _ = fixture
        .backend
        .acquire(&key, &id, ttl(60_000))
        .await
        .unwrap();
    let busy = holding(&fixture, "SELECT * FROM {locks} FOR UPDATE").await;
    let backend = fixture.backend.clone();
    let extend = tokio::spawn(async move { backend.extend(&id, ttl(5_000)).await.unwrap() });
    tokio::time::sleep(Duration::from_millis(700)).await;
    let freed = fixture.server_now_ms().await;
    busy.rollback().await.unwrap();
    let expires_at_ms = extend.await.unwrap().expires_at_ms().unwrap();
    assert!(expires_at_ms >= freed + 5_000);
}

#[tokio::test]
async fn a_blocked_acquire_is_locked_or_gets_its_full_ttl() {
    let blockers = [
        "SELECT pg_advisory_xact_lock(hashtext('blocked'))",
        "SELECT * FROM {fences} FOR UPDATE",
        "SELECT * FROM {locks} FOR UPDATE",
        // After its commit there is no row left whose newest version an upsert would check.
        "DELETE FROM {locks}",
    ];
    for blocker in blockers {
        for (ttl, blocked_ms) in [(300, 900), (300, 250), (600, 550), (60_000, 100)] {
            let fixture = Fixture::new().await;
            // A former holder, long gone, so that there is a row to block.
            let former = fixture
                .locks
                .try_lock("blocked")
                .ttl(Duration::from_secs(60))
                .await;
            let _ = former.unwrap().unwrap().detach();
            fixture.age("blocked", Duration::from_secs(5)).await;

            let busy = holding(&fixture, blocker).await;
            let locks = fixture.locks.clone();
            let attempt = tokio::spawn(async move {
                locks
                    .try_lock("blocked")
                    .ttl(Duration::from_millis(ttl))
                    .await
            });
            tokio::time::sleep(Duration::from_millis(blocked_ms)).await;
            let freed = fixture.server_now_ms().await;
            busy.commit().await.unwrap();
            let what = format!("{blocker}, TTL {ttl} ms, blocked {blocked_ms} ms");
            match attempt.await.unwrap() {
                Ok(None) => assert!(blocked_ms > 200, "{what}: refused without need"),
                Ok(Some(guard)) => {
                    let ttl = i64::try_from(ttl).unwrap();
                    assert!(guard.expires_at_ms() >= freed + ttl, "{what}: born late");
                    assert!(guard.release().await.unwrap().is_released());
                }
                // Answered, but after the local clock had counted the TTL down.
                Err(error) => assert!(
                    error.outcome_unknown() && blocked_ms > 200,
                    "{what}: {error:?}"
                ),
            }
        }
    }
}

/// The row is younger than what the statement sees: it came while the acquire queued, and it is being
/// deleted when it is the acquire's turn.
#[tokio::test]
async fn a_grant_after_a_delete_that_was_not_seen_has_its_full_ttl() {
    let fixture = Fixture::new().await;
    let mut queue = fixture.sql.acquire().await.unwrap();
    let turn = |sql: &'static str| sqlx::raw_sql(sql);
    turn("SELECT pg_advisory_lock(hashtext('unseen'))")
        .execute(&mut *queue)
        .await
        .unwrap();
    let (backend, id) = (fixture.backend.clone(), id());
    let acquire = tokio::spawn(async move {
        let acquired = backend.acquire(&key("unseen"), &id, ttl(2_000)).await;
        acquired.unwrap().granted().unwrap()
    });
    let queued = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                  AND (classid::bigint << 32 | objid::bigint) = hashtext('unseen')::bigint";
    while fixture.number(queued).await == 0 {}
    fixture
        .run(
            "INSERT INTO {locks} (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key) \
             VALUES ('unseen', 'AAAAAAAAAAAAAAAAAAAAAA', 9e15, 1, '000000000000001', 'unseen')",
        )
        .await;
    let deleting = holding(&fixture, "DELETE FROM {locks}").await;
    turn("SELECT pg_advisory_unlock(hashtext('unseen'))")
        .execute(&mut *queue)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let freed = fixture.server_now_ms().await;
    deleting.commit().await.unwrap();
    let grant = acquire.await.unwrap();
    assert!(
        grant.expires_at_ms >= freed + 2_000,
        "{} ms too short",
        freed + 2_000 - grant.expires_at_ms
    );
    // Nobody has seen the lease that began before the wait.
    let lasting = "SELECT expires_at_ms - acquired_at_ms FROM {locks}";
    assert_eq!(fixture.number(lasting).await, 2_000);
}

#[tokio::test]
async fn an_acquire_blocked_for_three_ttls_is_locked() {
    let fixture = Fixture::new().await;
    let busy = holding(
        &fixture,
        "SELECT pg_advisory_xact_lock(hashtext('blocked'))",
    )
    .await;
    let locks = fixture.locks.clone();
    let ttl = Duration::from_millis(300);
    let attempt = tokio::spawn(async move { locks.try_lock("blocked").ttl(ttl).await });
    fixture.until_queued("blocked").await;
    tokio::time::sleep(ttl * 3).await;
    busy.rollback().await.unwrap();
    match attempt.await.unwrap() {
        Ok(attempt) => assert!(attempt.is_none(), "a lease of {ttl:?} is granted late"),
        // The server was slow to end the wait. The grant came after its lease.
        Err(error) => assert!(error.outcome_unknown(), "{error:?}"),
    }
    fixture.locks.drain(Duration::from_secs(60)).await.unwrap();
    assert!(!fixture.locks.is_locked("blocked").await.unwrap());
    let next = fixture.locks.try_lock("blocked").await.unwrap();
    assert!(next.is_some(), "and then it is free");
}

#[tokio::test]
async fn a_waiter_that_waited_for_another_holder_gets_the_full_ttl() {
    let fixture = Fixture::new().await;
    let ttl = Duration::from_millis(1_500);
    let former = fixture
        .locks
        .try_lock("waited")
        .ttl(ttl)
        .await
        .unwrap()
        .unwrap();
    let former = former.detach();
    let patient = LockOptions::new()
        .ttl(ttl)
        .max_retries(1_000)
        .retry_delay(Duration::from_millis(50))
        .backoff(Backoff::Fixed)
        .timeout(Duration::from_secs(20));
    let started = Instant::now();
    let receipt = fixture
        .locks
        .lock("waited")
        .options(&patient)
        .run(async |lease| {
            assert!(
                started.elapsed() >= ttl,
                "not before the former lease ended"
            );
            assert!(lease.fence() > former.fence());
            assert!(lease.remaining() > ttl / 2, "{:?} left", lease.remaining());
            for _ in 0..5 {
                let extended = lease.extend(ttl).await.unwrap();
                assert!(extended.expires_at_ms().is_some());
                tokio::time::sleep(ttl / 5).await;
            }
        })
        .await
        .unwrap();
    assert!(!receipt.overran());
}

#[tokio::test]
async fn a_replay_of_an_acquire_in_flight_is_its_twin() {
    let fixture = Fixture::new().await;
    let busy = holding(&fixture, "SELECT pg_advisory_xact_lock(hashtext('twins'))").await;
    let (key, id) = (key("twins"), id());
    let attempt = |backend: PostgresBackend| {
        let key = key.clone();
        tokio::spawn(async move { backend.acquire(&key, &id, ttl(60_000)).await.unwrap() })
    };
    let twins = [
        attempt(fixture.backend.clone()),
        attempt(fixture.backend.clone()),
    ];
    let other = {
        let (backend, key) = (fixture.backend.clone(), key.clone());
        tokio::spawn(async move {
            // Behind the twins in the line for the advisory lock.
            tokio::time::sleep(Duration::from_millis(100)).await;
            backend
                .acquire(&key, &crate::common::id(), ttl(60_000))
                .await
                .unwrap()
        })
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    busy.rollback().await.unwrap();
    let [first, second] = twins;
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert!(!first.is_locked());
    assert_eq!(first, second);
    assert!(other.await.unwrap().is_locked());
}
