//! [`Hanging`]: what is done about statements that still wait in the server when their callers have left.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use syncguard_core::{ErrorCode, LockError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::connections::permits;

/// The longest that it may take to end a server process, without the wait for other calls.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between two checks whether the process has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// For how long after a commit hung writes leave some connections to reads.
const CAUTION: Duration = Duration::from_secs(30);

/// One of this many connections is left to reads.
const LEFT_TO_READS: usize = 5;

/// Selects a [`ServerProcess`].
macro_rules! server_process {
    () => {
        "SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_postmaster_start_time(), pg_catalog.now()"
    };
}

pub(super) use server_process;

/// Which process of which server runs a transaction, and since when.
#[derive(Debug, Clone)]
pub(super) struct ServerProcess {
    pid: i32,
    /// When the server was started: behind the same address there may be another one later.
    server: String,
    /// When the transaction began in which the process was asked for.
    began: String,
}

impl ServerProcess {
    /// From a row of `server_process!`, of a simple query: there the server writes times as texts, in the format that
    /// the driver sets. If an application sets another `DateStyle` in its pool, the process may not be recognized.
    pub(super) fn of(row: &PgRow) -> Result<Arc<Self>, sqlx::Error> {
        Ok(Arc::new(Self {
            pid: row.try_get(0)?,
            server: row.try_get_unchecked(1)?,
            began: row.try_get_unchecked(2)?,
        }))
    }
}

/// By what a process is recognized that still runs what was sent to it. Behind a pooler it may run another
/// client's statement by now.
#[derive(Debug)]
pub(super) enum Sent {
    /// The transaction in which the process was asked for.
    Transaction,
    /// A statement with this name, later.
    Statement(Arc<str>),
}

pub(super) struct Hanging {
    /// Held by the call that ends a process: all such calls together use one extra connection at a time. The value is
    /// when such a call last timed out without a reply.
    turn: tokio::sync::Mutex<Option<Instant>>,
    /// When a process was last ended whose commit hung.
    last: Mutex<Option<Instant>>,
    /// How many writes may have a connection while commits hang.
    writes: Arc<Semaphore>,
}

impl Hanging {
    /// For a pool of `limit` connections.
    pub(super) fn new(limit: u32) -> Self {
        let limit = permits(limit);
        let left_to_reads = limit.div_ceil(LEFT_TO_READS).min(limit.saturating_sub(1));
        Self {
            turn: tokio::sync::Mutex::default(),
            last: Mutex::default(),
            writes: Arc::new(Semaphore::new(limit - left_to_reads)),
        }
    }

    /// The permission of a write to use a connection; `None` if commits do not hang.
    pub(super) async fn permit(
        &self,
        deadline: Instant,
    ) -> Result<Option<OwnedSemaphorePermit>, LockError> {
        if !self.were_seen() {
            return Ok(None);
        }
        let permit = Arc::clone(&self.writes).acquire_owned();
        match timeout_at(deadline, permit).await {
            Ok(permit) => Ok(permit.ok()),
            Err(_) => Err(LockError::new(
                ErrorCode::ServiceUnavailable,
                "commits waited for a synchronous standby within the last 30 s, so writes may not use all connections",
            )),
        }
    }

    pub(super) fn were_seen(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < CAUTION)
    }

    /// Ends a server process whose caller has left, if it waits for a standby or for another transaction. Returns
    /// whether it ended one.
    pub(super) async fn end(
        &self,
        process: &ServerProcess,
        sent: &Sent,
        target: &PgConnectOptions,
    ) -> bool {
        let end = end(process, sent);
        let mut ended = None;
        let since = Instant::now();
        let mut unanswered = self.turn.lock().await;
        // Otherwise each of the calls that wait would keep its place for another timeout.
        if unanswered.is_some_and(|unanswered| unanswered > since) {
            return false;
        }
        let mut answered = false;
        let ending = async {
            let mut extra = PgConnection::connect_with(target).await?;
            loop {
                // All texts in it are quoted. A simple query: poolers pass it on whole.
                let query = sqlx::raw_sql(AssertSqlSafe(end.as_str()));
                let row = query.fetch_optional(&mut extra).await?;
                answered = true;
                let Some(row) = row else { break };
                ended = Some(row.try_get(0)?);
                sleep(PAUSE).await;
            }
            // It does not matter whether it closes in an orderly way.
            let _ = extra.close().await;
            Ok::<_, sqlx::Error>(())
        };
        // If it fails, the process stays until what it waits for has come.
        let in_time = timeout(END_TIMEOUT, ending).await;
        if in_time.is_err() && !answered {
            *unanswered = Some(Instant::now());
        }
        if ended == Some(true) {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some(Instant::now());
        }
        ended.is_some()
    }
}

