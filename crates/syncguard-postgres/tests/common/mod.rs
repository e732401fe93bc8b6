//! What all tests of this folder share: a server, and tables of one's own in it.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod history;
pub(crate) mod original;
pub(crate) mod proxy;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};
use syncguard_core::{LockId, LockKey, Ttl};
use syncguard_postgres::{PostgresBackend, PostgresOptions, PostgresStore};

/// Key, lock id, expiry, time of acquisition, fence, and the key as its user spells it.
pub(crate) type LockRow = (String, String, i64, i64, String, String);

/// Two tables of one's own, a store on them, and a pool to look at them with.
pub(crate) struct Fixture {
    pub(crate) store: PostgresStore,
    pub(crate) backend: PostgresBackend,
    pub(crate) sql: PgPool,
    pub(crate) locks: String,
    pub(crate) fences: String,
    pub(crate) url: String,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(PostgresOptions::new()).await
    }

    pub(crate) async fn with(options: PostgresOptions) -> Self {
        let url = syncguard_testkit::shared_postgres_url().expect("a PostgreSQL server");
        Self::at(&url, options).await
    }

    pub(crate) async fn at(url: &str, options: PostgresOptions) -> Self {
        let fixture = Self::without_tables(url, options).await;
        fixture.store.setup_schema().await.unwrap();
        fixture
    }

    pub(crate) async fn without_tables(url: &str, options: PostgresOptions) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("t{}_{number}", std::process::id());
        let (locks, fences) = (format!("{unique}_locks"), format!("{unique}_fences"));
        let options = options
            .with_locks_table(&locks)
            .with_fence_counters_table(&fences);
        let store = PostgresStore::connect_with(url, options).await.unwrap();
        Self {
            backend: PostgresBackend::new(store.clone()),
            store,
            sql: pool(url, 5).await,
            locks,
            fences,
            url: url.to_owned(),
        }
    }

    /// A further client with a pool of its own on the same tables.
    pub(crate) async fn another(&self, options: PostgresOptions) -> PostgresBackend {
        PostgresBackend::new(self.another_store(options).await)
    }

    pub(crate) async fn another_store(&self, options: PostgresOptions) -> PostgresStore {
        PostgresStore::connect_with(&self.url, self.named(options))
            .await
            .unwrap()
    }

    pub(crate) fn named(&self, options: PostgresOptions) -> PostgresOptions {
        options
            .with_locks_table(&self.locks)
            .with_fence_counters_table(&self.fences)
    }

    /// Runs SQL in which `locks` and `fences` stand in braces for the tables.
    pub(crate) async fn run(&self, sql: &str) {
        let sql = self.filled(sql);
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&self.sql)
            .await
            .unwrap();
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let sql = self.filled(sql);
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&self.sql)
            .await
            .unwrap()
    }

    pub(crate) fn filled(&self, sql: &str) -> String {
        sql.replace("{locks}", &format!("\"{}\"", self.locks))
            .replace("{fences}", &format!("\"{}\"", self.fences))
    }

    pub(crate) async fn lock_rows(&self) -> Vec<LockRow> {
        let sql =
            "SELECT key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key FROM {locks}";
        sqlx::query_as(AssertSqlSafe(self.filled(sql)))
            .fetch_all(&self.sql)
            .await
            .unwrap()
    }

    pub(crate) async fn fence_rows(&self) -> Vec<(String, i64, Option<String>)> {
        let sql = "SELECT fence_key, fence, key_debug FROM {fences}";
        sqlx::query_as(AssertSqlSafe(self.filled(sql)))
            .fetch_all(&self.sql)
            .await
            .unwrap()
    }

    /// Moves a lock's expiry into the past, as if time had gone by.
    pub(crate) async fn age(&self, key: &str, past_expiry: Duration) {
        let sql = self.filled(
            "UPDATE {locks} SET expires_at_ms = \
             floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1 WHERE key = $2",
        );
        let changed = sqlx::query(AssertSqlSafe(sql))
            .bind(ms(past_expiry))
            .bind(key)
            .execute(&self.sql)
            .await
            .unwrap();
        assert_eq!(changed.rows_affected(), 1);
    }

    pub(crate) async fn server_now_ms(&self) -> i64 {
        self.number("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
            .await
    }
}

pub(crate) async fn pool(url: &str, connections: u32) -> PgPool {
    let target: PgConnectOptions = url.parse().unwrap();
    PgPoolOptions::new()
        .max_connections(connections)
        .connect_with(target)
        .await
        .unwrap()
}

pub(crate) fn key(text: &str) -> LockKey {
    LockKey::new(text).unwrap()
}

pub(crate) fn id() -> LockId {
    LockId::generate().unwrap()
}

pub(crate) fn ttl(millis: u64) -> Ttl {
    Ttl::new(Duration::from_millis(millis)).unwrap()
}

pub(crate) fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap()
}
