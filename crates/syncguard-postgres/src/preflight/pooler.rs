//! Whether there is a pooler in transaction mode between the client and the server.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection, Row as _};
use syncguard_core::{Finding, Severity};
use tokio::time::{Instant, timeout_at};

use super::connection;
use crate::PostgresBackend;
use crate::wire::Session;

pub(super) const POOLER_UNCHECKED: &str = "postgres-pooler-unchecked";

/// The order in which two connections ask for their server process. To a pooler that uses its server
/// connections in turn, this order is as good as random.
const TURNS: [Turn; 10] = {
    use Turn::{Other, Own};
    [Own, Other, Other, Own, Own, Other, Own, Own, Other, Other]
};

/// The longest that the second connection may take in all, and at most half of the time that is left.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Own,
    Other,
}

impl PostgresBackend {
    /// Opens a second connection, and closes it.
    pub(super) async fn pooler(
        &self,
        session: &mut Session,
        deadline: Instant,
    ) -> Result<Option<Finding>, sqlx::Error> {
        let target = self.connections().target();
        let now = Instant::now();
        let patience = now + PATIENCE.min(deadline.saturating_duration_since(now) / 2);
        let connecting = PgConnection::connect_with(&target);
        let Ok(Ok(mut other)) = timeout_at(patience, connecting).await else {
            return Ok(Some(unknown()));
        };
        let own = connection(session)?;
        let Some(pooled) = share_servers(own, &mut other, patience).await? else {
            return Ok(Some(unknown()));
        };
        let expected = self.settings().transaction_pooler;
        let passes_names = if pooled && !expected {
            let asked = timeout_at(patience, passes_names_on(&mut other)).await;
            !matches!(asked, Ok(Ok(false)))
        } else {
            false
        };
        // It does not matter whether it closes in an orderly way.
        let _ = timeout_at(patience, other.close()).await;
        Ok(match (pooled, expected) {
            (true, false) if passes_names => Some(unexpected()),
            (true, false) => Some(unaware()),
            (false, true) => Some(needless()),
            (true, true) | (false, false) => None,
        })
    }
}

/// Whether there is a pooler in transaction mode between two connections and the server; `None` if the
/// second one does not reply in time.
///
/// Without a pooler, each of two open connections has a server process of its own and keeps it. If
/// that does not hold, there certainly is a pooler. If it holds, there is no pooler, or one in
/// session mode, or one that other clients keep so busy that it held by chance.
///
/// It sends only simple queries: they leave nothing in a session.
pub(crate) async fn share_servers(
    own: &mut PgConnection,
    other: &mut PgConnection,
    patience: Instant,
) -> Result<Option<bool>, sqlx::Error> {
    let mut servers: [Option<String>; 2] = [None, None];
    let mut pooled = false;
    for turn in TURNS {
        let (asked, server) = match turn {
            Turn::Own => (0, server_of(own).await?),
            // A full pooler in session mode accepts a client and serves it later.
            Turn::Other => match timeout_at(patience, server_of(other)).await {
                Ok(Ok(server)) => (1, server),
                Ok(Err(_)) | Err(_) => return Ok(None),
            },
        };
        let changed = servers[asked].as_ref().is_some_and(|last| *last != server);
        let shared = servers[1 - asked].as_ref() == Some(&server);
        pooled |= changed || shared;
        servers[asked] = Some(server);
    }
    Ok(Some(pooled))
}

/// The server process of a connection. Two servers behind one address can have processes of the same
/// number, but they started at different moments.
async fn server_of(client: &mut PgConnection) -> Result<String, sqlx::Error> {
    let who = "SELECT pg_catalog.pg_backend_pid() || ' ' || pg_catalog.pg_postmaster_start_time()";
    sqlx::raw_sql(who).fetch_one(client).await?.try_get(0)
}

/// Whether a pooler passes the names of prepared statements on as they are. One that renames them
/// prepares them again on each server connection that needs them.
async fn passes_names_on(client: &mut PgConnection) -> Result<bool, sqlx::Error> {
    // sqlx prepares this statement under a name, so it finds itself.
    const NAMED: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements \
                         WHERE name LIKE 'sqlx%' AND statement = $1)";
    // In one transaction: no other client sees the prepared statement, and it is dropped in the same
    // session.
    let mut transaction = client.begin().await?;
    let passed = sqlx::query_scalar(NAMED)
        .bind(NAMED)
        .fetch_one(&mut *transaction)
        .await?;
    transaction.clear_cached_statements().await?;
    transaction.rollback().await?;
    Ok(passed)
}

/// PgBouncer from 1.21 on, with `max_prepared_statements`.
fn unaware() -> Finding {
    Finding::new(
        Severity::Info,
        "postgres-transaction-pooler",
        "there is a pooler in transaction mode, and the backend is not configured for one: that works \
         as long as the pooler prepares statements again on each server connection",
        "keep `max_prepared_statements` above 0, or set `PostgresOptions::transaction_pooler(true)`",
    )
}

fn unexpected() -> Finding {
    Finding::new(
        Severity::Error,
        "postgres-transaction-pooler",
        "there is a pooler in transaction mode, and the backend is not configured for one: prepared \
         statements arrive at sessions that do not have them, and operations fail",
        "set `PostgresOptions::transaction_pooler(true)`, or connect to the server directly or by a \
         pooler in session mode",
    )
}

fn needless() -> Finding {
    Finding::new(
        Severity::Info,
        "postgres-no-pooler-seen",
        "the backend is configured for a pooler in transaction mode, and none was noticed: without \
         one, three of an operation's four round trips are needless",
        "remove `PostgresOptions::transaction_pooler` if there is no such pooler",
    )
}

fn unknown() -> Finding {
    Finding::new(
        Severity::Info,
        POOLER_UNCHECKED,
        "not checked whether there is a pooler in transaction mode: the check needs a second \
         connection, and none could be opened and used in time",
        "allow the role one connection more than the pool has",
    )
}
