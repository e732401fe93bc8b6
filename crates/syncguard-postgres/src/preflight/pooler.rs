//! Whether a pooler stands between, that changes the server's session from one transaction to the
//! next.

use sqlx::{Connection as _, PgConnection, Row as _};
use syncguard_core::{Finding, Severity};

use super::connection;
use crate::PostgresStore;
use crate::session::Session;

/// In which order two connections ask who serves them. To a pooler that goes round its servers
/// this is as good as no order at all.
const TURNS: [Turn; 10] = {
    use Turn::{Other, Own};
    [Own, Other, Other, Own, Own, Other, Own, Own, Other, Other]
};

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
    /// Only simple queries are sent: they leave nothing in a session.
    pub(super) async fn pooler(
        &self,
        session: &mut Session,
    ) -> Result<Option<Finding>, sqlx::Error> {
        let target = self.pool().connect_options();
        let Ok(mut other) = PgConnection::connect_with(&target).await else {
            return Ok(Some(unknown()));
        };
        let mut servers: [Option<String>; 2] = [None, None];
        let mut pooled = false;
        for turn in TURNS {
            let (asked, client) = match turn {
                Turn::Own => (0, connection(session)?),
                Turn::Other => (1, &mut other),
            };
            let server = server_of(client).await?;
            let changed = servers[asked].as_ref().is_some_and(|last| *last != server);
            let shared = servers[1 - asked].as_ref() == Some(&server);
            pooled |= changed || shared;
            servers[asked] = Some(server);
        }
        // Whether it ends in good order or not.
        let _ = other.close().await;
        Ok(match (pooled, self.settings().transaction_pooler) {
            (true, false) => Some(unexpected()),
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
         connection, and none could be opened",
        "allow one connection more than the pool holds",
    )
}
