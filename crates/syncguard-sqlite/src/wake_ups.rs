//! [`WakeUps`]: wakes callers that wait for a key when it is released, by this process or another.
//!
//! A release of this backend wakes its own callers at once. For those of other connections and processes
//! a task asks SQLite at short intervals whether the file was changed, on a connection of its own, and
//! then which of the watched keys are free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::SqliteConnection;
use syncguard_core::backend::{
    DEFAULT_OPERATION_TIMEOUT, IsLockedRequest, LockBackend as _, Watch, WatchKey, Watcher,
    Watchers,
};
use syncguard_core::{ErrorCode, LockError, LockKey};
use tokio::time::{Instant, sleep};

use crate::SqliteBackend;
use crate::error::{Stage, is_busy, map};
use crate::record::{column, unreadable};
use crate::wire::{Value, read};

/// How often to check the file while a caller waits. A check costs some microseconds.
const POLL: Duration = Duration::from_millis(5);

/// For how many polls the connection stays open after the last caller has stopped waiting: about five seconds.
const UNUSED_POLLS: u32 = 1_000;

const DATA_VERSION: &str = "PRAGMA data_version";

/// The watches of a backend and its clones, by key.
#[derive(Clone, Default)]
pub(crate) struct WakeUps(Arc<Shared>);

#[derive(Default)]
struct Shared {
    watchers: Watchers,
    /// The current task.
    poller: tokio::sync::Mutex<Option<Arc<Poller>>>,
}

impl WakeUps {
    /// Wakes the watches of a storage key in this process.
    pub(crate) fn wake(&self, storage_key: &str) {
        self.0.watchers.wake(storage_key);
    }

    /// Watches a key. `None` if the store is in memory over a pool: other backends over that pool change it
    /// without notice.
    pub(crate) async fn watch(
        &self,
        backend: &SqliteBackend,
        key: &LockKey,
        deadline: Instant,
    ) -> Result<Option<Watch>, LockError> {
        let in_memory = backend.settings().place.is_memory();
        if in_memory && backend.connections().are_given() {
            return Ok(None);
        }
        let storage_key = backend.names().storage_key(key)?;
        let mut present = self.0.poller.lock().await;
        // While the mutex is held: a task that finds no watch ends.
        let watched = Watched {
            backend: backend.clone(),
            key: key.clone(),
            watcher: self.0.watchers.watch(&storage_key),
            looked: false,
            poller: match in_memory {
                // Nobody else changes it.
                true => None,
                false => match &*present {
                    Some(poller) if !poller.is_lost() => Some(Arc::clone(poller)),
                    _ => Some(Poller::start(backend, &self.0, deadline).await?),
                },
            },
        };
        present.clone_from(&watched.poller);
        Ok(Some(Watch::new(watched)))
    }
}

/// The task that checks the file.
struct Poller {
    lost: AtomicBool,
}

impl Poller {
    async fn start(
        backend: &SqliteBackend,
        shared: &Arc<Shared>,
        deadline: Instant,
    ) -> Result<Arc<Self>, LockError> {
        let mut connection = backend.connections().open_another(deadline).await?;
        let version = data_version(&mut connection).await?;
        let poller = Arc::new(Self {
            lost: AtomicBool::new(false),
        });
        let ending = Ending {
            poller: Arc::clone(&poller),
            shared: Arc::clone(shared),
        };
        let backend = backend.clone();
        tokio::spawn(async move {
            if let Err(error) = poll(&backend, &ending.shared, connection, version).await {
                tracing::debug!(
                    code = %error.code(),
                    "stopped checking the file for releases; the next wait starts it again"
                );
            }
        });
        Ok(poller)
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }
}

/// When the task ends, this marks all watches as lost and wakes them.
struct Ending {
    poller: Arc<Poller>,
    shared: Arc<Shared>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.poller.lost.store(true, Ordering::SeqCst);
        self.shared.watchers.wake_all();
    }
}

/// Wakes the watches of keys that other connections have released, until no watch is left.
async fn poll(
    backend: &SqliteBackend,
    shared: &Shared,
    mut connection: SqliteConnection,
    mut version: Option<i64>,
) -> Result<(), LockError> {
    let mut unused = 0;
    loop {
        sleep(POLL).await;
        if backend.connections().is_closed() {
            return Ok(());
        }
        backend.settings().place.check()?;
        if shared.watchers.is_empty() {
            unused += 1;
            if unused < UNUSED_POLLS {
                continue;
            }
            let mut present = shared.poller.lock().await;
            if shared.watchers.is_empty() {
                *present = None;
                return Ok(());
            }
            continue;
        }
        unused = 0;
        let present = data_version(&mut connection).await?;
        if present.is_none() || present == version {
            continue;
        }
        // After the version: a later watch also reads the key later.
        let keys: Vec<String> = shared
            .watchers
            .watched()
            .iter()
            .map(ToString::to_string)
            .collect();
        let keys = serde_json::to_string(&keys).map_err(|_| unreadable())?;
        match read(
            &mut connection,
            &backend.scripts().free,
            &[Value::Text(&keys)],
        )
        .await
        {
            Ok(rows) => {
                for row in rows {
                    shared.watchers.wake(column(&row, "value")?);
                }
                version = present;
            }
            Err(failed) if failed.is_busy() => {}
            Err(failed) => return Err(failed.mapped()),
        }
    }
}

/// A number that changes when another connection has changed the file; `None` while the file is locked.
async fn data_version(connection: &mut SqliteConnection) -> Result<Option<i64>, LockError> {
    let version = sqlx::query_scalar(DATA_VERSION).fetch_one(connection).await;
    match version {
        Ok(version) => Ok(Some(version)),
        Err(error) if is_busy(&error) => Ok(None),
        Err(error) => Err(map(error, Stage::Reading)),
    }
}

/// A lock that a caller waits for.
struct Watched {
    backend: SqliteBackend,
    key: LockKey,
    watcher: Watcher,
    /// The key was held once the watch was in place.
    looked: bool,
    /// `None` where this process alone has the store.
    poller: Option<Arc<Poller>>,
}

impl WatchKey for Watched {
    async fn changed(&mut self) -> Result<(), LockError> {
        if !self.looked {
            let deadline = Instant::now() + DEFAULT_OPERATION_TIMEOUT;
            let asked = IsLockedRequest::new(&self.key, deadline);
            let is_locked = self.backend.is_locked(asked).await?;
            // From now on a release wakes this watch.
            self.looked = true;
            if !is_locked {
                return Ok(());
            }
        }
        self.watcher.woken().await;
        if self.poller.as_ref().is_some_and(|poller| poller.is_lost()) {
            return Err(LockError::new(
                ErrorCode::ServiceUnavailable,
                "the connection for wake-ups was lost",
            ));
        }
        Ok(())
    }
}
