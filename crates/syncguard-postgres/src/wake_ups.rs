//! Wake-ups for callers that wait: notifications, on a connection of its own.
//!
//! A caller that waits for a key marks that by a shared advisory lock on the key's slot. A release
//! notifies if it cannot take that lock exclusively. If the mark cannot be taken, a release is under way.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Acquire as _, AssertSqlSafe, PgPool, Row as _, SqlSafeStr as _, SqlStr};
use syncguard_core::backend::{
    DEFAULT_OPERATION_TIMEOUT, IsLockedRequest, LockBackend as _, Refusals, Watch, WatchKey,
    Watcher, Watchers,
};
use syncguard_core::{ErrorCode, LockError, LockKey};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};

use crate::PostgresBackend;
use crate::error::{Stage, has_state, map, too_late};
use crate::preflight::share_servers;
use crate::wire::{SLOT, Session};

/// How often to check whether the connection works and is in use.
const TICK: Duration = Duration::from_secs(5);

/// The longest that the server may take to reply on this connection.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest that an attempt to open the connection may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(4);

/// The SQLSTATEs of servers and poolers that refuse: a permission is missing, a statement or a setting is
/// not supported, or it is a standby.
const REFUSED: &[&str] = &["08P01", "0A000", "25006", "42501"];

/// How long a caller waits for a release that is under way.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The most commands in one statement.
const BATCH: usize = 1_024;

/// The server ends the session of a client that is gone or reads nothing, and its marks with it.
const SETTINGS: &str = "SET tcp_user_timeout = 5000";

const UNMARK: &str = "SELECT pg_catalog.pg_advisory_unlock_shared($1, slot) \
                      FROM pg_catalog.unnest($2::pg_catalog.int4[]) AS slot";

const HEARTBEAT: &str = "SELECT pg_catalog.pg_is_in_recovery()";

/// The connection for wake-ups of a backend and its clones. It exists while a caller waits.
#[derive(Clone, Default)]
pub(crate) struct WakeUps(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    listening: Option<Arc<Listening>>,
    refusals: Refusals,
    closed: bool,
}

/// Why there is no connection.
enum Failure {
    Refused,
    Other(LockError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        if has_state(&error, REFUSED) {
            Self::Refused
        } else {
            Self::Other(map(error, Stage::Connecting { exhausted: false }))
        }
    }
}

/// A connection that receives notifications of releases.
struct Listening {
    commands: UnboundedSender<Command>,
}

enum Command {
    /// Marks that a caller waits for this storage key. The reply is `None` while the key is being released.
    Mark(String, oneshot::Sender<Option<Mark>>),
    /// Removes one mark of this slot.
    Unmark(i32),
    /// Closes the connection. The sender is dropped when it is closed.
    Close(oneshot::Sender<()>),
}

impl WakeUps {
    /// Watches a key; `None` if the server gives no wake-ups.
    pub(crate) async fn watch(
        &self,
        backend: &PostgresBackend,
        key: &LockKey,
        deadline: Instant,
    ) -> Result<Option<Watch>, LockError> {
        if backend.settings().transaction_pooler {
            return Ok(None);
        }
        let storage_key = backend.names().storage_key(key)?;
        let Some(listening) = self.listening(backend, deadline).await? else {
            return Ok(None);
        };
        let mut watched = Watched {
            backend: backend.clone(),
            key: key.clone(),
            storage_key,
            mark: None,
            looked: false,
            pause: FIRST_PAUSE,
            listening,
        };
        watched.mark().await?;
        Ok(Some(Watch::new(watched)))
    }

    /// The current connection, or a new one.
    async fn listening(
        &self,
        backend: &PostgresBackend,
        deadline: Instant,
    ) -> Result<Option<Arc<Listening>>, LockError> {
        let mut state = self.0.lock().await;
        if let Some(listening) = state.listening.as_ref().filter(|it| !it.is_lost()) {
            return Ok(Some(Arc::clone(listening)));
        }
        if state.closed || state.refusals.in_force() {
            return Ok(None);
        }
        let deadline = deadline.min(Instant::now() + OPEN_TIMEOUT);
        let connection = Connection::open(backend, Arc::downgrade(&self.0), deadline);
        let opened = timeout_at(deadline, connection);
        match opened.await {
            Ok(Ok((connection, commands))) => {
                tokio::spawn(connection.run());
                let listening = Arc::new(Listening { commands });
                state.listening = Some(Arc::clone(&listening));
                Ok(Some(listening))
            }
            Ok(Err(Failure::Refused)) => {
                state.refusals.refused("postgres");
                Ok(None)
            }
            failed => {
                // Otherwise all waiting callers would try, one after the other.
                state.refusals.unreachable();
                Err(match failed {
                    Ok(Err(Failure::Other(error))) => error,
                    _ => too_late(),
                })
            }
        }
    }

