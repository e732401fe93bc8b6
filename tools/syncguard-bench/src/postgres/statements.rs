//! [`Statements`]: what the backend has prepared, as the server knows it.

use anyhow::{Context, Result};
use sqlx::PgPool;
use syncguard_core::Locks;
use syncguard_postgres::{PostgresBackend, PostgresOptions};

use crate::workload::TTL;

/// The texts, as `pgbench` takes them.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) acquire: String,
    pub(crate) release: String,
    pub(crate) extend: String,
    pub(crate) lookup: String,
}

/// Lets the backend prepare its statements on the pool's one connection, and asks for them.
pub(crate) async fn prepared(pool: &PgPool) -> Result<Statements> {
    let backend = PostgresBackend::with_pool(pool.clone(), PostgresOptions::new())?;
    backend.setup_schema().await?;
    let locks = Locks::new(backend);
    let guard = locks.lock("key").await?;
    let _ = guard.extend(TTL).await?;
    locks.get_by_id(guard.lock_id()).await?;
    let _ = guard.release().await?;
    let texts: Vec<String> = sqlx::query_scalar("SELECT statement FROM pg_prepared_statements")
        .fetch_all(pool)
        .await?;
    let find = |mark: &str, parameters: &[&str]| {
        let text = texts
            .iter()
            .find(|text| text.contains(mark) && text.contains("$1 = '"));
        text.and_then(|text| for_pgbench(text, parameters))
            .with_context(|| format!("the backend has no statement with {mark}"))
    };
    let ttl = format!("{}::bigint", TTL.as_millis());
    let (id, key, fence) = (":id::text", ":key::text", ":fence::text");
    Ok(Statements {
        acquire: find("INSERT INTO", &[id, key, fence, &ttl, key])?,
        release: find("DELETE FROM", &[id])?,
        extend: find("UPDATE \"syncguard_locks\"", &[id, &ttl])?,
        lookup: find("ON lock.lock_id = $2", &[id])?,
    })
}

/// Puts pgbench's variables in place of the parameters, and the statement's own name for `$1`.
fn for_pgbench(text: &str, parameters: &[&str]) -> Option<String> {
    let (_, name) = text.split_once("$1 = '")?;
    let (name, _) = name.split_once('\'')?;
    let mut text = text.replace("$1", &format!("'{name}'::text"));
    for (number, parameter) in parameters.iter().enumerate() {
        text = text.replace(&format!("${}", number + 2), parameter);
    }
    (!text.contains('$')).then_some(text)
}
