//! Listings: bounded pages by the primary key, whatever its collation.

use std::time::Duration;

use syncguard_core::{LockGuard, LockInfoDebug, Locks};
use syncguard_postgres::PostgresOptions;
use syncguard_testkit::pages;

use crate::common::Fixture;

async fn held(locks: &Locks, keys: &[&str]) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for key in keys {
        let minute = Duration::from_secs(60);
        let guard = locks.try_lock(*key).ttl(minute).await.unwrap();
        guards.push(guard.expect("the key is free"));
    }
    guards
}

fn keys(pages: &[Vec<LockInfoDebug>]) -> Vec<&str> {
    let locks = pages.iter().flatten();
    let mut keys: Vec<_> = locks.map(|lock| lock.key.as_str()).collect();
    keys.sort_unstable();
    keys
}

/// 2,500 rows that expired long ago, in front of all other keys.
const EXPIRED: &str = "INSERT INTO {locks} SELECT '0:' || n, 'id' || n, 0, 0, lpad('1', 15, '0'), \
                       '0:' || n FROM generate_series(1, 2500) AS n";

#[tokio::test]
async fn a_page_looks_at_a_thousand_rows_at_most() {
    let fixture = Fixture::new().await;
    fixture.run(EXPIRED).await;
    let _guards = held(&fixture.locks, &["a:1", "a:2", "b"]).await;
    for prefix in ["a:", "a", ""] {
        let pages = pages(&fixture.locks, prefix, 10).await.unwrap();
        let counts: Vec<_> = pages.iter().map(Vec::len).collect();
        let found = if prefix.is_empty() { 3 } else { 2 };
        assert_eq!(counts, [0, 0, found], "{prefix}");
    }
    let small = pages(&fixture.locks, "", 1).await.unwrap();
    let counts: Vec<_> = small.iter().map(Vec::len).collect();
    assert_eq!(counts, [0, 0, 1, 1, 1, 0]);
}

/// In it `a`, `A`, `_a` and `a-` are neighbours, and a prefix is no range.
#[tokio::test]
async fn pages_follow_the_collation_of_the_primary_key() {
    let fixture = Fixture::new().await;
    fixture
        .run("ALTER TABLE {locks} ALTER COLUMN key TYPE TEXT COLLATE \"en-x-icu\"")
        .await;
    let names = [
        "a", "A", "_a", "a-", "a:", "A:1", "a:1", "a-1", "ab", "\u{e4}", "a_1", "a%1", " a", "z",
        "Z",
    ];
    let _guards = held(&fixture.locks, &names).await;
    for page_size in [1, 2, 3, 14, 15, 16] {
        for prefix in ["", "a", "A", "_", "a-", "a_", "a%", "\u{e4}", "aB"] {
            let mut expected: Vec<_> = names
                .into_iter()
                .filter(|key| key.starts_with(prefix))
                .collect();
            expected.sort_unstable();
            let pages = pages(&fixture.locks, prefix, page_size).await.unwrap();
            assert_eq!(keys(&pages), expected, "{prefix:?} by {page_size}");
        }
    }
}

#[tokio::test]
async fn locks_of_another_prefix_and_foreign_rows_are_left_out() {
    let fixture = Fixture::new().await;
    let inner = fixture.another(PostgresOptions::new().prefix("app")).await;
    let longest = "p".repeat(1_677);
    let long = fixture
        .another(PostgresOptions::new().prefix(&longest))
        .await;
    let _guards = held(&fixture.locks, &["k", "app:x"]).await;
    let _inner = held(&inner, &["k", "l"]).await;
    // Too long with this prefix, so they are stored under hashes: found by their keys nonetheless.
    let (k, l) = ("k".repeat(40), "l".repeat(40));
    let _long = held(&long, &[&k, &l]).await;
    fixture
        .run(
            "INSERT INTO {locks} VALUES ('foreign', 'no id', 9e15, 0, lpad('1', 15, '0'), 'foreign'), \
             ('copy', lpad('A', 22, 'A'), 9e15, 0, lpad('1', 15, '0'), 'k'), \
             ('unfenced', lpad('B', 22, 'B'), 9e15, 0, '1', 'unfenced')",
        )
        .await;
    let all = pages(&fixture.locks, "", 100).await.unwrap();
    assert_eq!(keys(&all), ["app:x", "k"]);
    for (locks, k, l) in [(&inner, "k", "l"), (&long, k.as_str(), l.as_str())] {
        assert_eq!(keys(&pages(locks, "", 100).await.unwrap()), [k, l]);
        assert_eq!(keys(&pages(locks, "k", 100).await.unwrap()), [k]);
        assert_eq!(keys(&pages(locks, "", 1).await.unwrap()), [k, l]);
    }
}