    /// Closes the connection for good. Callers that wait then poll.
    pub(crate) async fn close(&self, deadline: Instant) {
        // If the connection is still being opened, it is soon unused and closes.
        let Ok(mut state) = timeout_at(deadline, self.0.lock()).await else {
            return;
        };
        state.closed = true;
        let Some(listening) = state.listening.take() else {
            return;
        };
        drop(state);
        let (closed, when_closed) = oneshot::channel();
        if listening.commands.send(Command::Close(closed)).is_ok() {
            let _ = timeout_at(deadline, when_closed).await;
        }
    }
}

impl Listening {
    fn is_lost(&self) -> bool {
        self.commands.is_closed()
    }
}

/// The connection itself, in a task of its own.
struct Connection {
    listener: PgListener,
    /// Has that connection alone.
    pool: PgPool,
    class: i32,
    mark: SqlStr,
    commands: UnboundedReceiver<Command>,
    /// By it, a mark that is dropped asks to be removed.
    sender: WeakUnboundedSender<Command>,
    watchers: Watchers,
    state: Weak<Mutex<State>>,
}

impl Connection {
    async fn open(
        backend: &PostgresBackend,
        state: Weak<Mutex<State>>,
        deadline: Instant,
    ) -> Result<(Self, UnboundedSender<Command>), Failure> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(backend.connections().target());
        let mut listener = PgListener::connect_with(&pool).await?;
        // It would not restore the marks.
        listener.eager_reconnect(false);
        // A pooler in transaction mode would leave the marks behind in other clients' sessions.
        let session = Session::open(backend.connections(), deadline);
        let mut session = session.await.map_err(Failure::Other)?;
        let other = (&mut listener).acquire().await?;
        let pooled = share_servers(session.connection()?, other, deadline).await?;
        session.settle();
        drop(session);
        if pooled != Some(false) {
            return Err(Failure::Refused);
        }
        sqlx::raw_sql(SETTINGS).execute(&mut listener).await?;
        listener.listen(&backend.names().channel()).await?;
        let (sender, commands) = mpsc::unbounded_channel();
        let mark = format!(
            "SELECT slot, pg_catalog.pg_try_advisory_lock_shared($1, slot) FROM \
             (SELECT {SLOT} AS slot FROM pg_catalog.unnest($2::pg_catalog.text[]) AS key) AS slots"
        );
        let connection = Self {
            listener,
            pool,
            class: backend.names().class(),
            // Only a constant was filled in.
            mark: AssertSqlSafe(mark).into_sql_str(),
            commands,
            sender: sender.downgrade(),
            watchers: Watchers::default(),
            state,
        };
        Ok((connection, sender))
    }

    async fn run(mut self) {
        let closed = self.serve().await;
        // In this order: a watch that is woken then finds that it is lost.
        self.commands.close();
        self.watchers.wake_all();
        drop(self.commands);
        drop(self.listener);
        // If the server is gone, the connection ends with it.
        let _ = timeout(REPLY_TIMEOUT, self.pool.close()).await;
        drop(closed);
    }

    /// Wakes watches until the connection is lost, closed, or unused for a while.
    async fn serve(&mut self) -> Option<oneshot::Sender<()>> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                notification = self.listener.try_recv() => {
                    self.watchers.wake(notification.ok()??.payload());
                }
                received = self.commands.recv_many(&mut batch, BATCH) => {
                    if received == 0 {
                        return None;
                    }
                    let obeyed = timeout(REPLY_TIMEOUT * 2, self.obey(&mut batch)).await;
                    match obeyed.ok()? {
                        Ok(None) => {}
                        Ok(close) => return close,
                        Err(error) => {
                            if has_state(&error, REFUSED) && let Some(state) = self.state.upgrade() {
                                state.lock().await.refusals.refused("postgres");
                            }
                            return None;
                        }
                    }
                }
                _ = ticks.tick() => {
                    if self.is_unused().await || !self.is_alive().await {
                        return None;
                    }
                }
            }
        }
    }

    /// Sets marks before it removes others: a slot that stays marked has no gap in between.
    async fn obey(
        &mut self,
        batch: &mut Vec<Command>,
    ) -> Result<Option<oneshot::Sender<()>>, sqlx::Error> {
        let (mut keys, mut replies, mut unmarked) = (Vec::new(), Vec::new(), Vec::new());
        for command in batch.drain(..) {
            match command {
                Command::Mark(key, reply) => {
                    keys.push(key);
                    replies.push(reply);
                }
                Command::Unmark(slot) => unmarked.push(slot),
                Command::Close(closed) => return Ok(Some(closed)),
            }
        }
        if !keys.is_empty() {
            let marks = sqlx::query(self.mark.clone()).bind(self.class).bind(keys);
            let marks = marks.fetch_all(&mut self.listener).await?;
            for (row, reply) in marks.into_iter().zip(replies) {
                let slot = row.try_get(0)?;
                let mark = row.try_get(1)?;
                // If the caller has left, the mark is dropped, which removes it.
                let _ = reply.send(if mark { self.marked(slot) } else { None });
            }
        }
        if !unmarked.is_empty() {
            let unmark = sqlx::query(UNMARK).bind(self.class).bind(unmarked);
            unmark.fetch_all(&mut self.listener).await?;
        }
        Ok(None)
    }

    /// No notification of this slot has been read since it was marked.
    fn marked(&self, slot: i32) -> Option<Mark> {
        Some(Mark {
            slot,
            watcher: self.watchers.watch(&slot.to_string()),
            commands: self.sender.upgrade()?,
        })
    }

    async fn is_unused(&self) -> bool {
        let Some(state) = self.state.upgrade() else {
            return true;
        };
        let mut state = state.lock().await;
        // Each watch has a reference, too.
        let is_used = |listening: &Arc<Listening>| Arc::strong_count(listening) > 1;
        if state.listening.as_ref().is_some_and(is_used) {
            return false;
        }
        state.listening = None;
        true
    }

    /// Whether the server replies, and is not a standby.
    async fn is_alive(&mut self) -> bool {
        let asked = sqlx::query_scalar(HEARTBEAT).fetch_one(&mut self.listener);
        matches!(timeout(REPLY_TIMEOUT, asked).await, Ok(Ok(false)))
    }
}

