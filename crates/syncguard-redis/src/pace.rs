//! [`Pace`]: limits something to once a second.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_secs(1);

/// The time of the last run.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// Whether it may run again. If so, this counts as a run.
    pub(crate) fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= INTERVAL);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}
