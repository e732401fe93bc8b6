//! Listings: bounded pages by the primary key.

use sqlx::AssertSqlSafe;
use syncguard_core::{LockInfoDebug, Locks};
use syncguard_sqlite::{SqliteBackend, SqliteOptions, sqlx};
use syncguard_testkit::pages;

use crate::common::{MINUTE, connection, file, key, take};

fn keys(pages: &[Vec<LockInfoDebug>]) -> Vec<&str> {
    let locks = pages.iter().flatten();
    locks.map(|lock| lock.key.as_str()).collect()
}

async fn run(path: &std::path::Path, sql: &str) {
    let mut connection = connection(path).await;
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    done.execute(&mut connection).await.unwrap();
}

#[tokio::test]
async fn a_page_looks_at_a_thousand_rows_of_its_prefix_at_most() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    for name in ["a:1", "a:2", "b:0"] {
        take(&backend, &key(name), MINUTE).await;
    }
    // 2,500 rows of another prefix that expired long ago, before and among the others.
    run(
        &path,
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 2500) \
         INSERT INTO syncguard_locks SELECT '0:' || n, 'id' || n, 0, 0, '000000000000001', '0:' || n FROM n",
    )
    .await;
    let locks = Locks::new(backend);
    let counts = async |prefix, page_size| {
        let pages = pages(&locks, prefix, page_size).await.unwrap();
        pages.iter().map(Vec::len).collect::<Vec<_>>()
    };
    assert_eq!(counts("", 10).await, [0, 0, 3]);
    assert_eq!(counts("", 1).await, [0, 0, 1, 1, 1, 0]);
    assert_eq!(counts("0:", 10).await, [0, 0, 0]);
    assert_eq!(
        counts("a:", 10).await,
        [2],
        "no row of another prefix is read"
    );
    assert_eq!(counts("a:", 2).await, [2, 0]);
    assert_eq!(counts("c", 10).await, [0]);
}

#[tokio::test]
async fn locks_of_another_prefix_and_foreign_rows_are_left_out() {
    let (_folder, path) = file();
    let connect = async |prefix: &str| {
        let options = SqliteOptions::new().prefix(prefix);
        SqliteBackend::connect_with(&path, options).await.unwrap()
    };
    let (plain, inner) = (connect("").await, connect("app").await);
    let hashed = connect(&"p".repeat(1_677)).await;
    for name in ["app:x", "k"] {
        take(&plain, &key(name), MINUTE).await;
    }
    take(&inner, &key("k"), MINUTE).await;
    // Too long with this prefix, so it is stored under a hash.
    let long = "k".repeat(40);
    take(&hashed, &key(&long), MINUTE).await;
    run(
        &path,
        "INSERT INTO syncguard_locks VALUES ('foreign', 'no id', 9000000000000000, 0, '000000000000001', 'foreign'), \
         ('copy', 'AAAAAAAAAAAAAAAAAAAAAA', 9000000000000000, 0, '000000000000001', 'k'), \
         ('unfenced', 'BBBBBBBBBBBBBBBBBBBBBB', 9000000000000000, 0, '1', 'unfenced')",
    )
    .await;
    let listed = async |backend: &SqliteBackend, prefix, page_size| {
        let pages = pages(&Locks::new(backend.clone()), prefix, page_size).await;
        keys(&pages.unwrap()).join(" ")
    };
    for page_size in [1, 100] {
        assert_eq!(listed(&plain, "", page_size).await, "app:x k");
        assert_eq!(listed(&inner, "", page_size).await, "k");
        assert_eq!(listed(&hashed, "", page_size).await, long);
    }
    // As documented: under a hash, a key has no prefix.
    assert_eq!(listed(&hashed, "k", 100).await, "");
}
