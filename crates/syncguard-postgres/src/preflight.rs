//! Checks whether a server is configured for locks. Reads catalogs and settings, and writes nothing.

mod pooler;
mod tables;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use syncguard_core::backend::{LockBackend as _, WatchRequest};
use syncguard_core::{Finding, LockError, LockKey, Severity};
use tokio::time::{Instant, timeout_at};

pub(crate) use self::pooler::share_servers;

use self::pooler::POOLER_UNCHECKED;
use crate::PostgresBackend;
use crate::error::{Stage, map};
use crate::wire::Session;

impl PostgresBackend {
    pub(crate) async fn look_at_configuration(
        &self,
        deadline: Instant,
    ) -> Result<Vec<Finding>, LockError> {
        let reading = |error| map(error, Stage::Reading);
        let mut session = Session::open(self.connections(), deadline).await?;
        let mut findings = Vec::new();
        findings.extend(self.pooler(&mut session, deadline).await.map_err(reading)?);
        // In one transaction, for poolers in transaction mode.
        session.begin().await.map_err(reading)?;
        findings.extend(server(&mut session).await.map_err(reading)?);
        findings.extend(self.tables(&mut session).await.map_err(reading)?);
        session.commit().await.map_err(reading)?;
        session.settle();
        drop(session);
        // If this fails, the error is the reason.
        let is_error = |finding: &Finding| finding.severity() == Severity::Error;
        if !findings.iter().any(is_error) && !self.gives_wake_ups(&findings, deadline).await? {
            findings.push(no_wake_ups());
        }
        Ok(findings)
    }

    async fn gives_wake_ups(
        &self,
        findings: &[Finding],
        deadline: Instant,
    ) -> Result<bool, LockError> {
        let no_second = |finding: &Finding| finding.code() == POOLER_UNCHECKED;
        if findings.iter().any(no_second) {
            return Ok(false);
        }
        let key = LockKey::new("preflight")?;
        let now = Instant::now();
        // Early enough that the findings are still reported.
        let deadline = now + deadline.saturating_duration_since(now) / 2;
        let watch = self.watch(WatchRequest::new(&key, deadline));
        Ok(matches!(timeout_at(deadline, watch).await, Ok(Ok(Some(_)))))
    }
}

async fn server(session: &mut Session) -> Result<Vec<Finding>, sqlx::Error> {
    let row = sqlx::query(include_str!("sql/preflight_server.sql"))
        .persistent(false)
        .fetch_one(connection(session)?)
        .await?;
    let is = |column: &str| row.try_get::<bool, _>(column);
    let mut findings = Vec::new();
    if is("standby")? {
        findings.push(Finding::new(
            Severity::Error,
            "postgres-standby",
            "the server is a standby: operations that write fail",
            "connect to the primary, by an address that always leads to it",
        ));
    } else if is("read_only")? {
        findings.push(Finding::new(
            Severity::Error,
            "postgres-read-only",
            "transactions are read-only by default here: operations that write fail",
            "set `default_transaction_read_only` to off for this role and database",
        ));
    }
    if is("asynchronous_commit")? {
        findings.push(Finding::new(
            Severity::Warning,
            "postgres-asynchronous-commit",
            "`synchronous_commit` is off: a crash of the server loses the newest locks, and their \
             fences can be granted again",
            "ALTER ROLE <role> SET synchronous_commit = on",
        ));
    }
    if is("unsynced")? {
        findings.push(Finding::new(
            Severity::Warning,
            "postgres-fsync-off",
            "`fsync` is off: a crash of the machine can lose or damage all data, locks and fences \
             included",
            "set `fsync = on`",
        ));
    }
    if is("other_encoding")? {
        findings.push(Finding::new(
            Severity::Warning,
            "postgres-encoding",
            "the database's encoding is not UTF8: keys with characters that it lacks cannot be locked",
            "use a database with the encoding UTF8, or only keys of ASCII characters",
        ));
    }
    if let Some(snapshot) = row.try_get::<Option<String>, _>("old_snapshot")? {
        let (pid, seconds) = snapshot.split_once(' ').unwrap_or((&snapshot, "?"));
        findings.push(Finding::new(
            Severity::Info,
            "postgres-old-snapshot",
            format!(
                "the server process {pid} has had a transaction open for {seconds} s: until it ends, \
                 deleted rows stay, and operations on a busy key become slower with every grant"
            ),
            "end long transactions, such as reports and sessions that are idle in transaction",
        ));
    }
    if let Some(pid) = row.try_get::<Option<String>, _>("number_holder")? {
        findings.push(Finding::new(
            Severity::Info,
            "postgres-shared-lock-numbers",
            format!(
                "the server process {pid} holds an advisory lock of one number, as acquires use them: \
                 acquires of keys whose hash is that number fail until it releases the lock"
            ),
            "let the application use advisory locks of two numbers, such as pg_advisory_lock(1, 42), or \
             keep the locks in a database of their own",
        ));
    }
    if !is("may_take_turns")? {
        findings.push(Finding::new(
            Severity::Error,
            "postgres-missing-permissions",
            "the role may not call the advisory-lock functions: no lock can be acquired",
            "GRANT EXECUTE ON FUNCTION pg_advisory_xact_lock(bigint), \
             pg_try_advisory_xact_lock(bigint) TO <role>",
        ));
    }
    Ok(findings)
}

fn no_wake_ups() -> Finding {
    Finding::new(
        Severity::Info,
        "postgres-wake-ups-unavailable",
        "the backend cannot listen for released locks: callers that wait poll, once a second at the \
         least",
        "connect to the server directly or by a pooler in session mode, allow the role one connection \
         more than the pool has, and let it call the advisory-lock functions",
    )
}

fn connection(session: &mut Session) -> Result<&mut PgConnection, sqlx::Error> {
    session.connection()
}

fn text(row: &PgRow, column: &str) -> Result<String, sqlx::Error> {
    row.try_get(column)
}
