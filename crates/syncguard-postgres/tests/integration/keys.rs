//! Keys of any characters and lengths, and those that PostgreSQL hashes alike.

use std::time::Duration;

use syncguard_core::LockKey;
use syncguard_postgres::PostgresOptions;

use crate::common::Fixture;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn any_key_works_through_every_operation() {
    // The second prefix is long enough for keys to be shortened, and fence keys before them.
    let prefixes = [String::new(), "p".repeat(1_200), "p".repeat(1_677)];
    for prefix in prefixes {
        let fixture = Fixture::with(PostgresOptions::new().prefix(prefix)).await;
        let locks = &fixture.locks;
        let mut held = Vec::new();
        for key in awkward_keys() {
            let guard = locks.try_lock(&key).ttl(MINUTE).await.unwrap();
            held.push((key, guard.expect("no two keys are one").detach()));
        }
        for (key, lease) in held {
            assert_eq!(lease.fence().get(), 1, "{key:?} has a counter of its own");
            assert!(locks.try_lock(&key).ttl(MINUTE).await.unwrap().is_none());
            assert!(locks.is_locked(&key).await.unwrap());
            let by_key = locks.get_by_key_raw(&key).await.unwrap().unwrap();
            let by_id = locks.get_by_id_raw(lease.lock_id()).await.unwrap().unwrap();
            assert_eq!(by_key, by_id);
            assert_eq!(by_key.key, LockKey::new(&key).unwrap());
            assert_eq!(by_key.lock_id, *lease.lock_id());
            let extended = locks.extend(lease.lock_id(), MINUTE * 2).await.unwrap();
            assert!(extended.expires_at_ms().is_some());
            assert!(locks.release(lease.lock_id()).await.unwrap().is_released());
            assert!(!locks.is_locked(&key).await.unwrap());
            let again = locks.try_lock(&key).ttl(MINUTE).await.unwrap().unwrap();
            assert_eq!(again.fence().get(), 2);
            let _ = again.release().await.unwrap();
        }
    }
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
async fn keys_on_both_sides_of_the_limit_are_apart() {
    // With this prefix the storage key of a 500-byte key is 1700 bytes long.
    let fixture = Fixture::with(PostgresOptions::new().prefix("p".repeat(1_199))).await;
    let mut leases = Vec::new();
    for length in 498..=503 {
        let key = "k".repeat(length);
        let guard = fixture
            .locks
            .try_lock(&key)
            .ttl(MINUTE)
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
            fixture
                .locks
                .release(lease.lock_id())
                .await
                .unwrap()
                .is_released()
        );
    }
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
    let first = fixture
        .locks
        .try_lock(&a)
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert!(!fixture.locks.is_locked(&b).await.unwrap());
    let second = fixture
        .locks
        .try_lock(&b)
        .ttl(MINUTE)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((first.fence().get(), second.fence().get()), (1, 1));
    let _ = first.release().await.unwrap();
    let _ = second.release().await.unwrap();
    // At the same time: they queue for one advisory lock.
    for _ in 0..50 {
        let attempt = |key: String| fixture.locks.try_lock(key).ttl(MINUTE);
        let (first, second) = tokio::join!(attempt(a.clone()), attempt(b.clone()));
        let (first, second) = (
            first.unwrap().expect("free"),
            second.unwrap().expect("free"),
        );
        let _ = tokio::try_join!(first.release(), second.release()).unwrap();
    }
}
