//! [`HangingCommits`]: what a pool does while commits wait for a synchronous standby that is away.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection as _, Row as _};
use syncguard_core::{ErrorCode, LockError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

/// The longest that it may take to end a server process, the wait for others included.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// For how long after a commit hung writes leave some connections to reads.
const CAUTION: Duration = Duration::from_secs(30);

/// One of this many connections is left to reads.
const LEFT_TO_READS: usize = 5;

/// The server process of a session. None behind a pooler that drops the session's settings: there it can
/// be another client's at the next moment.
const PROCESS: &str = "SELECT pg_catalog.pg_backend_pid() \
                       WHERE pg_catalog.current_setting('enable_seqscan') = 'off'";

/// Ends a server process whose commit waits for a standby. The commit then takes effect on this server.
///
/// To cancel the statement would be wrong: the server would report the commit as successful.
const END: &str = "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity \
                   WHERE pid = $1 AND usename = SESSION_USER AND wait_event = 'SyncRep'";

pub(super) struct HangingCommits {
    /// Held by the one that ends a process: they use one connection beside the pool at a time.
    turn: tokio::sync::Mutex<()>,
    /// When a process was last ended.
    last: Mutex<Option<Instant>>,
    /// As many writes may have a connection while commits hang.
    writes: Arc<Semaphore>,
}

impl HangingCommits {
    /// For a pool of `limit` connections.
    pub(super) fn new(limit: usize) -> Self {
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

    /// Ends a server process whose caller has left, if its commit waits for a standby. Whether it did.
    pub(super) async fn end(&self, process: i32, target: &PgConnectOptions) -> bool {
        let ended = async {
            let _turn = self.turn.lock().await;
            let mut beside = PgConnection::connect_with(target).await?;
            let ended = sqlx::query(END).bind(process).fetch_optional(&mut beside);
            let ended = ended.await?.is_some();
            // It does not matter whether it closes in an orderly way.
            let _ = beside.close().await;
            Ok::<_, sqlx::Error>(ended)
        };
        // If it fails, the process stays until the standby is back.
        let ended = matches!(timeout(END_TIMEOUT, ended).await, Ok(Ok(true)));
        if ended {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some(Instant::now());
        }
        ended
    }
}

/// The number of the server process of a session, if it stays that of the session.
pub(super) async fn process_of(session: &mut PgConnection) -> Result<Option<i32>, sqlx::Error> {
    let row = sqlx::raw_sql(PROCESS).fetch_optional(session).await?;
    row.map(|row| row.try_get(0)).transpose()
}
