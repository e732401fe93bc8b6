//! What the operations leave in the tables, and in the session.

use std::error::Error as _;
use std::time::Duration;

use syncguard_core::backend::{FENCE_MAX, Lookup, Redacted};
use syncguard_core::{ErrorCode, Ttl};
use syncguard_postgres::{PostgresBackend, PostgresOptions};

use crate::common::{BareCalls as _, Fixture, LockRow, id, key, ttl};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn rows_are_those_of_the_typescript_original() {
    let fixture = Fixture::new().await;
    let before = fixture.server_now_ms().await;
    let guard = fixture
        .locks
        .try_lock("payment:42")
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap();
    let after = fixture.server_now_ms().await;

    let [row]: [LockRow; 1] = fixture.lock_rows().await.try_into().unwrap();
    let (stored_key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key) = row;
    assert_eq!(stored_key, "payment:42");
    assert_eq!(user_key, "payment:42");
    assert_eq!(lock_id, guard.lock_id().as_str());
    assert_eq!(fence, "000000000000001");
    assert_eq!(guard.fence().to_string(), fence);
    assert_eq!(expires_at_ms, guard.expires_at_ms());
    assert_eq!(expires_at_ms - acquired_at_ms, 60_000);
    assert!((before..=after).contains(&acquired_at_ms));

    let expected = [(
        "fence:payment:42".to_owned(),
        1,
        Some("payment:42".to_owned()),
    )];
    assert_eq!(fixture.fence_rows().await, expected);

    assert!(guard.release().await.unwrap().is_released());
    assert!(fixture.lock_rows().await.is_empty());
    assert_eq!(fixture.fence_rows().await, expected);
}

#[tokio::test]
async fn a_replayed_acquire_gives_the_same_grant() {
    let fixture = Fixture::new().await;
    let (key, id) = (key("twice"), id());
    let first = fixture
        .backend
        .acquire(&key, &id, ttl(60_000))
        .await
        .unwrap();
    let again = fixture
        .backend
        .acquire(&key, &id, ttl(5_000))
        .await
        .unwrap();
    assert!(!first.is_locked());
    assert_eq!(first, again);
    assert_eq!(fixture.number("SELECT fence FROM {fences}").await, 1);
}

/// The server quotes the row whose id is in use.
#[tokio::test]
async fn an_error_that_quotes_a_row_is_shown_without_the_row() {
    let fixture = Fixture::new().await;
    let (first, second, id) = (key("first"), key("second"), id());
    let granted = fixture.backend.acquire(&first, &id, ttl(60_000)).await;
    assert!(!granted.unwrap().is_locked());
    let refused = fixture.backend.acquire(&second, &id, ttl(60_000)).await;
    let error = refused.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    let shown = format!("{error:#} {error:?}");
    assert!(shown.contains("SQLSTATE 23505 of "), "{shown}");
    assert!(!shown.contains(id.as_str()), "{shown}");
    let redacted: &Redacted = error.source().unwrap().downcast_ref().unwrap();
    let driver = redacted.get_ref().downcast_ref::<sqlx::Error>().unwrap();
    assert!(format!("{driver:?}").contains(id.as_str()));
}

#[tokio::test]
async fn a_grant_that_cannot_be_read_has_an_unknown_outcome() {
    let fixture = Fixture::new().await;
    let (key, id) = (key("unreadable"), id());
    let _ = fixture.backend.acquire(&key, &id, ttl(60_000)).await;
    fixture.run("UPDATE {locks} SET fence = '7'").await;
    let again = fixture.backend.acquire(&key, &id, ttl(60_000)).await;
    let error = again.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
    assert!(error.outcome_unknown(), "{error}");
    let found = fixture.backend.lookup_raw(Lookup::Id(&id)).await;
    let error = found.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
    assert!(!error.outcome_unknown(), "{error}");
}

#[tokio::test]
async fn twins_of_one_acquire_get_one_grant() {
    let fixture = Fixture::new().await;
    for round in 0..50 {
        let (key, id) = (key(&format!("twins:{round}")), id());
        let acquire = || fixture.backend.acquire(&key, &id, ttl(60_000));
        let (a, b, c) = tokio::join!(acquire(), acquire(), acquire());
        let grants = [a, b, c].map(|answer| answer.unwrap().granted().expect("it is ours"));
        assert!(grants.iter().all(|grant| *grant == grants[0]), "{grants:?}");
        assert_eq!(grants[0].fence.get(), 1);
    }
}

