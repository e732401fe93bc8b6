//! [`read_after`]: a read that begins while an earlier one has not ended.

use std::collections::BTreeMap;
use std::task::Poll;

use futures_util::FutureExt as _;
use futures_util::future::{Either, ready};
use syncguard_core::backend::{FenceToken, LockBackend, Lookup, MAX_PAGE_SIZE};
use syncguard_core::{LockId, LockInfoDebug, LockKey};

use crate::outcome::step;
use crate::pages::{Listed, listed};
use crate::polling::{Halts, poll_once, poll_times};
use crate::{Client, Failure};

/// What reads show of a lock.
#[derive(Debug, PartialEq)]
pub(crate) struct Seen<F: FenceToken> {
    locked: bool,
    by_key: Option<LockInfoDebug<F>>,
    by_id: Option<LockInfoDebug<F>>,
    listed: Listed<F>,
}

impl<F: FenceToken> Seen<F> {
    pub(crate) fn of(lock: Option<LockInfoDebug<F>>, can_list: bool) -> Self {
        let listed = lock.iter().filter(|_| can_list);
        Self {
            locked: lock.is_some(),
            listed: listed
                .map(|lock| (lock.key.as_str().to_owned(), lock.clone()))
                .collect(),
            by_key: lock.clone(),
            by_id: lock,
        }
    }
}

/// Reads the lock on a key in every way at once.
#[track_caller]
pub(crate) fn read<B: LockBackend>(
    client: Client<B>,
    key: LockKey,
    id: LockId,
    can_list: bool,
) -> impl Future<Output = Result<Seen<B::Fence>, Failure>> {
    step(async move {
        let listing = async {
            match can_list {
                true => listed(&client, key.as_str(), MAX_PAGE_SIZE).await,
                false => Ok(BTreeMap::new()),
            }
        };
        let (locked, by_key, by_id, listed) = tokio::join!(
            client.is_locked(&key),
            client.lookup_raw(Lookup::Key(&key)),
            client.lookup_raw(Lookup::Id(&id)),
            listing,
        );
        Ok(Seen {
            locked: locked?,
            by_key: by_key?,
            by_id: by_id?,
            listed: listed?,
        })
    })
}

/// Halts or drops a read, makes a change, and begins another read. Returns what the other read shows.
pub(crate) async fn read_after<T, F, R>(
    halts: &mut Halts,
    polls: usize,
    drops: bool,
    read: impl Fn() -> R,
    change: impl Future<Output = Result<T, Failure>>,
) -> Result<Seen<F>, Failure>
where
    F: FenceToken,
    R: Future<Output = Result<Seen<F>, Failure>> + Send + 'static,
{
    let begun = async {
        change.await?;
        let mut later = Box::pin(read());
        let seen = poll_once(later.as_mut()).await;
        // On some stores it ends only after the halted one, and that one only if it is polled, too.
        Ok::<_, Failure>(match seen {
            Poll::Ready(seen) => Either::Left(ready(seen)),
            Poll::Pending => {
                Either::Right(tokio::spawn(later).map(|seen| seen.map_err(Failure::new)?))
            }
        })
    };
    if drops {
        let _ = poll_times(polls, read()).await;
        return begun.await?.await;
    }
    let (halted, begun) = halts.halt(polls, read(), begun).await;
    let _ = halted?;
    begun?.await
}
