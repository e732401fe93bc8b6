//! Waiting for a key by its watch alone.

use std::time::Duration;

use syncguard_core::LockKey;
use syncguard_core::backend::{LockBackend, Watch};

use crate::outcome::step;
use crate::steps::ms;
use crate::{Client, Failure};

/// A wake-up must come within this many pauses of 100 ms. A stalled machine lengthens one pause and adds none.
const PAUSES: usize = 200;

/// Waits as a caller does, but without a poll: a wake-up may be a false alarm.
#[track_caller]
pub(crate) fn until_free<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    watch: &mut Watch,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let freed = async {
            loop {
                watch.changed().await?;
                if !client.is_locked(key).await? {
                    return Ok::<_, Failure>(());
                }
            }
        };
        let too_long = async {
            for _ in 0..PAUSES {
                tokio::time::sleep(ms(100)).await;
            }
        };
        tokio::select! {
            biased;
            freed = freed => freed,
            () = too_long => Err(Failure::new("expected a wake-up by the release, saw none")),
        }
    })
}

/// Waits for a wake-up, and makes the release that is to cause it after a pause.
pub(crate) async fn woken_by<W, R>(
    waiting: impl Future<Output = Result<W, Failure>>,
    pause: Duration,
    releasing: impl Future<Output = Result<R, Failure>>,
) -> Result<(), Failure> {
    let later = async {
        tokio::time::sleep(pause).await;
        releasing.await
    };
    let (woken, released) = tokio::join!(waiting, later);
    released?;
    woken.map(drop)
}