/// Ends the process. A commit that waits for a standby then takes effect on this server.
///
/// To cancel the statement would be wrong: the server would report the commit as successful.
fn end(process: &ServerProcess, sent: &Sent) -> String {
    let ServerProcess { pid, server, began } = process;
    let (server, began) = (quoted(server), quoted(began));
    let still_runs = match sent {
        Sent::Transaction => format!("xact_start = {began}"),
        Sent::Statement(name) => format!(
            "xact_start >= {began} AND pg_catalog.starts_with(query, {})",
            quoted(&tag(name))
        ),
    };
    format!(
        "SELECT wait_event = 'SyncRep', pg_catalog.pg_terminate_backend(pid) \
         FROM pg_catalog.pg_stat_activity \
         WHERE pid = {pid} AND pg_catalog.pg_postmaster_start_time() = {server} AND {still_runs} \
         AND (wait_event = 'SyncRep' OR wait_event_type = 'Lock')"
    )
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// How the text of a statement begins: the server shows little more than the beginning.
pub(super) fn tag(name: &str) -> String {
    format!("/* {name} */")
}

#[cfg(test)]
mod tests {
    use syncguard_testkit::PostgresServer;
    use tokio::net::TcpListener;

    use super::*;

    const BUSY: &str = "SELECT pg_catalog.pg_advisory_xact_lock(1)";

    /// A server, how to connect to it, and a session that holds what [`BUSY`] waits for.
    async fn busy_server() -> (PostgresServer, PgConnectOptions, PgConnection) {
        let server = PostgresServer::start().unwrap();
        let target: PgConnectOptions = server.url().parse().unwrap();
        let mut busy = PgConnection::connect_with(&target).await.unwrap();
        sqlx::raw_sql("BEGIN").execute(&mut busy).await.unwrap();
        sqlx::raw_sql(BUSY).execute(&mut busy).await.unwrap();
        (server, target, busy)
    }

    async fn process_of(session: &mut PgConnection, before: &str) -> Arc<ServerProcess> {
        let asked = AssertSqlSafe(format!("{before}; {}", server_process!()));
        let row = sqlx::raw_sql(asked).fetch_one(session).await.unwrap();
        ServerProcess::of(&row).unwrap()
    }

    #[tokio::test]
    async fn no_process_is_ended_but_the_one_that_still_runs_what_was_sent() {
        let (_server, target, _busy) = busy_server().await;
        let connect = async || PgConnection::connect_with(&target).await.unwrap();
        let hanging = Hanging::new(10);
        let named = |name: &str| Sent::Statement(name.into());
        for begin in ["", "BEGIN"] {
            let mut session = connect().await;
            let earlier = process_of(&mut session, "").await;
            let process = process_of(&mut session, begin).await;
            let pid = process.pid;
            let sent = match begin {
                "" => named("ours"),
                _ => Sent::Transaction,
            };
            let hung = tokio::spawn(async move {
                let text = format!("{} {BUSY}", tag("ours"));
                let query = sqlx::query(AssertSqlSafe(text));
                query.execute(&mut session).await
            });
            let waits = format!(
                "SELECT FROM pg_catalog.pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'"
            );
            let started = Instant::now();
            let mut observer = connect().await;
            while {
                let asked = sqlx::raw_sql(AssertSqlSafe(waits.as_str()));
                asked.fetch_optional(&mut observer).await.unwrap().is_none()
            } {
                assert!(started.elapsed() < Duration::from_mins(1), "it never waits");
                sleep(PAUSE).await;
            }
            let another = "2100-01-01 00:00:00+00".to_owned();
            let (mut elsewhere, mut later) = ((*process).clone(), (*process).clone());
            elsewhere.server = another.clone();
            later.began = another;
            assert!(!hanging.end(&elsewhere, &sent, &target).await);
            assert!(!hanging.end(&later, &sent, &target).await);
            match begin {
                "" => assert!(!hanging.end(&process, &named("theirs"), &target).await),
                _ => assert!(!hanging.end(&earlier, &sent, &target).await),
            }
            assert!(hanging.end(&process, &sent, &target).await);
            assert!(hung.await.unwrap().is_err());
        }
        assert!(!hanging.were_seen(), "no commit hung");
    }

    #[tokio::test]
    async fn the_wait_for_other_calls_does_not_count() {
        let (_server, target, _busy) = busy_server().await;
        let mut session = PgConnection::connect_with(&target).await.unwrap();
        let process = process_of(&mut session, "BEGIN").await;
        let hung = tokio::spawn(async move { sqlx::raw_sql(BUSY).execute(&mut session).await });
        let hanging = Hanging::new(10);
        let turn = hanging.turn.lock().await;
        let others = async {
            sleep(END_TIMEOUT + Duration::from_secs(1)).await;
            drop(turn);
        };
        let (ended, ()) = tokio::join!(hanging.end(&process, &Sent::Transaction, &target), others);
        assert!(ended);
        assert!(hung.await.unwrap().is_err());
    }

    #[tokio::test]
    async fn calls_that_waited_for_one_that_got_no_reply_do_not_try() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let target = PgConnectOptions::new().host("127.0.0.1").port(port);
        let process = ServerProcess {
            pid: 1,
            server: String::new(),
            began: String::new(),
        };
        let hanging = Hanging::new(10);
        let end = || hanging.end(&process, &Sent::Transaction, &target);
        let ends = async { tokio::join!(end(), end(), end()) };
        let mut connections = Vec::new();
        let accepts = async {
            loop {
                connections.push(silent.accept().await.unwrap());
            }
        };
        tokio::select! {
            ended = ends => assert_eq!(ended, (false, false, false)),
            () = accepts => {}
        }
        assert_eq!(connections.len(), 1);
    }
}
