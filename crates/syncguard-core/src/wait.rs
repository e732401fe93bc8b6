//! [`Wait`]: the wait of a caller of [`lock()`](crate::lock()) under way.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::time::Instant;

use crate::cancel::aborted;
use crate::error::WaitSummary;
use crate::observer::{Observer, Observers};
use crate::{LockError, WaitEnd};

/// A wait under way. Observers are told of its end, whatever that is.
pub(crate) struct Wait<'a> {
    observers: &'a Observers,
    started: Instant,
    attempts: AtomicU32,
    /// Whether a request may be in flight.
    attempting: AtomicBool,
    end: WaitEnd,
}

impl<'a> Wait<'a> {
    pub(crate) fn begin(observers: &'a Observers) -> Self {
        observers.tell(Observer::wait_began);
        Self {
            observers,
            started: Instant::now(),
            attempts: AtomicU32::new(0),
            attempting: AtomicBool::new(false),
            end: WaitEnd::Abandoned,
        }
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn attempt_begins(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.attempting.store(true, Ordering::Relaxed);
    }

    pub(crate) fn attempt_ended(&self) {
        self.attempting.store(false, Ordering::Relaxed);
    }

    pub(crate) fn summary(&self) -> WaitSummary {
        WaitSummary {
            attempts: self.attempts.load(Ordering::Relaxed),
            waited: self.started.elapsed(),
        }
    }

    pub(crate) fn aborted(&self) -> LockError {
        if self.attempting.load(Ordering::Relaxed) {
            aborted().with_outcome_unknown()
        } else {
            aborted()
        }
    }

    pub(crate) fn end<T>(mut self, outcome: &Result<T, LockError>) {
        self.end = match outcome {
            Ok(_) => WaitEnd::Granted,
            Err(error) => WaitEnd::Failed(error.code()),
        };
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let (summary, end) = (self.summary(), self.end);
        self.observers
            .tell(|observer| observer.wait_ended(summary, end));
    }
}
