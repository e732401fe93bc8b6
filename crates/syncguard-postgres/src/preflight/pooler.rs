//! Whether a pooler stands between, that changes the server's session from one transaction to the
//! next.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection, Row as _};
use syncguard_core::{Finding, Severity};
use tokio::time::{Instant, timeout_at};

use super::connection;
use crate::PostgresStore;
use crate::session::Session;

/// In which order two connections ask who serves them. To a pooler that goes round its servers
/// this is as good as no order at all.
const TURNS: [Turn; 10] = {
    use Turn::{Other, Own};
    [Own, Other, Other, Own, Own, Other, Own, Own, Other, Other]
};

/// How long the second connection may take in all: the operation's own deadline is not far.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Own,
    Other,
}

impl PostgresStore {
    /// Two connections that are open at the same time are served by two processes, and each by the
    /// same one for as long as it is open. Wherever that does not hold there is a pooler, which is
    /// certain; where it always holds, there is none, or it keeps to sessions, or it is so busy
    /// with others that chance had it so.
    ///
    /// To find that out, only simple queries are sent: they leave nothing in a session.
    pub(super) async fn pooler(
        &self,
        session: &mut Session,
    ) -> Result<Option<Finding>, sqlx::Error> {
        let target = self.connections().target();
        let patience = Instant::now() + PATIENCE;
        let connecting = PgConnection::connect_with(&target);
        let Ok(Ok(mut other)) = timeout_at(patience, connecting).await else {
            return Ok(Some(unknown()));
        };
        let mut servers: [Option<String>; 2] = [None, None];
        let mut pooled = false;
        for turn in TURNS {
            let (asked, server) = match turn {
                Turn::Own => (0, server_of(connection(session)?).await?),
                // A pooler in session mode that is full lets a client in, and serves it later.
                Turn::Other => match timeout_at(patience, server_of(&mut other)).await {
                    Ok(Ok(server)) => (1, server),
                    Ok(Err(_)) | Err(_) => return Ok(Some(unknown())),
                },
            };
            let changed = servers[asked].as_ref().is_some_and(|last| *last != server);
            let shared = servers[1 - asked].as_ref() == Some(&server);
            pooled |= changed || shared;
            servers[asked] = Some(server);
        }
        let told = self.settings().transaction_pooler;
        let passes_names = if pooled && !told {
            let asked = timeout_at(patience, passes_names_on(&mut other)).await;
            !matches!(asked, Ok(Ok(false)))
        } else {
            false
        };
        // Whether it ends in good order or not.
        let _ = timeout_at(patience, other.close()).await;
        Ok(match (pooled, told) {
            (true, false) if passes_names => Some(unexpected()),
            (true, false) => Some(unaware()),
            (false, true) => Some(needless()),
            (true, true) | (false, false) => None,
        })
    }
}

/// The process that serves a connection. Of two servers behind one address, processes may have one
/// number, but the servers did not start at one moment.
async fn server_of(client: &mut PgConnection) -> Result<String, sqlx::Error> {
    let who = "SELECT pg_backend_pid() || ' ' || pg_postmaster_start_time()";
    sqlx::raw_sql(who).fetch_one(client).await?.try_get(0)
}

/// Whether a pooler hands the names of prepared statements on as they are. One that gives them names
/// of its own prepares them again wherever they are used.
async fn passes_names_on(client: &mut PgConnection) -> Result<bool, sqlx::Error> {
    // The driver prepares it under a name, so that it finds itself.
    const NAMED: &str = "SELECT EXISTS (SELECT FROM pg_prepared_statements \
                         WHERE name LIKE 'sqlx%' AND statement = $1)";
    // In one transaction nobody else meets what is prepared, and it is gone with the right session.
    let mut transaction = client.begin().await?;
    let passed = sqlx::query_scalar(NAMED)
        .bind(NAMED)
        .fetch_one(&mut *transaction)
        .await?;
    transaction.clear_cached_statements().await?;
    transaction.rollback().await?;
    Ok(passed)
}

/// As PgBouncer does it from 1.21 on, with `max_prepared_statements`.
fn unaware() -> Finding {
    Finding::new(
        Severity::Info,
        "postgres-transaction-pooler",
        "a pooler in transaction mode stands between, and the store was not told: that works for as \
         long as the pooler prepares statements again on each session",
        "leave `max_prepared_statements` above 0, or set \
         `PostgresOptions::with_transaction_pooler(true)`",
    )
}

fn unexpected() -> Finding {
    Finding::new(
        Severity::Error,
        "postgres-transaction-pooler",
        "a pooler in transaction mode stands between, and the store was not told: prepared \
         statements end up on sessions that do not know them, and operations fail",
        "set `PostgresOptions::with_transaction_pooler(true)`, or connect past the pooler or to a \
         pool in session mode",
    )
}

fn needless() -> Finding {
    Finding::new(
        Severity::Info,
        "postgres-no-pooler-seen",
        "the store is set up for a pooler in transaction mode, and none was noticed: if there is \
         none, three of an operation's four round trips are for nothing",
        "leave out `PostgresOptions::with_transaction_pooler` where there is no such pooler",
    )
}

fn unknown() -> Finding {
    Finding::new(
        Severity::Info,
        "postgres-pooler-unchecked",
        "whether there is a pooler in transaction mode was not checked: that takes a second \
         connection, and none could be opened or used in time",
        "allow one connection more than the pool holds",
    )
}
