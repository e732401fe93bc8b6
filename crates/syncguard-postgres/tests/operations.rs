//! The five operations against the rows that they leave.

mod common;

use std::time::Duration;

use common::{Fixture, id, key, ttl};
use sqlx::AssertSqlSafe;
use syncguard_core::{
    AcquireResult, ErrorCode, ExtendResult, FENCE_MAX, FailureReason, LockBackend as _, LockKey,
    Lookup, ReleaseResult, Ttl, acquire, extend, get_by_id, get_by_id_raw, get_by_key,
    get_by_key_raw, is_locked, release,
};
use syncguard_postgres::{PostgresOptions, PostgresStore};

const MINUTE: Duration = Duration::from_secs(60);

type LockRow = (String, String, i64, i64, String, String);

async fn lock_rows(fixture: &Fixture) -> Vec<LockRow> {
    let sql = fixture
        .filled("SELECT key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key FROM {locks}");
    sqlx::query_as(AssertSqlSafe(sql))
        .fetch_all(&fixture.sql)
        .await
        .unwrap()
}

async fn fence_rows(fixture: &Fixture) -> Vec<(String, i64, Option<String>)> {
    let sql = fixture.filled("SELECT fence_key, fence, key_debug FROM {fences}");
    sqlx::query_as(AssertSqlSafe(sql))
        .fetch_all(&fixture.sql)
        .await
        .unwrap()
}

#[tokio::test]
async fn rows_are_those_of_the_typescript_original() {
    let fixture = Fixture::new().await;
    let before = fixture.server_now_ms().await;
    let guard = acquire(&fixture.backend, "payment:42", MINUTE)
        .await
        .unwrap()
        .unwrap();
    let after = fixture.server_now_ms().await;

    let [row]: [LockRow; 1] = lock_rows(&fixture).await.try_into().unwrap();
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
    assert_eq!(fence_rows(&fixture).await, expected);

    assert!(guard.release().await.unwrap().is_released());
    assert!(lock_rows(&fixture).await.is_empty());
    assert_eq!(fence_rows(&fixture).await, expected);
}

#[tokio::test]
async fn a_replayed_acquire_gives_the_same_grant() {
    let fixture = Fixture::new().await;
    let (key, id) = (key("twice"), id());
    let first = fixture.store.acquire(&key, &id, ttl(60_000)).await.unwrap();
    let again = fixture.store.acquire(&key, &id, ttl(5_000)).await.unwrap();
    assert!(first.granted().is_some());
    assert_eq!(first, again);
    assert_eq!(fixture.number("SELECT fence FROM {fences}").await, 1);
}

#[tokio::test]
async fn twins_of_one_acquire_get_one_grant() {
    let fixture = Fixture::new().await;
    for round in 0..50 {
        let (key, id) = (key(&format!("twins:{round}")), id());
        let acquire = || fixture.store.acquire(&key, &id, ttl(60_000));
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
        let granted = fixture.store.acquire(&key, &id(), ttl).await.unwrap();
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
        let error = acquire(&fixture.backend, "ttl:refused", ttl)
            .await
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }
    let burnt = "SELECT count(*) FROM {fences} WHERE fence_key = 'fence:ttl:refused'";
    assert_eq!(fixture.number(burnt).await, 0);
    // One backend, another TTL: what was asked for.
    let granted = acquire(&fixture.backend, "ttl:other", Duration::from_millis(1_234)).await;
    let granted = granted.unwrap().unwrap();
    let info = get_by_key(&fixture.backend, "ttl:other")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(info.expires_at_ms, granted.expires_at_ms());
    assert_eq!(info.expires_at_ms - info.acquired_at_ms, 1_234);
}

