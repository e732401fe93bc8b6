//! [`Lines`]: callers of `lock` in one process wait for a key in order of arrival.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::backend::FenceToken;
use crate::lease::WeakLease;
use crate::{Lease, LockId, LockKey};

/// The lines of all keys that somebody waits for, or that a guard of this process holds.
pub(crate) struct Lines<F: FenceToken>(Arc<Shared<F>>);

struct Shared<F: FenceToken> {
    lines: Mutex<HashMap<LockKey, Entry<F>>>,
    /// How many callers wait, for any key.
    waiting: AtomicUsize,
}

struct Entry<F: FenceToken> {
    line: Arc<Line<F>>,
    /// How many places refer to the line. The last one removes it.
    places: usize,
}

struct Line<F: FenceToken> {
    /// One permit, given in order of arrival. Only the caller that has it talks to the store.
    turn: Semaphore,
    waiting: AtomicUsize,
    /// The lock that a guard of this process holds.
    held: Mutex<Option<(LockId, WeakLease<F>)>>,
    /// The key may have become free: a release of this process ended.
    freed: Notify,
}

impl<F: FenceToken> Lines<F> {
    /// A place at the line of a key.
    pub(crate) fn enter(&self, key: &LockKey) -> Place<F> {
        let mut lines = unpoisoned(&self.0.lines);
        let entry = lines.entry(key.clone()).or_insert_with(|| Entry {
            line: Arc::default(),
            places: 0,
        });
        entry.places += 1;
        Place {
            line: Arc::clone(&entry.line),
            key: key.clone(),
            holds: OnceLock::new(),
            shared: Arc::clone(&self.0),
        }
    }

    /// The background released a lock on this key.
    pub(crate) fn freed(&self, key: &LockKey) {
        if let Some(entry) = unpoisoned(&self.0.lines).get(key) {
            entry.line.freed.notify_one();
        }
    }

    /// The lock of this id was released. If a guard of this process holds it, its line goes on.
    pub(crate) fn released(&self, id: &LockId) {
        // To look for the id takes time; usually nobody waits.
        if self.0.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        for entry in unpoisoned(&self.0.lines).values() {
            entry.line.let_go(id);
        }
    }
}

impl<F: FenceToken> Line<F> {
    /// The lock of this id is no longer held.
    fn let_go(&self, id: &LockId) {
        let mut held = unpoisoned(&self.held);
        if held.as_ref().is_some_and(|(holder, _)| holder == id) {
            *held = None;
            self.freed.notify_one();
        }
    }
}

/// A place at the line of a key: of a caller that waits, then of the guard that holds the key.
pub(crate) struct Place<F: FenceToken> {
    line: Arc<Line<F>>,
    key: LockKey,
    /// The lock, once it is held.
    holds: OnceLock<LockId>,
    shared: Arc<Shared<F>>,
}

impl<F: FenceToken> Place<F> {
    /// Counts the caller as one that waits. Returns how many are ahead of it.
    pub(crate) fn wait(&self) -> (InLine<'_, F>, usize) {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        let ahead = self.line.waiting.fetch_add(1, Ordering::Relaxed);
        (InLine(self), ahead)
    }

    /// Notes that the key is held by this lease. Until the place is dropped, others wait for that.
    pub(crate) fn hold(&self, lease: &Lease<F>) {
        let id = *self.holds.get_or_init(|| *lease.lock_id());
        *unpoisoned(&self.line.held) = Some((id, lease.downgrade()));
    }

    /// How much is left of the lease by which a guard of this process holds the key.
    pub(crate) fn held_for(&self) -> Option<Duration> {
        let held = unpoisoned(&self.line.held);
        let lease = held.as_ref().and_then(|(_, lease)| lease.upgrade())?;
        // The last reference may be this one, and a lease that is dropped locks lines.
        drop(held);
        Some(lease.remaining()).filter(|left| !left.is_zero())
    }

    /// Resolves once a release of this process has ended.
    pub(crate) async fn freed(&self) {
        self.line.freed.notified().await;
    }
}

impl<F: FenceToken> Drop for Place<F> {
    fn drop(&mut self) {
        if let Some(id) = self.holds.get() {
            self.line.let_go(id);
        }
        let mut lines = unpoisoned(&self.shared.lines);
        if let Some(entry) = lines.get_mut(&self.key) {
            entry.places -= 1;
            if entry.places == 0 {
                lines.remove(&self.key);
            }
        }
    }
}

/// A caller that waits.
pub(crate) struct InLine<'a, F: FenceToken>(&'a Place<F>);

impl<'a, F: FenceToken> InLine<'a, F> {
    /// Its turn to talk to the store, if nobody is ahead of it.
    pub(crate) fn try_turn(&self) -> Option<SemaphorePermit<'a>> {
        self.0.line.turn.try_acquire().ok()
    }

    /// Waits until it is its turn to talk to the store. Turns come in the order of these calls.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'a> {
        match self.0.line.turn.acquire().await {
            Ok(turn) => turn,
            // Never: nobody closes it.
            Err(_) => std::future::pending().await,
        }
    }
}

impl<F: FenceToken> Drop for InLine<'_, F> {
    fn drop(&mut self) {
        self.0.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.line.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: FenceToken> Default for Line<F> {
    fn default() -> Self {
        Self {
            turn: Semaphore::new(1),
            waiting: AtomicUsize::new(0),
            held: Mutex::default(),
            freed: Notify::new(),
        }
    }
}

impl<F: FenceToken> Default for Lines<F> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            lines: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }))
    }
}

impl<F: FenceToken> fmt::Debug for Place<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}
