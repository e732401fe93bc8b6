//! [`Rereads`]: how often, and how soon, a state that moved is read again.

use std::time::Duration;

use syncguard_core::LockError;
use tonic::Status;

use crate::error;

/// Each is the answer to a change by others, so that many in a row are a sign of trouble, not of
/// contention: contenders find the winner's lock at the first.
const MOST: u32 = 20;

const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

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
        let longest = (FIRST_PAUSE * (1 << self.done.min(8))).min(LONGEST_PAUSE);
        self.done += 1;
        // Without randomness to be had, the middle will do: nothing but spread depends on it.
        let random = getrandom::u32().unwrap_or(u32::MAX / 2);
        tokio::time::sleep(longest.mul_f64(f64::from(random) / f64::from(u32::MAX))).await;
        Ok(())
    }
}