#[tokio::test]
async fn a_ttl_is_stored_to_the_millisecond_and_a_refused_one_burns_no_fence() {
    let fixture = Fixture::new().await;
    let accepted = [
        (Duration::from_nanos(1), 1),
        (Duration::from_micros(999), 1),
        (Duration::from_millis(1), 1),
        (Duration::from_micros(1_500), 2),
        (Duration::from_secs(365 * 86_400), 365 * 86_400_000),
        (Ttl::MAX.as_duration(), Ttl::MAX.as_millis()),
    ];
    for (index, (ttl, millis)) in accepted.into_iter().enumerate() {
        let key = key(&format!("ttl:{index}"));
        let ttl = Ttl::new(ttl).unwrap();
        let granted = fixture.backend.acquire(&key, &id(), ttl).await.unwrap();
        assert!(granted.granted().is_some());
        let row = format!(
            "SELECT expires_at_ms - acquired_at_ms FROM {{locks}} WHERE key = 'ttl:{index}'"
        );
        assert_eq!(fixture.number(&row).await, millis);
    }
    let refused = [
        Duration::ZERO,
        Duration::from_secs(11 * 365 * 86_400),
        Duration::MAX,
    ];
    for ttl in refused {
        let error = fixture
            .locks
            .try_lock("ttl:refused")
            .ttl(ttl)
            .await
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }
    let burnt = "SELECT count(*) FROM {fences} WHERE fence_key = 'fence:ttl:refused'";
    assert_eq!(fixture.number(burnt).await, 0);
    // One backend, another TTL: what was asked for.
    let granted = fixture
        .locks
        .try_lock("ttl:other")
        .ttl(Duration::from_millis(1_234))
        .await;
    let granted = granted.unwrap().unwrap();
    let info = fixture
        .locks
        .get_by_key("ttl:other")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(info.expires_at_ms, granted.expires_at_ms());
    assert_eq!(info.expires_at_ms - info.acquired_at_ms, 1_234);
}

#[tokio::test]
async fn a_contended_acquire_writes_nothing() {
    let fixture = Fixture::new().await;
    // A session's statistics are complete once it has ended.
    let in_session_of_its_own = async |holder: bool| {
        let url = format!("{}?application_name={}", fixture.url, fixture.locks_table);
        let pool = crate::common::pool(&url, 1).await;
        let options = fixture.named(PostgresOptions::new());
        let backend = PostgresBackend::with_pool(pool.clone(), options).unwrap();
        for _ in 0..if holder { 1 } else { 200 } {
            let answer = backend
                .acquire(&key("contended"), &id(), ttl(60_000))
                .await
                .unwrap();
            assert_eq!(answer.is_locked(), !holder);
        }
        pool.close().await;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{l}'";
        while fixture
            .number(&sql.replace("{l}", &fixture.locks_table))
            .await
            > 0
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let sql = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint FROM pg_stat_user_tables \
                   WHERE relname IN ('{l}', '{f}')";
        let sql = sql
            .replace("{l}", &fixture.locks_table)
            .replace("{f}", &fixture.fences_table);
        fixture.number(&sql).await
    };
    assert_eq!(
        in_session_of_its_own(true).await,
        2,
        "a grant: one row in each table"
    );
    let rows = (fixture.lock_rows().await, fixture.fence_rows().await);
    assert_eq!(in_session_of_its_own(false).await, 2, "contention: none");
    assert_eq!(
        (fixture.lock_rows().await, fixture.fence_rows().await),
        rows
    );
}

#[tokio::test]
async fn an_exhausted_counter_grants_nothing_and_stays_where_it_is() {
    let fixture = Fixture::new().await;
    fixture
        .run(&format!(
            "INSERT INTO {{fences}} VALUES ('fence:old', {})",
            FENCE_MAX - 1
        ))
        .await;
    let last = fixture
        .locks
        .try_lock("old")
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(last.fence().get(), FENCE_MAX);
    // Held is held, whatever the counter says.
    assert!(
        fixture
            .locks
            .try_lock("old")
            .ttl(MINUTE)
            .await
            .unwrap()
            .is_none()
    );
    let _ = last.release().await.unwrap();
    let error = fixture.locks.try_lock("old").ttl(MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    assert!(!error.outcome_unknown());
    assert!(fixture.lock_rows().await.is_empty());
    let counter = fixture.number("SELECT fence FROM {fences}").await;
    assert_eq!(counter.unsigned_abs(), FENCE_MAX);
}

#[tokio::test]
async fn operations_leave_nothing_in_the_session() {
    let fixture = Fixture::new().await;
    let guard = fixture
        .locks
        .try_lock("held")
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap();
    let _ = guard.extend(MINUTE).await.unwrap();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%{l}%' \
                    AND pid <> pg_backend_pid() AND state <> 'idle'";
    assert_eq!(
        fixture
            .number(&sessions.replace("{l}", &fixture.locks_table))
            .await,
        0
    );
    assert_eq!(
        fixture
            .number(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid::bigint = \
                        hashtext('held')::bigint & 4294967295"
            )
            .await,
        0
    );
}
