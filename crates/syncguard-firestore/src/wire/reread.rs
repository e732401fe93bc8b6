//! [`Rereads`]: how often and how soon to read documents again that other clients changed.

use std::time::Duration;

use syncguard_core::{Backoff, Jitter, LockError};
use tokio::time::Instant;
use tonic::Status;

use crate::error;

/// Each reread follows a change by other clients. This many in a row are a sign of a problem, not of
/// contention: contenders find the winner's lock at the first reread.
const LIMIT: u32 = 20;

const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

#[derive(Debug, Default)]
pub(crate) struct Rereads {
    done: u32,
}

impl Rereads {
    /// Waits a little before the next read. Fails after the last one, or if the deadline comes first.
    pub(crate) async fn pause(
        &mut self,
        moved: &Status,
        deadline: Instant,
    ) -> Result<(), LockError> {
        if self.done == LIMIT {
            return Err(error::of_contention(moved));
        }
        let pause = Backoff::Exponential.delay(Jitter::Full, FIRST_PAUSE, LONGEST_PAUSE, self.done);
        self.done += 1;
        let next = Instant::now() + pause;
        if next >= deadline {
            return Err(error::of_contention(moved));
        }
        tokio::time::sleep_until(next).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use syncguard_core::ErrorCode;

    use super::*;

    #[tokio::test]
    async fn a_pause_that_ends_after_the_deadline_is_an_error_of_known_outcome() {
        let moved = Status::aborted("moved");
        let error = Rereads::default().pause(&moved, Instant::now()).await;
        let error = error.unwrap_err();
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
        assert!(!error.outcome_unknown());

        let far_ahead = Instant::now() + Duration::from_secs(600);
        assert!(Rereads::default().pause(&moved, far_ahead).await.is_ok());
    }
}
