//! [`PostgresBackend`]: the contract, one statement per call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, CloseRequest, ExtendRequest, FailureReason,
    IsLockedRequest, ListPage, ListPosition, ListRequest, LockBackend, Lookup, LookupRequest,
    PreflightRequest, PurgeRequest, ReleaseRequest, Throttle, TimeAuthority, Watch, WatchRequest,
};
use syncguard_core::{
    ErrorCode, ExtendResult, Fence, Finding, LockError, LockInfoDebug, ReleaseResult,
};
use tokio::time::Instant;

use crate::error::is_of_state;
use crate::names::Names;
use crate::options::Settings;
use crate::record::{read_grant, read_info, read_locked, read_page};
use crate::wake_ups::WakeUps;
use crate::wire::{Connections, Reply, Statement, Statements, Unanswered, Value, query};

/// How many times an operation is sent while the server leaves it undecided.
const ATTEMPTS: usize = 3;

/// The SQLSTATEs of a release that may not notify.
const MAY_NOT_NOTIFY: &[&str] = &["42501"];

/// The SQLSTATEs of a release whose notification has no room: in the queue, or for its advisory lock.
const NO_ROOM_TO_NOTIFY: &[&str] = &["53200", "54000"];

/// A store of locks in a PostgreSQL database. Clones share their connections.
///
/// Pass it to [`Locks::new`](syncguard_core::Locks::new).
#[derive(Clone)]
pub struct PostgresBackend {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Connections,
    settings: Settings,
    statements: Statements,
    unanswered: Unanswered,
    wake_ups: WakeUps,
    /// The role may not notify: releases wake nobody.
    may_not_notify: AtomicBool,
    cleanups: Throttle,
}

