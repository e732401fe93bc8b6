//! Many at once: contenders see `Acquired` or `Locked`, and nothing stays behind.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use syncguard_core::backend::Lookup;
use syncguard_core::{ErrorCode, LockOptions, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};

use crate::common::history::History;
use crate::common::{BareCalls as _, Fixture, id, key, pool, ttl};

const MINUTE: Duration = Duration::from_secs(60);

/// A URL whose sessions have a setting.
fn with_setting(url: &str, setting: &str, value: &str) -> String {
    format!("{url}?options[{setting}]={value}")
}

#[tokio::test(flavor = "multi_thread")]
async fn contenders_under_a_stricter_isolation_see_acquired_or_locked() {
    for isolation in ["repeatable%20read", "serializable"] {
        let fixture = Fixture::new().await;
        let url = with_setting(&fixture.url, "default_transaction_isolation", isolation);
        let options = fixture.named(PostgresOptions::new().max_connections(25));
        let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
        let history = Arc::new(History::default());
        let contenders = (0..50).map(|_| {
            let (backend, history) = (backend.clone(), history.clone());
            tokio::spawn(async move {
                for _ in 0..20 {
                    let id = id();
                    let answer = backend
                        .acquire(&key("strict"), &id, ttl(60_000))
                        .await
                        .unwrap();
                    let Some(grant) = answer.granted() else {
                        continue;
                    };
                    let acquired_at_ms = grant.expires_at_ms - 60_000;
                    history.granted(id, grant.fence.get(), acquired_at_ms, grant.expires_at_ms);
                    let extended = backend.extend(&id, ttl(60_000)).await.unwrap();
                    history.extended(id, extended.expires_at_ms().unwrap());
                    assert!(backend.lookup_raw(Lookup::Id(&id)).await.unwrap().is_some());
                    history.releasing(id);
                    assert!(backend.release(&id).await.unwrap().is_released());
                }
            })
        });
        for contender in join_all(contenders).await {
            contender.unwrap();
        }
        assert!(history.grants() >= 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_timeout_that_races_the_grant_leaves_no_lock() {
    let fixture = Fixture::new().await;
    let url = with_setting(&fixture.url, "statement_timeout", "3ms");
    let options = fixture.named(PostgresOptions::new());
    let hasty = PostgresBackend::connect_with(&url, options).await.unwrap();
    let (mut granted, mut cancelled) = (0, 0);
    for round in 0..500_u64 {
        let (key, id) = (key(&format!("cancelled:{}", round % 50)), id());
        // Someone is at the key until about the moment at which the server gives up.
        let mut other = fixture.sql.begin().await.unwrap();
        sqlx::query("SELECT pg_advisory_xact_lock(hashtext($1))")
            .bind(key.as_str())
            .execute(&mut *other)
            .await
            .unwrap();
        let busy = async {
            tokio::time::sleep(Duration::from_micros(1_000 + (round % 50) * 60)).await;
            other.rollback().await.unwrap();
        };
        let (answer, ()) = tokio::join!(hasty.acquire(&key, &id, ttl(60_000)), busy);
        match answer {
            Ok(answer) => {
                assert!(answer.granted().is_some(), "nobody holds the key");
                granted += 1;
                assert!(fixture.backend.release(&id).await.unwrap().is_released());
            }
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
                cancelled += 1;
                let orphan = fixture.backend.release(&id).await.unwrap();
                assert!(!orphan.is_released(), "cancelled, and granted all the same");
            }
        }
    }
    assert!(
        granted > 10 && cancelled > 10,
        "a race: {granted} granted, {cancelled} cancelled"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_may_use_the_locks_own_pool_of_one() {
    let fixture = Fixture::new().await;
    let pool = pool(&fixture.url, 1).await;
    let options = fixture.named(PostgresOptions::new());
    let locks = Locks::new(PostgresBackend::with_pool(pool.clone(), options).unwrap());
    let holders = (0..10).map(|holder| {
        let (locks, pool) = (locks.clone(), pool.clone());
        tokio::spawn(async move {
            let patient = LockOptions::new()
                .max_retries(1_000)
                .retry_delay(Duration::from_millis(5))
                .timeout(Duration::from_secs(30));
            let key = format!("pool:{}", holder % 3);
            let receipt = locks
                .lock(key)
                .options(&patient)
                .run(async |_| {
                    let query = sqlx::query_scalar::<_, i32>("SELECT 1");
                    query.fetch_one(&pool).await.unwrap()
                })
                .await
                .unwrap();
            assert!(!receipt.overran());
            receipt.into_value()
        })
    });
    for holder in join_all(holders).await {
        assert_eq!(holder.unwrap(), 1);
    }
}

#[tokio::test]
async fn an_acquire_abandoned_while_it_waits_in_the_server_is_not_granted_later() {
    let fixture = Fixture::new().await;
    let mut other = fixture.sql.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('stuck'))")
        .execute(&mut *other)
        .await
        .unwrap();
    // Otherwise the server would end the wait, or the backend the server process.
    let settings = "options[lock_timeout]=0&options[track_activities]=off";
    let url = format!("{}?{settings}", fixture.url);
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    let locks = Locks::new(backend);
    tokio::select! {
        _ = locks.try_lock("stuck").ttl(MINUTE).attempt() => panic!("it does not wait"),
        () = fixture.until_queued("stuck") => {}
    }
    // After that nobody releases it.
    locks.drain(Duration::from_secs(10)).await.unwrap();
    assert_eq!(
        fixture.queued("stuck").await,
        1,
        "it still waits in the server"
    );
    other.rollback().await.unwrap();
    while fixture.queued("stuck").await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(fixture.number("SELECT count(*) FROM {locks}").await, 0);
}
