//! [`Reporter`]: how a backend reports events outside any call.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::observe::{ClockSkew, Listeners};

/// Reports events outside any call to the observers of one [`Locks`](crate::Locks).
///
/// A reporter keeps neither the `Locks` nor its observers alive. Cheap to clone.
#[derive(Clone)]
pub struct Reporter {
    backend: &'static str,
    listeners: Weak<Listeners>,
}

impl Reporter {
    pub(crate) fn new(backend: &'static str, listeners: &Arc<Listeners>) -> Self {
        Self {
            backend,
            listeners: Arc::downgrade(listeners),
        }
    }

    /// Reports how far this machine's clock is ahead of the store's, in milliseconds; negative if it
    /// is behind.
    pub fn clock_skew_ms(&self, skew_ms: i64) {
        if let Some(listeners) = self.listeners.upgrade() {
            let event = ClockSkew {
                backend: self.backend,
                skew_ms,
            };
            listeners.notify(|observer| observer.clock_compared(&event));
        }
    }

    /// Reports that a test moved the clock. Callers that wait for the end of a lease look at the clock again.
    pub fn clock_moved(&self) {
        if let Some(listeners) = self.listeners.upgrade() {
            listeners.clock_moved.notify_waiters();
        }
    }

    /// Whether the `Locks` is still in use. If it is not, the backend may drop the reporter.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.listeners.strong_count() > 0
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter")
            .field("backend", &self.backend)
            .field("attached", &self.is_attached())
            .finish_non_exhaustive()
    }
}