/// The mark that a caller waits for a key of a slot. Dropping it removes the mark.
struct Mark {
    slot: i32,
    watcher: Watcher,
    commands: UnboundedSender<Command>,
}

impl Drop for Mark {
    fn drop(&mut self) {
        // If the connection is closed, there are no marks.
        let _ = self.commands.send(Command::Unmark(self.slot));
    }
}

/// A lock that a caller waits for.
struct Watched {
    backend: PostgresBackend,
    key: LockKey,
    storage_key: String,
    mark: Option<Mark>,
    /// The key was held once the mark was in place.
    looked: bool,
    /// For a release that is under way.
    pause: Duration,
    listening: Arc<Listening>,
}

impl Watched {
    /// Tries to mark the key. A mark that is in place stays.
    async fn mark(&mut self) -> Result<(), LockError> {
        let (reply, replied) = oneshot::channel();
        let mark = Command::Mark(self.storage_key.clone(), reply);
        // If the command cannot be sent, the reply is dropped with it.
        let _ = self.listening.commands.send(mark);
        self.mark = replied.await.map_err(|_| lost())?;
        Ok(())
    }
}

impl WatchKey for Watched {
    async fn changed(&mut self) -> Result<(), LockError> {
        if self.mark.is_none() {
            self.mark().await?;
        }
        let Some(mark) = &mut self.mark else {
            sleep(self.pause).await;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            return Ok(());
        };
        if !self.looked {
            let deadline = Instant::now() + DEFAULT_OPERATION_TIMEOUT;
            let asked = IsLockedRequest::new(&self.key, deadline);
            let is_locked = self.backend.is_locked(asked).await?;
            // From now on a notification reports the release.
            self.looked = true;
            if !is_locked {
                return Ok(());
            }
        }
        mark.watcher.woken().await;
        if self.listening.is_lost() {
            return Err(lost());
        }
        Ok(())
    }
}

fn lost() -> LockError {
    LockError::new(
        ErrorCode::ServiceUnavailable,
        "the connection for wake-ups was lost",
    )
}
