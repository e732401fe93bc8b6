//! The cost of locks for the server: its disk, and whether many locks cost more than few.

use anyhow::{Result, bail, ensure};
use sqlx::{AssertSqlSafe, PgPool, query_scalar, raw_sql};
use syncguard_postgres::PostgresOptions;
use syncguard_testkit::PostgresServer;

use super::connected;
use crate::comparison::{Comparison, Target};
use crate::workload::{self, TTL};
use crate::{Settings, tell};

/// Pairs per second with asynchronous releases, beside those without, on a server that syncs its disk.
pub(crate) async fn releases(settings: &Settings) -> Result<Vec<Comparison>> {
    let durable = PostgresServer::start_with(&[("fsync", "on"), ("full_page_writes", "on")])?;
    let url = durable.url();
    let mut comparisons = Vec::new();
    for &tasks in settings.tasks {
        let options = PostgresOptions::new();
        let synchronous = connected(&url, tasks, options.clone()).await?;
        let asynchronous = connected(&url, tasks, options.asynchronous_releases(true)).await?;
        let sides = [&asynchronous, &synchronous];
        let runs = workload::pairs_side_by_side(sides, tasks, settings).await?;
        comparisons.push(Comparison::new(
            format!("acquire and release, asynchronous releases, {tasks} tasks"),
            "pairs/s",
            "synchronous, fsync on",
            &runs,
            (tasks == 1).then_some(Target::AtLeast(1.5)),
        )?);
        for locks in [synchronous, asynchronous] {
            locks.close().await?;
        }
    }
    Ok(comparisons)
}

/// Pairs per second where many locks are held, beside few; and the space that they take.
pub(crate) async fn scale(
    url: &str,
    pool: &PgPool,
    settings: &Settings,
) -> Result<Vec<Comparison>> {
    const FEW: u32 = 100;
    let many = settings.many_locks;
    let mut sides = Vec::new();
    for (tables, count) in [
        (["few", "few_fences"], FEW),
        (["many", "many_fences"], many),
    ] {
        let [of_locks, of_fences] = tables;
        let options = PostgresOptions::new()
            .locks_table(of_locks)
            .fence_counters_table(of_fences);
        let locks = connected(url, 16, options).await?;
        fill(pool, tables, 500_000_000_000, count).await?;
        for table in tables {
            let vacuum = AssertSqlSafe(format!("VACUUM (ANALYZE) {table}"));
            raw_sql(vacuum).execute(pool).await?;
        }
        let found = locks.get_by_id(id_of(500_000_000_000)).await?;
        ensure!(found.is_some(), "what was filled in are no locks");
        sides.push(locks);
    }
    tell(&format!("  {many} locks are in"));
    let [few, many_held] = &sides[..] else {
        bail!("there are two sides")
    };
    let pairs = workload::pairs_side_by_side([many_held, few], 16, settings).await?;
    let each = |size: f64| size / f64::from(many);
    let bytes = |what: &str, size: f64, target| {
        Comparison::new(what, "bytes", "1 KiB", &[(each(size), 1024.0)], target)
    };
    let (locks, fences) = (size(pool, "many").await?, size(pool, "many_fences").await?);
    Ok(vec![
        Comparison::new(
            format!("acquire and release beside {many} locks"),
            "pairs/s",
            "beside 100",
            &pairs,
            Some(Target::AtLeast(1.0 / 1.3)),
        )?,
        bytes(
            "disk of lock and fence counter, indexes included",
            locks + fences,
            Some(Target::AtMost(1.0)),
        )?,
        bytes("disk of the fence counter, which stays", fences, None)?,
    ])
}

/// Of a table with its indexes.
async fn size(pool: &PgPool, table: &str) -> Result<f64> {
    let size = query_scalar("SELECT pg_total_relation_size($1::regclass)::float8")
        .bind(table)
        .fetch_one(pool)
        .await?;
    Ok(size)
}

fn id_of(number: u64) -> String {
    (9_000_000_000_000_000_000 + number).to_string() + "AAA"
}

/// Writes locks as acquire does. Their keys are numbers; where these are small, so that pgbench can
/// make the ids too, the ids are numbers alone.
pub(crate) async fn fill(
    pool: &PgPool,
    [locks, fences]: [&str; 2],
    first: u64,
    count: u32,
) -> Result<()> {
    let ending = if first > 1_000_000 { "AAA" } else { "" };
    let numbers = format!("generate_series({first}::bigint, {first} + {count} - 1) AS number");
    let statements = format!(
        "INSERT INTO {locks} (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key) \
         SELECT lpad(number::text, 12, '0'), (9000000000000000000 + number)::text || '{ending}', \
         now_ms + {ttl}, now_ms, '000000000000001', lpad(number::text, 12, '0') FROM {numbers}, \
         (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms) AS clock; \
         INSERT INTO {fences} (fence_key, fence, key_debug) \
         SELECT 'fence:' || lpad(number::text, 12, '0'), 1, lpad(number::text, 12, '0') \
         FROM {numbers}",
        ttl = TTL.as_millis(),
    );
    raw_sql(AssertSqlSafe(statements)).execute(pool).await?;
    Ok(())
}
