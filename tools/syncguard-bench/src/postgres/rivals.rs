//! Other locks on PostgreSQL: a bare advisory lock, which has no lease and no fence and occupies a
//! connection; and the same tables in a transaction of six statements.

use std::time::Duration;

use anyhow::{Result, ensure};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, query, query_as, query_scalar};
use syncguard_core::LockId;
use syncguard_core::backend::TIME_TOLERANCE_MS;

use super::alike;
use crate::drive::{Sample, Stopwatch, Worker, drive, drive_on};
use crate::server_cpu::ServerCpu;
use crate::workload::{TTL, key_text};

/// Measures a session's advisory lock, each task on a connection of its own.
pub(crate) async fn advisory(url: &str, tasks: usize, span: Duration) -> Result<Sample> {
    let (target, mut workers) = (alike(url)?, Vec::new());
    for task in 0..tasks {
        workers.push(Advisory {
            connection: PgConnection::connect_with(&target).await?,
            task,
            next: 0,
        });
    }
    drive(workers, span).await
}

struct Advisory {
    connection: PgConnection,
    task: usize,
    next: u64,
}

impl Worker for Advisory {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        self.next += 1;
        let key: i64 = key_text(self.task, self.next).parse()?;
        let lock = query_scalar("SELECT pg_try_advisory_lock($1)").bind(key);
        let taken: bool = watch.time(0, lock.fetch_one(&mut self.connection)).await?;
        let unlock = query_scalar("SELECT pg_advisory_unlock($1)").bind(key);
        let given_back: bool = watch
            .time(1, unlock.fetch_one(&mut self.connection))
            .await?;
        ensure!(taken && given_back, "an advisory lock was not free");
        Ok(())
    }
}

/// Measures acquires that are a transaction of six statements, and releases that are one.
pub(crate) async fn six_statements(
    server: ServerCpu,
    url: &str,
    tasks: usize,
    span: Duration,
) -> Result<Sample> {
    let (target, mut workers) = (alike(url)?, Vec::new());
    for task in 0..tasks {
        workers.push(SixStatements {
            connection: PgConnection::connect_with(&target).await?,
            task,
            next: 0,
        });
    }
    drive_on(Some(server), workers, span).await
}

struct SixStatements {
    connection: PgConnection,
    task: usize,
    next: u64,
}

impl Worker for SixStatements {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        self.next += 1;
        let key = key_text(self.task, self.next);
        let id = LockId::generate()?;
        watch.time(0, self.acquire(&key, &id)).await?;
        let release = query("DELETE FROM syncguard_locks WHERE lock_id = $1").bind(id.as_str());
        let deleted = watch.time(1, release.execute(&mut self.connection)).await?;
        ensure!(deleted.rows_affected() == 1, "the lock is not there");
        Ok(())
    }
}

impl SixStatements {
    async fn acquire(&mut self, key: &str, id: &LockId) -> Result<()> {
        let mut transaction = self.connection.begin().await?;
        query("SELECT pg_advisory_xact_lock(hashtext($1))")
            .bind(key)
            .execute(&mut *transaction)
            .await?;
        let (expires_at_ms, now_ms): (Option<i64>, i64) = query_as(
            "SELECT (SELECT expires_at_ms FROM syncguard_locks WHERE key = $1), \
             floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
        )
        .bind(key)
        .fetch_one(&mut *transaction)
        .await?;
        let live = expires_at_ms.is_some_and(|expiry| expiry > now_ms - TIME_TOLERANCE_MS);
        ensure!(!live, "a free key was refused");
        let fence: i64 = query_scalar(
            "INSERT INTO syncguard_fence_counters AS counter (fence_key, fence, key_debug) \
             VALUES ($1, 1, $2) \
             ON CONFLICT (fence_key) DO UPDATE SET fence = counter.fence + 1 RETURNING fence",
        )
        .bind(format!("fence:{key}"))
        .bind(key)
        .fetch_one(&mut *transaction)
        .await?;
        query(
            "INSERT INTO syncguard_locks VALUES ($1, $2, $3, $4, $5, $1) \
             ON CONFLICT (key) DO UPDATE SET lock_id = excluded.lock_id, \
             expires_at_ms = excluded.expires_at_ms, acquired_at_ms = excluded.acquired_at_ms, \
             fence = excluded.fence, user_key = excluded.user_key",
        )
        .bind(key)
        .bind(id.as_str())
        .bind(now_ms + i64::try_from(TTL.as_millis())?)
        .bind(now_ms)
        .bind(format!("{fence:015}"))
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }
}
