//! How the rows of expired locks are deleted.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sqlx::AssertSqlSafe;
use syncguard_postgres::PostgresOptions;

use crate::common::{BareCalls as _, Fixture, id, key, ttl};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_purge_deletes_what_expired_long_ago_and_no_fence() {
    let fixture = Fixture::new().await;
    for (key, past) in [("old", 2_500), ("older", 60_000)] {
        let _ = fixture
            .locks
            .try_lock(key)
            .ttl(MINUTE)
            .await
            .unwrap()
            .unwrap()
            .detach();
        fixture.age(key, Duration::from_millis(past)).await;
    }
    let _ = fixture
        .locks
        .try_lock("recent")
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap()
        .detach();
    fixture.age("recent", Duration::ZERO).await;
    let live = fixture
        .locks
        .try_lock("live")
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(fixture.locks.purge_expired().await.unwrap(), 2);
    assert_eq!(fixture.number("SELECT count(*) FROM {locks}").await, 2);
    assert_eq!(fixture.number("SELECT count(*) FROM {fences}").await, 4);
    assert!(live.release().await.unwrap().is_released());
    let again = fixture
        .locks
        .try_lock("old")
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(again.fence().get(), 2);

    // No call deletes more than its limit; `Locks` repeats it. Rows in use are skipped.
    fixture
        .run(
            "INSERT INTO {locks} SELECT 'many:' || n, 'id' || n, 0, 0, lpad('1', 15, '0'), 'many' \
             FROM generate_series(1, 2500) AS n",
        )
        .await;
    let mut busy = fixture.sql.begin().await.unwrap();
    let lock =
        fixture.filled("SELECT key FROM {locks} WHERE key IN ('many:7', 'many:8') FOR UPDATE");
    sqlx::query(AssertSqlSafe(lock))
        .execute(&mut *busy)
        .await
        .unwrap();
    let left = "SELECT count(*) FROM {locks} WHERE user_key = 'many'";
    let backend = &fixture.backend;
    for limit in [0, 1, 499] {
        assert_eq!(
            backend.purge_expired(limit).await.unwrap(),
            u64::from(limit)
        );
    }
    assert!(fixture.number(left).await >= 2_000);
    assert!(fixture.locks.purge_expired().await.unwrap() >= 1_998);
    assert_eq!(fixture.number(left).await, 2);
    busy.rollback().await.unwrap();
    assert!(backend.purge_expired(u32::MAX).await.unwrap() >= 2);
    assert_eq!(fixture.number(left).await, 0);
    assert_eq!(fixture.number("SELECT count(*) FROM {fences}").await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_deletes_no_lock_that_is_acquired_meanwhile() {
    let fixture = Fixture::new().await;
    for round in 0..40_u64 {
        fixture
            .run(
                "INSERT INTO {locks} SELECT 'key:' || n, 'id' || n, 0, 0, lpad('1', 15, '0'), 'k' \
                 FROM generate_series(1, 30) AS n",
            )
            .await;
        let acquires = (1..=30).map(|n| {
            let backend = fixture.backend.clone();
            tokio::spawn(async move {
                let (key, id) = (key(&format!("key:{n}")), id());
                let acquired = backend.acquire(&key, &id, ttl(60_000)).await.unwrap();
                (id, acquired)
            })
        });
        let purge = tokio::spawn({
            let backend = fixture.backend.clone();
            async move {
                // Sooner or later, so that it meets acquires at different moments.
                tokio::time::sleep(Duration::from_micros(round * 100)).await;
                for _ in 0..5 {
                    backend.purge_expired(10).await.unwrap();
                }
            }
        });
        let acquired = join_all(acquires).await;
        purge.await.unwrap();
        for acquired in acquired {
            let (id, acquired) = acquired.unwrap();
            assert!(acquired.granted().is_some(), "an expired lock is free");
            let released = fixture.backend.release(&id).await.unwrap();
            assert!(released.is_released(), "the purge deleted a live lock");
        }
        fixture.run("DELETE FROM {locks}").await;
    }
}

#[tokio::test]
async fn is_locked_deletes_expired_rows_only_if_configured() {
    let fixture = Fixture::new().await;
    let cleaning = fixture
        .another(PostgresOptions::new().cleanup_in_is_locked(true))
        .await;
    let rows = "SELECT count(*) FROM {locks}";
    let stale = |n| format!("stale:{n}");
    for n in 0..20 {
        let _ = fixture
            .locks
            .try_lock(stale(n))
            .ttl(MINUTE)
            .await
            .unwrap()
            .unwrap()
            .detach();
        fixture.age(&stale(n), Duration::from_secs(3)).await;
    }
    for n in 0..20 {
        assert!(!fixture.locks.is_locked(stale(n)).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.number(rows).await, 20, "not configured");

    let started = Instant::now();
    for n in 0..20 {
        assert!(!cleaning.is_locked(stale(n)).await.unwrap());
    }
    let allowed = 1 + i64::try_from(started.elapsed().as_secs()).unwrap();
    while fixture.number(rows).await == 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let cleared = 20 - fixture.number(rows).await;
    assert!(
        (1..=allowed).contains(&cleared),
        "one a second, not {cleared}"
    );
    assert_eq!(fixture.number("SELECT count(*) FROM {fences}").await, 20);

    // Expired, but not for long: the row stays.
    let _ = fixture
        .locks
        .try_lock("recent")
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap()
        .detach();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    fixture.age("recent", Duration::ZERO).await;
    let _ = cleaning.is_locked("recent").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let recent = "SELECT count(*) FROM {locks} WHERE key = 'recent'";
    assert_eq!(fixture.number(recent).await, 1);
}
