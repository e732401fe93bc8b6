//! [`Unanswered`]: acquires that were sent and have no reply.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use syncguard_core::{LockId, Ttl};
use tokio::time::Instant;

/// For how long an acquire that was sent may take to reach the server.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// Expired entries are removed when there are so many, and then at twice the rest.
const FIRST_CLEANUP: usize = 1_024;

/// The storage keys of acquires without a reply, by lock id.
///
/// While a synchronous standby is away, the commit of such an acquire can hang in the server. Until the
/// commit ends, a release by id finds no row and must not report that there is no lock.
#[derive(Default)]
pub(crate) struct Unanswered {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    by_id: HashMap<LockId, Entry>,
    cleanup_at: usize,
}

struct Entry {
    storage_key: String,
    since: Instant,
    /// When its lease ends, at the latest.
    until: Instant,
}

impl Unanswered {
    /// An acquire that is about to be sent. If it is dropped without a reply, it is unanswered.
    pub(crate) fn sending<'a>(
        &'a self,
        id: &'a LockId,
        storage_key: &'a str,
        ttl: Ttl,
        deadline: Instant,
    ) -> Sending<'a> {
        Sending {
            unanswered: Some(self),
            id,
            storage_key,
            until: deadline + ttl.as_duration(),
        }
    }

    /// The storage key of an acquire without a reply, and how long ago that was given up.
    pub(crate) fn find(&self, id: &LockId) -> Option<(String, Duration)> {
        let entries = self.entries();
        let entry = entries.by_id.get(id)?;
        Some((entry.storage_key.clone(), entry.since.elapsed()))
    }

    /// A release has found the acquire's lock, or that there is none and will be none.
    pub(crate) fn settled(&self, id: &LockId, released: bool) {
        let mut entries = self.entries();
        let has_arrived = |entry: &Entry| entry.since.elapsed() > ON_THE_WAY;
        if released || entries.by_id.get(id).is_some_and(has_arrived) {
            entries.by_id.remove(id);
        }
    }

    fn insert(&self, id: LockId, storage_key: &str, until: Instant) {
        let now = Instant::now();
        let mut entries = self.entries();
        if entries.by_id.len() >= entries.cleanup_at.max(FIRST_CLEANUP) {
            entries.by_id.retain(|_, entry| entry.until > now);
            entries.cleanup_at = entries.by_id.len() * 2;
        }
        let entry = Entry {
            storage_key: storage_key.to_owned(),
            since: now,
            until,
        };
        entries.by_id.insert(id, entry);
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // No method leaves them half changed.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An acquire that has no reply yet.
pub(crate) struct Sending<'a> {
    /// `None` once it was answered.
    unanswered: Option<&'a Unanswered>,
    id: &'a LockId,
    storage_key: &'a str,
    until: Instant,
}

impl Sending<'_> {
    pub(crate) fn answered(mut self) {
        self.unanswered = None;
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if let Some(unanswered) = self.unanswered {
            unanswered.insert(*self.id, self.storage_key, self.until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drop_one(unanswered: &Unanswered, ttl: Duration) -> LockId {
        let id = LockId::generate().unwrap();
        let ttl = Ttl::new(ttl).unwrap();
        drop(unanswered.sending(&id, "k", ttl, Instant::now()));
        id
    }

    #[tokio::test]
    async fn one_that_was_answered_is_forgotten_and_another_stays_until_it_is_settled() {
        let unanswered = Unanswered::default();
        let id = LockId::generate().unwrap();
        let ttl = Ttl::new(Duration::from_secs(60)).unwrap();
        unanswered.sending(&id, "k", ttl, Instant::now()).answered();
        assert!(unanswered.find(&id).is_none());

        let id = drop_one(&unanswered, Duration::from_secs(60));
        unanswered.settled(&id, false);
        let (storage_key, _) = unanswered.find(&id).expect("it is on the way");
        assert_eq!(storage_key, "k");
        tokio::time::sleep(ON_THE_WAY * 2).await;
        unanswered.settled(&id, false);
        assert!(unanswered.find(&id).is_none());
        let id = drop_one(&unanswered, Duration::from_secs(60));
        unanswered.settled(&id, true);
        assert!(unanswered.find(&id).is_none());
    }

    #[tokio::test]
    async fn those_whose_lease_is_over_take_no_room() {
        let unanswered = Unanswered::default();
        for _ in 0..20 {
            for _ in 0..1_000 {
                drop_one(&unanswered, Duration::from_millis(1));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(unanswered.entries().by_id.len() <= 3_000);
    }
}
