//! [`SqliteBackend`]: the contract, one transaction per call.

use std::fmt;
use std::sync::Arc;

use sqlx::sqlite::SqliteRow;
use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, CloseRequest, ExtendRequest, IsLockedRequest,
    ListPage, ListPosition, ListRequest, LockBackend, Lookup, LookupRequest, PreflightRequest,
    PurgeRequest, ReleaseRequest, TimeAuthority, Watch, WatchRequest, prefix_end,
};
use syncguard_core::{ExtendResult, Fence, Finding, LockError, LockInfoDebug, ReleaseResult};
use tokio::time::Instant;

use crate::names::Names;
use crate::options::Settings;
use crate::record::{
    column, read_acquired, read_extended, read_info, read_page, read_released, unreadable,
};
use crate::wake_ups::WakeUps;
use crate::wire::{Connections, Script, Scripts, Then, Value};

/// A store of locks in an SQLite file, for all processes of one machine. Clones share their connections.
///
/// Pass it to [`Locks::new`](syncguard_core::Locks::new).
#[derive(Clone)]
pub struct SqliteBackend {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Connections,
    settings: Settings,
    scripts: Scripts,
    wake_ups: WakeUps,
}

impl SqliteBackend {
    pub(crate) fn new(connections: Connections, settings: Settings) -> Self {
        let scripts = Scripts::new(&settings.names);
        Self {
            inner: Arc::new(Inner {
                connections,
                settings,
                scripts,
                wake_ups: WakeUps::default(),
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

    pub(crate) fn scripts(&self) -> &Scripts {
        &self.inner.scripts
    }

    pub(crate) async fn exchange(
        &self,
        script: &Script,
        values: &[Value<'_>],
        deadline: Instant,
    ) -> Result<Vec<SqliteRow>, LockError> {
        let rows = self.exchange_then(script, values, deadline, None).await;
        if !script.writes {
            self.settings().place.check()?;
        }
        rows
    }

    async fn exchange_then(
        &self,
        script: &Script,
        values: &[Value<'_>],
        deadline: Instant,
        then: Option<Then>,
    ) -> Result<Vec<SqliteRow>, LockError> {
        let Inner {
            connections,
            settings,
            ..
        } = &*self.inner;
        connections
            .exchange(settings, script, values, deadline, then)
            .await
    }
}

impl LockBackend for SqliteBackend {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new("sqlite", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        let AcquireRequest { key, id, ttl, .. } = request;
        let storage_key = self.names().storage_key(key)?;
        let fence_key = self.names().fence_key(&storage_key)?;
        let values = [
            Value::Text(id.as_str()),
            Value::Text(&storage_key),
            Value::Text(&fence_key),
            Value::Number(ttl.as_millis()),
            Value::Text(key.as_str()),
        ];
        let look = &self.scripts().acquire_look;
        let deadline = request.deadline;
        let seen = self.exchange_then(look, &values[..2], deadline, None).await;
        if !matches!(&seen, Ok(rows) if rows.is_empty()) {
            self.settings().place.check()?;
        }
        if let Some(row) = seen?.first() {
            return read_acquired(row, id);
        }
        let script = &self.scripts().acquire;
        let rows = self.exchange(script, &values, deadline).await?;
        let row = rows.first();
        read_acquired(row.ok_or_else(|| unreadable().with_outcome_unknown())?, id)
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        let values = [Value::Text(request.id.as_str())];
        let script = &self.scripts().release;
        let wake_ups = self.inner.wake_ups.clone();
        let wake: Then = Arc::new(move |rows| {
            if let Ok(Ok(storage_key)) = read_released(rows.first()) {
                wake_ups.wake(storage_key);
            }
        });
        let deadline = request.deadline;
        let rows = self
            .exchange_then(script, &values, deadline, Some(wake))
            .await?;
        Ok(match read_released(rows.first())? {
            Ok(_) => ReleaseResult::Released,
            Err(reason) => ReleaseResult::not_held(Some(reason)),
        })
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        let values = [
            Value::Text(request.id.as_str()),
            Value::Number(request.ttl.as_millis()),
        ];
        let script = &self.scripts().extend;
        let rows = self.exchange(script, &values, request.deadline).await?;
        read_extended(rows.first())
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        let deadline = request.deadline;
        let rows = match request.by {
            Lookup::Key(key) => {
                let values = [Value::Text(&self.names().storage_key(key)?)];
                let script = &self.scripts().lookup_by_key;
                self.exchange(script, &values, deadline).await?
            }
            Lookup::Id(id) => {
                let values = [Value::Text(id.as_str())];
                let script = &self.scripts().lookup_by_lock_id;
                self.exchange(script, &values, deadline).await?
            }
        };
        rows.first().map(read_info).transpose()
    }

    async fn is_locked(&self, request: IsLockedRequest<'_>) -> Result<bool, LockError> {
        let values = [Value::Text(&self.names().storage_key(request.key)?)];
        let script = &self.scripts().lookup_by_key;
        let rows = self.exchange(script, &values, request.deadline).await?;
        Ok(!rows.is_empty())
    }

    /// For a file it opens one more connection, which stays open while a caller waits.
    async fn watch(&self, request: WatchRequest<'_>) -> Result<Option<Watch>, LockError> {
        let wake_ups = &self.inner.wake_ups;
        wake_ups.watch(self, request.key, request.deadline).await
    }

    /// Reads a range of the table's key. A key that is shortened to a hash is listed only without a prefix.
    async fn list(&self, request: ListRequest<'_>) -> Result<Option<ListPage>, LockError> {
        let start = self.names().storage_prefix(request.prefix)?;
        let end = prefix_end(&start).unwrap_or_default();
        let from = match request.after {
            // The next text that is a key: none has U+0000.
            Some(position) => format!("{}\u{1}", position.as_str()),
            None => start,
        };
        let values = [
            Value::Text(&from),
            Value::Text(&end),
            Value::Number(request.limit.into()),
        ];
        let script = &self.scripts().list;
        let rows = self.exchange(script, &values, request.deadline).await?;
        let (stored, next) = read_page(&rows, request.limit)?;
        let is_own = |(storage_key, lock): &(&str, LockInfoDebug)| {
            let own = self.names().storage_key(&lock.key);
            own.is_ok_and(|own| own == *storage_key) && request.prefix.begins(&lock.key)
        };
        let own = stored.into_iter().filter(is_own).map(|(_, lock)| lock);
        let next = next.map(|key| ListPosition::new(key.to_owned()));
        Ok(Some(ListPage::new(own.collect(), next)))
    }

    /// Takes the write lock for a moment, and writes nothing.
    async fn preflight(&self, request: PreflightRequest) -> Result<Vec<Finding>, LockError> {
        self.look_at_configuration(request.deadline).await
    }

    /// Holds the write lock while it reads the table until it has found `limit` rows.
    async fn purge_expired(&self, request: PurgeRequest) -> Result<u64, LockError> {
        let values = [Value::Number(request.limit.into())];
        let script = &self.scripts().purge;
        let rows = self.exchange(script, &values, request.deadline).await?;
        let deleted: i64 = column(rows.first().ok_or_else(unreadable)?, "deleted")?;
        u64::try_from(deleted).map_err(|_| unreadable())
    }

    /// Closes the backend's own connections. A pool that the application passed stays open.
    async fn close(&self, request: CloseRequest) -> Result<(), LockError> {
        self.connections().close(request.deadline).await
    }
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (names, settings) = (self.names(), self.settings());
        f.debug_struct("SqliteBackend")
            .field("path", &settings.place.path())
            .field("locks_table", &names.locks.as_str())
            .field("fence_counters_table", &names.fence_counters.as_str())
            .field("prefix", &names.prefix)
            .field("busy_timeout", &settings.busy_timeout)
            .field("connections", self.connections())
            .finish_non_exhaustive()
    }
}
