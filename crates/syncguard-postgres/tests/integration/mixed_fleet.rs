//! Beside the TypeScript original on one table.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use syncguard_postgres::PostgresOptions;

use crate::common::history::History;
use crate::common::original::Original;
use crate::common::{BareCalls as _, Fixture, id, key, pool, ttl};

const KEY: &str = "shared";

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_writers_beside_the_original_never_hold_together() {
    const DURATION: Duration = Duration::from_secs(10);
    let fixture = Fixture::new().await;
    let options = PostgresOptions::new().max_connections(16);
    let backend = fixture.another_backend(options).await;
    let original = Arc::new(Original::new(&fixture, pool(&fixture.url, 4).await));
    let history = Arc::new(History::default());
    let (ours, theirs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let started = Instant::now();

    let mut writers = Vec::new();
    for writer in 0..16_u64 {
        let (backend, history, ours) = (backend.clone(), history.clone(), ours.clone());
        writers.push(tokio::spawn(async move {
            while started.elapsed() < DURATION {
                let id = id();
                let answer = backend.acquire(&key(KEY), &id, ttl(30_000)).await.unwrap();
                let Some(grant) = answer.granted() else {
                    tokio::time::sleep(Duration::from_millis(1 + writer % 3)).await;
                    continue;
                };
                let acquired_at_ms = grant.expires_at_ms - 30_000;
                history.granted(id, grant.fence.get(), acquired_at_ms, grant.expires_at_ms);
                // Now and then a holder is late, or never comes back.
                let count = ours.fetch_add(1, Ordering::Relaxed);
                let (late, gone) = (count % 100 == 50, count % 300 == 299);
                if late || gone {
                    let shortened = backend.extend(&id, ttl(20)).await.unwrap();
                    history.extended(id, shortened.expires_at_ms().expect("it is held"));
                }
                if gone {
                    continue;
                }
                if late {
                    // To the end of the tolerance, where others are waiting to take it.
                    let past = 1_008 + u64::try_from(count).unwrap() % 24;
                    tokio::time::sleep(Duration::from_millis(past)).await;
                    let extended = backend.extend(&id, ttl(30_000)).await.unwrap();
                    let Some(expires_at_ms) = extended.expires_at_ms() else {
                        continue;
                    };
                    history.extended(id, expires_at_ms);
                }
                history.releasing(id);
                assert!(
                    backend.release(&id).await.unwrap().is_released(),
                    "a lost lock"
                );
            }
        }));
    }
    for _ in 0..4 {
        let (original, history, theirs) = (original.clone(), history.clone(), theirs.clone());
        writers.push(tokio::spawn(async move {
            while started.elapsed() < DURATION {
                let Some(grant) = original.acquire(KEY, 30_000).await else {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                };
                history.granted(
                    grant.id,
                    grant.fence,
                    grant.acquired_at_ms,
                    grant.expires_at_ms,
                );
                theirs.fetch_add(1, Ordering::Relaxed);
                history.releasing(grant.id);
                assert!(original.release(&grant.id).await, "a lost lock");
            }
        }));
    }
    for writer in join_all(writers).await {
        writer.unwrap();
    }
    let (ours, theirs) = (ours.load(Ordering::Relaxed), theirs.load(Ordering::Relaxed));
    eprintln!("{ours} grants of ours, {theirs} of the original's");
    assert!(ours > 10 && theirs > 10, "both take part: {ours}, {theirs}");
    assert_eq!(history.grants(), ours + theirs);
}

#[tokio::test]
async fn tables_of_the_originals_making_are_used_as_they_are() {
    let url = syncguard_testkit::shared_postgres_url().expect("a server");
    let fixture = Fixture::without_tables(&url, PostgresOptions::new()).await;
    fixture
        .run(
            "CREATE TABLE {locks} (key TEXT PRIMARY KEY, lock_id TEXT NOT NULL, \
             expires_at_ms BIGINT NOT NULL, acquired_at_ms BIGINT NOT NULL, \
             fence TEXT NOT NULL, user_key TEXT NOT NULL);\
             CREATE UNIQUE INDEX ON {locks} (lock_id);\
             CREATE INDEX ON {locks} (expires_at_ms);\
             CREATE TABLE {fences} (fence_key TEXT PRIMARY KEY, \
             fence BIGINT NOT NULL DEFAULT 0, key_debug TEXT);",
        )
        .await;
    let indexes = "SELECT count(*) FROM pg_index WHERE indrelid = '{locks}'::regclass";
    let before = fixture.number(indexes).await;
    fixture.backend.setup_schema().await.unwrap();
    assert_eq!(fixture.number(indexes).await, before, "nothing was missing");

    let original = Original::new(&fixture, fixture.sql.clone());
    let theirs = original.acquire(KEY, 60_000).await.unwrap();
    let minute = Duration::from_secs(60);
    assert!(fixture.locks.is_locked(KEY).await.unwrap());
    assert!(
        fixture
            .locks
            .try_lock(KEY)
            .ttl(minute)
            .await
            .unwrap()
            .is_none()
    );
    let info = fixture.locks.get_by_key(KEY).await.unwrap().unwrap();
    assert_eq!(info.fence.get(), theirs.fence);
    assert_eq!(info.expires_at_ms, theirs.expires_at_ms);
    // Any client may release by the id, of either making.
    assert!(
        fixture
            .locks
            .release(theirs.id)
            .await
            .unwrap()
            .is_released()
    );

    let ours = fixture
        .locks
        .try_lock(KEY)
        .ttl(minute)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(ours.fence().get(), theirs.fence + 1);
    assert!(
        ours.extend(minute * 2)
            .await
            .unwrap()
            .expires_at_ms()
            .is_some()
    );
    assert!(original.acquire(KEY, 60_000).await.is_none());
    assert!(original.release(ours.lock_id()).await);
    assert_eq!(
        original.acquire(KEY, 60_000).await.unwrap().fence,
        theirs.fence + 2
    );
}
