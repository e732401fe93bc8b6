//! Wake-ups for callers that wait: client tracking, on a connection of its own.
//!
//! The server sends an invalidation when a key that was read on that connection is written or deleted, or
//! expires. So a release costs nothing more, and the release of any client wakes the waiting callers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fred::interfaces::{EventInterface as _, TrackingInterface as _};
use fred::types::Value;
use fred::types::client::Invalidation;
use fred::types::config::Server;
use syncguard_core::LockError;
use syncguard_core::backend::{Refusals, Watch, WatchKey, Watcher, Watchers};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use crate::error::CommandError;
use crate::wire::Clients;

/// How often to check whether the connection is unused.
const TICK: Duration = Duration::from_secs(5);

/// After this many leases of others, a watch asks first: at random from the first number on, always from the second
/// on. A process gets the key for two sections in a row, so these are the leases of one and of two processes.
const MAYBE_FIRST: u32 = 2;
const SURELY_FIRST: u32 = 4;

/// The end of the part of a lock's value that an extend does not change.
const LEASE: std::ops::Range<usize> = 0..34;

/// The connection for wake-ups of a backend and its clones. It exists while a caller waits.
#[derive(Clone, Default)]
pub(crate) struct WakeUps(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    tracking: Option<Arc<Tracking>>,
    refusals: Refusals,
}

/// A connection that receives invalidations.
struct Tracking {
    clients: Clients,
    watchers: Watchers,
    _events: AbortOnDropHandle<()>,
}

impl WakeUps {
    /// Watches the lock of this name; `None` if the server gives no wake-ups.
    pub(crate) async fn watch(
        &self,
        clients: &Clients,
        name: String,
        deadline: Instant,
    ) -> Result<Option<Watch>, LockError> {
        let mut state = self.0.lock().await;
        if state.refusals.in_force() {
            return Ok(None);
        }
        let tracking = self.tracking(&mut state, clients, deadline).await?;
        drop(state);
        let mut watched = Watched {
            watcher: tracking.watchers.watch(&name),
            tracking,
            name,
            in_place: false,
            is_free: false,
            lease: None,
            extended: false,
            overtaken: 0,
        };
        match watched.read(deadline).await {
            Ok(()) => Ok(Some(Watch::new(watched))),
            Err(error) if error.is_denied() => {
                self.0.lock().await.refusals.refused("redis");
                Ok(None)
            }
            Err(error) => Err(error.of_read()),
        }
    }

    /// The current connection, or a new one.
    async fn tracking(
        &self,
        state: &mut MutexGuard<'_, State>,
        clients: &Clients,
        deadline: Instant,
    ) -> Result<Arc<Tracking>, LockError> {
        if let Some(tracking) = state.tracking.as_ref().filter(|it| it.clients.are_alive()) {
            return Ok(Arc::clone(tracking));
        }
        let (client, clients) = clients.another(deadline).await.inspect_err(|_| {
            // Otherwise all waiting callers would try, one after the other.
            state.refusals.unreachable();
        })?;
        let watchers = Watchers::default();
        // Before the first read, so that no change is missed.
        let (changes, reconnects) = (client.invalidation_rx(), client.reconnect_rx());
        let events = events(
            changes,
            reconnects,
            watchers.clone(),
            Arc::downgrade(&self.0),
        );
        let tracking = Arc::new(Tracking {
            clients,
            watchers,
            _events: AbortOnDropHandle::new(tokio::spawn(events)),
        });
        state.tracking = Some(Arc::clone(&tracking));
        Ok(tracking)
    }

    /// Closes the connection. Callers that wait then poll.
    pub(crate) async fn close(&self) {
        self.0.lock().await.tracking = None;
    }
}

/// Wakes watches, until there has been no watch for a while.
async fn events(
    mut changes: Receiver<Invalidation>,
    mut reconnects: Receiver<Server>,
    watchers: Watchers,
    state: Weak<Mutex<State>>,
) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    loop {
        tokio::select! {
            change = next(&mut changes) => match change {
                Some(Some(Invalidation { keys, .. })) => {
                    for key in keys {
                        watchers.wake(&key.as_str_lossy());
                    }
                }
                // The receiver fell behind and missed events, of unknown keys.
                Some(None) => watchers.wake_all(),
                None => return,
            },
            // The server forgets what the previous connection had read.
            reconnected = next(&mut reconnects) => match reconnected {
                Some(_) => watchers.wake_all(),
                None => return,
            },
            _ = ticks.tick() => {
                let Some(state) = state.upgrade() else { return };
                let mut state = state.lock().await;
                // Each watch has a reference, too.
                if state.tracking.as_ref().is_none_or(|tracking| Arc::strong_count(tracking) == 1) {
                    state.tracking = None;
                    return;
                }
            }
        }
    }
}

/// The next event; `Some(None)` if some were missed, `None` if there will be no more.
async fn next<T: Clone>(events: &mut Receiver<T>) -> Option<Option<T>> {
    match events.recv().await {
        Ok(event) => Some(Some(event)),
        Err(RecvError::Lagged(_)) => Some(None),
        Err(RecvError::Closed) => None,
    }
}

/// A lock that a caller waits for.
struct Watched {
    tracking: Arc<Tracking>,
    watcher: Watcher,
    name: String,
    /// The server will report the next change.
    in_place: bool,
    /// There was no lock when it was read last.
    is_free: bool,
    /// Identifies the lease that was read last; `None` before the first.
    lease: Option<String>,
    /// The holder of that lease has extended it.
    extended: bool,
    /// How many leases of others have begun since the first.
    overtaken: u32,
}

impl Watched {
    /// Reads the lock, so that the server reports its next change.
    async fn read(&mut self, deadline: Instant) -> Result<(), CommandError> {
        self.watcher.reset();
        let clients = &self.tracking.clients;
        let (on, value) = tokio::join!(
            biased;
            clients.ask("CLIENT", vec!["TRACKING".into(), "ON".into()], deadline),
            clients.ask("GET", vec![self.name.as_str().into()], deadline),
        );
        on?;
        self.is_free = matches!(value, Ok(Value::Null));
        if let Some(value) = value?.into_string() {
            let lease = value.get(LEASE).unwrap_or(&value).to_owned();
            let known = self.lease.replace(lease);
            self.extended = known == self.lease;
            if known.is_some() && !self.extended {
                self.overtaken = self.overtaken.saturating_add(1);
            }
        }
        self.in_place = true;
        Ok(())
    }

    /// Whether it resolves at a change without a read.
    fn asks_first(&self) -> bool {
        self.overtaken >= SURELY_FIRST
            || self.overtaken >= MAYBE_FIRST && getrandom::u32().is_ok_and(|it| it % 2 == 0)
    }
}

impl WatchKey for Watched {
    /// At a change, resolves at once, or after a read that finds no lock. It reads once the holder has extended the
    /// lease: a read costs less than an acquire.
    ///
    /// The server reports a change to all connections, always in the same order, so the same process would
    /// ask first each time. A watch therefore reads first, unless others have acquired the key several times while it
    /// watched: those that have waited for longest ask first. The others often find the key held, by a read instead of
    /// an acquire.
    async fn changed(&mut self) -> Result<(), LockError> {
        loop {
            if !self.in_place {
                let deadline = self.tracking.clients.own_deadline();
                let read = self.read(deadline).await;
                read.map_err(|error| error.of_read())?;
            }
            if self.is_free {
                self.in_place = false;
                return Ok(());
            }
            self.watcher.woken().await;
            self.in_place = false;
            if !self.extended && self.asks_first() {
                return Ok(());
            }
        }
    }
}
