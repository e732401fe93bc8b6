//! [`Rereads`]: how often, and how soon, a state that moved is read again.

use std::time::Duration;

use syncguard_core::{Backoff, Jitter, LockError};
use tonic::Status;

use crate::error;

/// Each is the answer to a change by others, so that many in a row are a sign of trouble, not of
/// contention: contenders find the winner's lock at the first.
const MOST: u32 = 20;

const FIRST_PAUSE: Duration = Duration::from_millis(4);
const MOST_DOUBLINGS: u32 = 5;

#[derive(Debug, Default)]
pub(crate) struct Rereads {
    done: u32,
}

impl Rereads {
    /// Waits a little before the next read, or gives up.
    pub(crate) async fn pause(&mut self, moved: &Status) -> Result<(), LockError> {
        if self.done == MOST {
            return Err(error::of_contention(moved));
        }
        let doublings = self.done.min(MOST_DOUBLINGS);
        self.done += 1;
        let pause = Backoff::Exponential.delay(Jitter::Full, FIRST_PAUSE, doublings);
        tokio::time::sleep(pause).await;
        Ok(())
    }
}
