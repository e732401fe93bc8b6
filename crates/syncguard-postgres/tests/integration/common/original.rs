//! A stand-in for the TypeScript original: its acquire is a transaction of several statements.

use sqlx::{AssertSqlSafe, PgPool};
use syncguard_core::LockId;

use super::{Fixture, id};

const NOW_MS: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

pub(crate) struct Original {
    pool: PgPool,
    read: String,
    count: String,
    write: String,
    delete: String,
}

pub(crate) struct OriginalGrant {
    pub(crate) id: LockId,
    pub(crate) fence: u64,
    pub(crate) acquired_at_ms: i64,
    pub(crate) expires_at_ms: i64,
}

impl Original {
    pub(crate) fn new(fixture: &Fixture, pool: PgPool) -> Self {
        Self {
            pool,
            read: fixture.filled(&format!(
                "SELECT (SELECT expires_at_ms FROM {{locks}} WHERE key = $1), {NOW_MS}"
            )),
            count: fixture.filled(
                "INSERT INTO {fences} AS f (fence_key, fence, key_debug) VALUES ($1, 1, $2) \
                 ON CONFLICT (fence_key) DO UPDATE SET fence = f.fence + 1 RETURNING fence",
            ),
            write: fixture.filled(
                "INSERT INTO {locks} VALUES ($1, $2, $3, $4, lpad($5::text, 15, '0'), $1) \
                 ON CONFLICT (key) DO UPDATE SET lock_id = excluded.lock_id, \
                 expires_at_ms = excluded.expires_at_ms, \
                 acquired_at_ms = excluded.acquired_at_ms, fence = excluded.fence",
            ),
            delete: fixture.filled("DELETE FROM {locks} WHERE lock_id = $1"),
        }
    }

    pub(crate) async fn acquire(&self, key: &str, ttl_ms: i64) -> Option<OriginalGrant> {
        let mut transaction = self.pool.begin().await.unwrap();
        sqlx::query("SELECT pg_advisory_xact_lock(hashtext($1))")
            .bind(key)
            .execute(&mut *transaction)
            .await
            .unwrap();
        let (expires_at_ms, now_ms): (Option<i64>, i64) =
            sqlx::query_as(AssertSqlSafe(self.read.as_str()))
                .bind(key)
                .fetch_one(&mut *transaction)
                .await
                .unwrap();
        if expires_at_ms.is_some_and(|expires_at_ms| expires_at_ms > now_ms - 1000) {
            return None;
        }
        let fence: i64 = sqlx::query_scalar(AssertSqlSafe(self.count.as_str()))
            .bind(format!("fence:{key}"))
            .bind(key)
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        let id = id();
        sqlx::query(AssertSqlSafe(self.write.as_str()))
            .bind(key)
            .bind(id.as_str())
            .bind(now_ms + ttl_ms)
            .bind(now_ms)
            .bind(fence)
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        Some(OriginalGrant {
            id,
            fence: fence.unsigned_abs(),
            acquired_at_ms: now_ms,
            expires_at_ms: now_ms + ttl_ms,
        })
    }

    pub(crate) async fn release(&self, id: &LockId) -> bool {
        let deleted = sqlx::query(AssertSqlSafe(self.delete.as_str()))
            .bind(id.as_str())
            .execute(&self.pool)
            .await
            .unwrap();
        deleted.rows_affected() == 1
    }
}