impl PostgresBackend {
    pub(crate) fn new(connections: Connections, settings: Settings) -> Self {
        let statements = Statements::new(&settings.names, settings.asynchronous_releases);
        Self {
            inner: Arc::new(Inner {
                connections,
                settings,
                statements,
                unanswered: Unanswered::default(),
                wake_ups: WakeUps::default(),
                may_not_notify: AtomicBool::new(false),
                cleanups: Throttle::of_cleanups(),
            }),
        }
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.inner.connections
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    pub(crate) fn names(&self) -> &Names {
        &self.inner.settings.names
    }

    pub(crate) fn statements(&self) -> &Statements {
        &self.inner.statements
    }

    pub(crate) fn cleanups(&self) -> &Throttle {
        &self.inner.cleanups
    }

    pub(crate) async fn query(
        &self,
        statement: &Statement,
        subject: &str,
        values: &[Value<'_>],
        deadline: Instant,
    ) -> Result<Reply, LockError> {
        let pooled = self.inner.settings.transaction_pooler;
        let connections = &self.inner.connections;
        query(connections, pooled, statement, subject, values, deadline).await
    }

    /// Deletes the lock of an id, and if possible wakes the callers that wait for its key.
    async fn delete(&self, id: &str, deadline: Instant) -> Result<Reply, LockError> {
        let (statements, may_not) = (self.statements(), &self.inner.may_not_notify);
        let silently = async || {
            let statement = &statements.release_silently;
            self.query(statement, id, &[], deadline).await
        };
        if may_not.load(Ordering::Relaxed) {
            return silently().await;
        }
        match self.query(&statements.release, id, &[], deadline).await {
            // The server checks this before it deletes anything.
            Err(error) if is_of_state(&error, MAY_NOT_NOTIFY) => {
                let reply = silently().await?;
                may_not.store(true, Ordering::Relaxed);
                Ok(reply)
            }
            // The statement was rolled back.
            Err(error) if is_of_state(&error, NO_ROOM_TO_NOTIFY) => silently().await,
            reply => reply,
        }
    }
}

impl LockBackend for PostgresBackend {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new("postgres", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        let AcquireRequest { key, id, ttl, .. } = request;
        let storage_key = self.names().storage_key(key)?;
        let fence_key = self.names().fence_key(&storage_key)?;
        let values = [
            Value::Text(&storage_key),
            Value::Text(&fence_key),
            Value::Number(ttl.as_millis()),
            Value::Text(key.as_str()),
        ];
        let started = Instant::now();
        let statements = self.statements();
        let repeated = std::iter::repeat_n(&statements.acquire, ATTEMPTS);
        for statement in std::iter::once(&statements.acquire_free).chain(repeated) {
            let unanswered = &self.inner.unanswered;
            let sending = unanswered.sending(id, &storage_key, ttl, request.deadline);
            let reply = self
                .query(statement, id.as_str(), &values, request.deadline)
                .await;
            if !reply.as_ref().is_err_and(LockError::outcome_unknown) {
                sending.answered();
            }
            let reply = reply?;
            match reply.verdict()? {
                "granted" => return read_grant(&reply, id).map(AcquireResult::Acquired),
                "locked" => return read_locked(&reply),
                "exhausted" => return Err(Fence::exhausted()),
                // The acquire queued for as long as its lease would have lasted: that is contention.
                "waited" if started.elapsed() >= ttl.as_duration() => break,
                "waited" | "again" => {}
                _ => return Err(reply.unreadable()),
            }
        }
        Ok(AcquireResult::locked())
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        let subject = request.id.as_str();
        let unanswered = self.inner.unanswered.find(request.id);
        let mut in_flight = false;
        if let Some((storage_key, given_up)) = &unanswered {
            let given_up_ms = i64::try_from(given_up.as_millis()).unwrap_or(i64::MAX);
            let values = [Value::Text(storage_key), Value::Number(given_up_ms)];
            let reply = self
                .query(
                    &self.statements().in_flight,
                    subject,
                    &values,
                    request.deadline,
                )
                .await;
            in_flight = match reply {
                Ok(reply) => reply.get("in_flight")?,
                // The role may not read the server's activity.
                Err(error) if error.code() == ErrorCode::AuthFailed => false,
                Err(error) => return Err(error),
            };
        }
        let reply = self.delete(subject, request.deadline).await?;
        let result = match reply.verdict()? {
            "released" => ReleaseResult::Released,
            _ => ReleaseResult::not_held(reason(&reply)?),
        };
        if in_flight && !result.is_released() {
            return Err(LockError::new(
                ErrorCode::ServiceUnavailable,
                "an acquire of this key is still running in the server; \
                 its commit may be waiting for a synchronous standby",
            ));
        }
        if unanswered.is_some() {
            let unanswered = &self.inner.unanswered;
            unanswered.settled(request.id, result.is_released());
        }
        Ok(result)
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        let statement = &self.statements().extend;
        let values = [Value::Number(request.ttl.as_millis())];
        // When repeated, the extend finds the lease past its expiry, and takes the advisory lock.
        for _ in 0..ATTEMPTS {
            let reply = self
                .query(statement, request.id.as_str(), &values, request.deadline)
                .await?;
            match reply.verdict()? {
                "extended" => return reply.get("expires_at_ms").map(ExtendResult::extended),
                "again" => {}
                _ => return reason(&reply).map(ExtendResult::not_held),
            }
        }
        Ok(ExtendResult::not_held(None))
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        let reply = match request.by {
            Lookup::Key(key) => {
                let storage_key = self.names().storage_key(key)?;
                let statement = &self.statements().lookup_by_key;
                self.query(statement, &storage_key, &[], request.deadline)
                    .await?
            }
            Lookup::Id(id) => {
                let statement = &self.statements().lookup_by_lock_id;
                self.query(statement, id.as_str(), &[], request.deadline)
                    .await?
            }
        };
        read_info(&reply)
    }

    async fn is_locked(&self, request: IsLockedRequest<'_>) -> Result<bool, LockError> {
        let storage_key = self.names().storage_key(request.key)?;
        let statement = &self.statements().is_locked;
        let reply = self
            .query(statement, &storage_key, &[], request.deadline)
            .await?;
        match reply.verdict()? {
            "held" => Ok(true),
            "free" => Ok(false),
            "stale" => {
                if self.settings().cleanup_in_is_locked {
                    self.clean_up(storage_key);
                }
                Ok(false)
            }
            _ => Err(reply.unreadable()),
        }
    }

    /// Opens one more connection, which stays open while a caller waits.
    async fn watch(&self, request: WatchRequest<'_>) -> Result<Option<Watch>, LockError> {
        let wake_ups = &self.inner.wake_ups;
        wake_ups.watch(self, request.key, request.deadline).await
    }

    /// Reads by the primary key. A page reads up to 1,000 rows, expired ones and those without the prefix
    /// included: with any prefix a whole listing reads the table once.
    async fn list(&self, request: ListRequest<'_>) -> Result<Option<ListPage>, LockError> {
        // No storage key is empty.
        let behind = request.after.map_or("", ListPosition::as_str);
        let values = [
            Value::Text(&self.names().storage_prefix()?),
            Value::Text(request.prefix.as_str()),
            Value::Number(request.limit.into()),
        ];
        let statement = &self.statements().list;
        let reply = self
            .query(statement, behind, &values, request.deadline)
            .await?;
        let own = read_page(&reply)?
            .into_iter()
            .filter_map(|(storage_key, lock)| {
                let own = self.names().storage_key(&lock.key);
                own.is_ok_and(|own| own == storage_key).then_some(lock)
            });
        let next: Option<String> = reply.get("next")?;
        let next = next.map(ListPosition::new);
        Ok(Some(ListPage::new(own.collect(), next)))
    }

    /// Reads the catalogs and the settings in a session of the pool. To find out whether there is a
    /// pooler, it opens one more connection and closes it.
    async fn preflight(&self, request: PreflightRequest) -> Result<Vec<Finding>, LockError> {
        self.look_at_configuration(request.deadline).await
    }

    /// Reads the table until it has found `limit` rows. It skips rows that other transactions have
    /// locked.
    async fn purge_expired(&self, request: PurgeRequest) -> Result<u64, LockError> {
        let statement = &self.statements().purge;
        let values = [Value::Number(request.limit.into())];
        let reply = self
            .query(statement, "all", &values, request.deadline)
            .await?;
        let deleted: i64 = reply.get("deleted")?;
        u64::try_from(deleted).map_err(|_| reply.unreadable())
    }

    /// Closes the backend's own connections. A pool that the application passed stays open.
    async fn close(&self, request: CloseRequest) -> Result<(), LockError> {
        self.inner.wake_ups.close(request.deadline).await;
        self.connections().close(request.deadline).await
    }
}

/// Why a release or an extend found nothing.
fn reason(reply: &Reply) -> Result<Option<FailureReason>, LockError> {
    match reply.verdict()? {
        "expired" => Ok(Some(FailureReason::Expired)),
        "absent" => Ok(Some(FailureReason::NotFound)),
        _ => Err(reply.unreadable()),
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (names, settings) = (self.names(), self.settings());
        f.debug_struct("PostgresBackend")
            .field("locks_table", &format_args!("{}", names.locks))
            .field(
                "fence_counters_table",
                &format_args!("{}", names.fence_counters),
            )
            .field("prefix", &names.prefix)
            .field("transaction_pooler", &settings.transaction_pooler)
            .field("asynchronous_releases", &settings.asynchronous_releases)
            .field("cleanup_in_is_locked", &settings.cleanup_in_is_locked)
            .field("pool", self.connections())
            .finish_non_exhaustive()
    }
}