fn awkward_keys() -> Vec<String> {
    let mut keys: Vec<String> = [
        ":",
        "a:b",
        "{}",
        "{a}{b}",
        "/",
        "a/b/c",
        ".",
        "..",
        "__x__",
        "%2F",
        "#",
        "'",
        "\"",
        "`",
        "it's \"quoted\"",
        "back\\slash",
        "new\nline",
        "tab\t",
        " ",
        "  two  spaces ",
        "🔒",
        "e\u{301}",
        "$1",
        "$$",
        "--",
        "/* */",
        ";",
        "E'\\000'",
        "%s",
        "NULL",
        "fence:bar",
        "id:AAAAAAAAAAAAAAAAAAAAAA",
        "bar",
    ]
    .map(str::to_owned)
    .to_vec();
    keys.push("x".repeat(512));
    keys.push("🔒".repeat(128));
    keys
}

#[tokio::test]
async fn any_key_works_through_every_operation() {
    // The second prefix is long enough for keys to be shortened, and fence keys before them.
    let prefixes = [String::new(), "p".repeat(1_200), "p".repeat(1_677)];
    for prefix in prefixes {
        let fixture = Fixture::with(PostgresOptions::new().with_prefix(prefix)).await;
        let backend = &fixture.backend;
        let mut held = Vec::new();
        for key in awkward_keys() {
            let guard = acquire(backend, &key, MINUTE).await.unwrap();
            held.push((key, guard.expect("no two keys are one").detach()));
        }
        for (key, lease) in held {
            assert_eq!(lease.fence().get(), 1, "{key:?} has a counter of its own");
            assert!(acquire(backend, &key, MINUTE).await.unwrap().is_none());
            assert!(is_locked(backend, &key).await.unwrap());
            let by_key = get_by_key_raw(backend, &key).await.unwrap().unwrap();
            let by_id = get_by_id_raw(backend, lease.lock_id())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(by_key, by_id);
            assert_eq!(by_key.key, LockKey::new(&key).unwrap());
            assert_eq!(by_key.lock_id, *lease.lock_id());
            let extended = extend(backend, lease.lock_id(), MINUTE * 2).await.unwrap();
            assert!(extended.expires_at_ms().is_some());
            assert!(
                release(backend, lease.lock_id())
                    .await
                    .unwrap()
                    .is_released()
            );
            assert!(!is_locked(backend, &key).await.unwrap());
            let again = acquire(backend, &key, MINUTE).await.unwrap().unwrap();
            assert_eq!(again.fence().get(), 2);
            let _ = again.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_key_with_u_0000_is_refused() {
    let fixture = Fixture::new().await;
    let error = acquire(&fixture.backend, "a\0b", MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(lock_rows(&fixture).await.is_empty());
}

#[tokio::test]
async fn keys_on_both_sides_of_the_limit_are_apart() {
    // With this prefix the storage key of a 500-byte key is 1700 bytes long.
    let fixture = Fixture::with(PostgresOptions::new().with_prefix("p".repeat(1_199))).await;
    let mut leases = Vec::new();
    for length in 498..=503 {
        let key = "k".repeat(length);
        let guard = acquire(&fixture.backend, &key, MINUTE)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(guard.fence().get(), 1);
        leases.push(guard.detach());
    }
    let shortened = "SELECT count(*) FROM {locks} WHERE octet_length(key) = 1199 + 1 + 22";
    assert_eq!(fixture.number(shortened).await, 3);
    assert_eq!(
        fixture
            .number("SELECT max(octet_length(key))::bigint FROM {locks}")
            .await,
        1_700
    );
    for lease in leases {
        assert!(
            release(&fixture.backend, lease.lock_id())
                .await
                .unwrap()
                .is_released()
        );
    }
}

#[tokio::test]
async fn a_contended_acquire_writes_nothing() {
    let fixture = Fixture::new().await;
    // A session's statistics are complete once it has ended.
    let in_session_of_its_own = async |holder: bool| {
        let url = format!("{}?application_name={}", fixture.url, fixture.locks);
        let pool = common::pool(&url, 1).await;
        let options = fixture.named(PostgresOptions::new());
        let store = PostgresStore::with_pool(pool.clone(), options).unwrap();
        for _ in 0..if holder { 1 } else { 200 } {
            let answer = store
                .acquire(&key("contended"), &id(), ttl(60_000))
                .await
                .unwrap();
            assert_eq!(answer.is_locked(), !holder);
        }
        pool.close().await;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{l}'";
        while fixture.number(&sql.replace("{l}", &fixture.locks)).await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let sql = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint FROM pg_stat_user_tables \
                   WHERE relname IN ('{l}', '{f}')";
        let sql = sql
            .replace("{l}", &fixture.locks)
            .replace("{f}", &fixture.fences);
        fixture.number(&sql).await
    };
    assert_eq!(
        in_session_of_its_own(true).await,
        2,
        "a grant: one row in each table"
    );
    let rows = (lock_rows(&fixture).await, fence_rows(&fixture).await);
    assert_eq!(in_session_of_its_own(false).await, 2, "contention: none");
    assert_eq!(
        (lock_rows(&fixture).await, fence_rows(&fixture).await),
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
    let last = acquire(&fixture.backend, "old", MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(last.fence().get(), FENCE_MAX);
    // Held is held, whatever the counter says.
    assert!(
        acquire(&fixture.backend, "old", MINUTE)
            .await
            .unwrap()
            .is_none()
    );
    let _ = last.release().await.unwrap();
    let error = acquire(&fixture.backend, "old", MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    assert!(!error.outcome_unknown());
    assert!(lock_rows(&fixture).await.is_empty());
    let counter = fixture.number("SELECT fence FROM {fences}").await;
    assert_eq!(counter.unsigned_abs(), FENCE_MAX);
}

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
    let before = lock_rows(&fixture).await;
    let extended = store.extend(&id, ttl(60_000)).await.unwrap();
    assert_eq!(extended, ExtendResult::NotHeld { reason: expired });
    assert_eq!(lock_rows(&fixture).await, before, "no resurrection");
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
    assert!(lock_rows(&fixture).await.is_empty());
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

#[tokio::test]
async fn keys_of_equal_hashtext_do_not_see_each_other() {
    let fixture = Fixture::new().await;
    let collision = "SELECT min(k), max(k) FROM (SELECT 'job:' || n AS k FROM \
                     generate_series(1, 300000) AS n) AS keys GROUP BY hashtext(k) \
                     HAVING count(*) > 1 LIMIT 1";
    let (a, b): (String, String) = sqlx::query_as(collision)
        .fetch_one(&fixture.sql)
        .await
        .unwrap();
    let first = acquire(&fixture.backend, &a, MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert!(!is_locked(&fixture.backend, &b).await.unwrap());
    let second = acquire(&fixture.backend, &b, MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((first.fence().get(), second.fence().get()), (1, 1));
    let _ = first.release().await.unwrap();
    let _ = second.release().await.unwrap();
    // Together, for they line up on one advisory lock.
    for _ in 0..50 {
        let attempt = |key: String| acquire(&fixture.backend, key, MINUTE);
        let (first, second) = tokio::join!(attempt(a.clone()), attempt(b.clone()));
        let (first, second) = (
            first.unwrap().expect("free"),
            second.unwrap().expect("free"),
        );
        let _ = tokio::try_join!(first.release(), second.release()).unwrap();
    }
}

#[tokio::test]
async fn operations_leave_nothing_in_the_session() {
    let fixture = Fixture::new().await;
    let guard = acquire(&fixture.backend, "held", MINUTE)
        .await
        .unwrap()
        .unwrap();
    let _ = guard.extend(MINUTE).await.unwrap();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%{l}%' \
                    AND pid <> pg_backend_pid() AND state <> 'idle'";
    assert_eq!(
        fixture
            .number(&sessions.replace("{l}", &fixture.locks))
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
