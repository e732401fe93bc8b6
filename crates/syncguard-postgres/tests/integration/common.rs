//! What all tests of this folder share: a server, tables of one's own in it, and calls of the bare
//! backend.

pub(crate) mod history;
pub(crate) mod original;
pub(crate) mod proxy;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};
use syncguard_core::backend::{
    AcquireRequest, AcquireResult, DEFAULT_OPERATION_TIMEOUT, ExtendRequest, IsLockedRequest,
    LockBackend, Lookup, LookupRequest, PurgeRequest, ReleaseRequest,
};
use syncguard_core::{
    ExtendResult, LockError, LockId, LockInfoDebug, LockKey, Locks, ReleaseResult, Ttl,
};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use tokio::time::Instant;

/// Key, lock id, expiry, time of acquisition, fence, and the key as its user spells it.
pub(crate) type LockRow = (String, String, i64, i64, String, String);

/// Two tables of one's own, a backend and `Locks` on them, and a pool to look at them with.
pub(crate) struct Fixture {
    pub(crate) backend: PostgresBackend,
    pub(crate) locks: Locks,
    pub(crate) sql: PgPool,
    pub(crate) locks_table: String,
    pub(crate) fences_table: String,
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
        fixture.backend.setup_schema().await.unwrap();
        fixture
    }

    pub(crate) async fn without_tables(url: &str, options: PostgresOptions) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("t{}_{number}", std::process::id());
        let (locks_table, fences_table) = (format!("{unique}_locks"), format!("{unique}_fences"));
        let options = options
            .locks_table(&locks_table)
            .fence_counters_table(&fences_table);
        let backend = PostgresBackend::connect_with(url, options).await.unwrap();
        Self {
            locks: Locks::new(backend.clone()),
            backend,
            sql: pool(url, 5).await,
            locks_table,
            fences_table,
            url: url.to_owned(),
        }
    }

    /// A further client with a pool of its own on the same tables.
    pub(crate) async fn another(&self, options: PostgresOptions) -> Locks {
        Locks::new(self.another_backend(options).await)
    }

    pub(crate) async fn another_backend(&self, options: PostgresOptions) -> PostgresBackend {
        PostgresBackend::connect_with(&self.url, self.named(options))
            .await
            .unwrap()
    }

    pub(crate) fn named(&self, options: PostgresOptions) -> PostgresOptions {
        options
            .locks_table(&self.locks_table)
            .fence_counters_table(&self.fences_table)
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
        sql.replace("{locks}", &format!("\"{}\"", self.locks_table))
            .replace("{fences}", &format!("\"{}\"", self.fences_table))
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

    /// How many sessions wait in the server for the advisory lock of a key.
    pub(crate) async fn queued(&self, key: &str) -> i64 {
        self.number(&format!(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
             AND objid::bigint = hashtext('{key}')::bigint & 4294967295"
        ))
        .await
    }

    pub(crate) async fn until_queued(&self, key: &str) {
        while self.queued(key).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// From now on the server refuses writes, as an old primary that lives on does after a failover.
    pub(crate) async fn refuse_writes(&self) {
        self.run("ALTER SYSTEM SET default_transaction_read_only = on")
            .await;
        self.run("SELECT pg_reload_conf()").await;
        let started = Instant::now();
        while BareCalls::release(&self.backend, &id()).await.is_ok() {
            assert!(started.elapsed() < Duration::from_secs(20), "no reload");
        }
    }

    pub(crate) async fn server_now_ms(&self) -> i64 {
        self.number("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
            .await
    }
}

/// Calls of the bare backend, each with the default deadline: for tests that choose lock ids.
pub(crate) trait BareCalls {
    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError>;
    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError>;
    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError>;
    async fn lookup_raw(&self, by: Lookup<'_>) -> Result<Option<LockInfoDebug>, LockError>;
    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError>;
    async fn purge_expired(&self, limit: u32) -> Result<u64, LockError>;
}

impl BareCalls for PostgresBackend {
    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        LockBackend::acquire(self, AcquireRequest::new(key, id, ttl, deadline())).await
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        LockBackend::release(self, ReleaseRequest::new(id, deadline())).await
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        LockBackend::extend(self, ExtendRequest::new(id, ttl, deadline())).await
    }

    async fn lookup_raw(&self, by: Lookup<'_>) -> Result<Option<LockInfoDebug>, LockError> {
        LockBackend::lookup_raw(self, LookupRequest::new(by, deadline())).await
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        LockBackend::is_locked(self, IsLockedRequest::new(key, deadline())).await
    }

    async fn purge_expired(&self, limit: u32) -> Result<u64, LockError> {
        LockBackend::purge_expired(self, PurgeRequest::new(limit, deadline())).await
    }
}

fn deadline() -> Instant {
    Instant::now() + DEFAULT_OPERATION_TIMEOUT
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
