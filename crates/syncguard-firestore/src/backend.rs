//! The contract, by compare-and-set.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gcloud_sdk::google::firestore::v1::Document;
use syncguard_core::{
    AcquireResult, Capabilities, ExtendResult, FailureReason, Fence, LockBackend, LockError,
    LockId, LockInfoDebug, LockKey, Lookup, ReleaseResult, Ttl, hash_key,
};
use tonic::Status;

use crate::clock::{Clock, Moment};
use crate::document::{LockDocument, Version, delete, parse_counter, write_counter, write_expiry};
use crate::error::{self, state_moved};
use crate::reread::Rereads;
use crate::wire::{Reading, Wire};

/// Locks in a Firestore database. Clones share one client.
///
/// It is the bare store: wrap it, as [`FirestoreBackend`](crate::FirestoreBackend) does.
#[derive(Clone)]
pub struct FirestoreStore {
    pub(crate) wire: Wire,
    pub(crate) clock: Clock,
    pub(crate) cleanup_in_is_locked: bool,
    last_cleanup: Arc<Mutex<Option<Instant>>>,
}

/// What was read, and when.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) documents: Vec<Document>,
    pub(crate) moment: Moment,
}

/// A lock that an id holds, in the version that was read.
struct Held {
    name: String,
    version: Version,
    lock: LockDocument,
}

/// Why an id holds nothing.
struct NotHeld(Option<FailureReason>);

impl FirestoreStore {
    pub(crate) fn new(wire: Wire, clock: Clock, cleanup_in_is_locked: bool) -> Self {
        Self {
            wire,
            clock,
            cleanup_in_is_locked,
            last_cleanup: Arc::default(),
        }
    }

    pub(crate) async fn read(
        &self,
        request: impl Future<Output = Result<Reading, Status>>,
    ) -> Result<Snapshot, LockError> {
        let sent_ms = self.clock.wall_ms();
        let reading = request.await.map_err(|status| error::of_read(&status))?;
        Ok(Snapshot {
            moment: self.clock.moment(sent_ms, reading.read_time_ms),
            documents: reading.documents,
        })
    }

    async fn read_lock(&self, key: &LockKey) -> Result<Snapshot, LockError> {
        let names = self.wire.names().of(key)?;
        self.read(self.wire.get(vec![names.lock])).await
    }

    async fn read_holder(&self, id: &LockId) -> Result<Snapshot, LockError> {
        self.read(self.wire.find_by_lock_id(id.as_str())).await
    }

    pub(crate) fn last_cleanup(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last_cleanup
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshot {
    fn find(&self, name: &str) -> Option<&Document> {
        self.documents.iter().find(|document| document.name == name)
    }

    /// The live lock in a reading of one document.
    fn live_lock(&self) -> Result<Option<LockDocument>, LockError> {
        let lock = self
            .documents
            .first()
            .map(LockDocument::parse)
            .transpose()?;
        Ok(lock.filter(|lock| lock.is_live(self.moment.now_ms)))
    }

    /// The live lock that an id holds. Where several documents claim the id, none can be trusted:
    /// that is said aloud, and the id holds nothing.
    fn held_by(&self, id: &LockId) -> Result<Result<Held, NotHeld>, LockError> {
        let mut owned = Vec::new();
        for document in &self.documents {
            let lock = LockDocument::parse(document)?;
            // The owner is verified, not inferred from the index.
            if lock.lock_id == *id {
                owned.push((document, lock));
            }
        }
        if owned.len() > 1 {
            tracing::warn!(
                lock_id_hash = %hash_key(id.as_str()),
                documents = owned.len(),
                "several documents have one lock id; none is extended or released by it"
            );
            return Ok(Err(NotHeld(None)));
        }
        let Some((document, lock)) = owned.pop() else {
            return Ok(Err(NotHeld(Some(FailureReason::NotFound))));
        };
        if !lock.is_live(self.moment.now_ms) {
            return Ok(Err(NotHeld(Some(FailureReason::Expired))));
        }
        Ok(Ok(Held {
            name: document.name.clone(),
            version: Version::of(document)?,
            lock,
        }))
    }
}

impl LockBackend for FirestoreStore {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new::<Fence>("firestore", self.clock.authority())
    }

    /// As measured by the last read. It is the part of the difference that is certain: the time an
    /// answer takes is not counted.
    fn clock_skew_ms(&self) -> Option<i64> {
        self.clock.skew_ms()
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let names = self.wire.names().of(key)?;
        let mut rereads = Rereads::default();
        let mut unsettled: Option<LockError> = None;
        loop {
            let both = vec![names.lock.clone(), names.fence_counter.clone()];
            let snapshot = match self.read(self.wire.get(both)).await {
                Ok(snapshot) => snapshot,
                Err(error) => return Err(unsettled.unwrap_or(error)),
            };
            let now_ms = snapshot.moment.now_ms;
            let found = snapshot.find(&names.lock);
            let lock = found.map(LockDocument::parse).transpose()?;
            if let Some(lock) = lock.filter(|lock| lock.is_live(now_ms)) {
                // Ours: this call's own commit, or an earlier delivery of it.
                let ours = lock.lock_id == *id;
                return Ok(if ours {
                    AcquireResult::Acquired(lock.grant())
                } else {
                    AcquireResult::Locked
                });
            }
            if let Some(error) = unsettled {
                // The commit may still be on its way.
                return Err(error);
            }
            self.clock.admit(snapshot.moment)?;

            let counter = snapshot.find(&names.fence_counter);
            let last_fence = counter.map(parse_counter).transpose()?.unwrap_or(0);
            let lock = LockDocument {
                key: key.clone(),
                lock_id: *id,
                expires_at_ms: now_ms.saturating_add(ttl.as_millis()),
                acquired_at_ms: now_ms,
                fence: Fence::from_counter(last_fence.saturating_add(1))?,
            };
            let writes = vec![
                lock.write(names.lock.clone(), version(found)?),
                write_counter(
                    names.fence_counter.clone(),
                    lock.fence,
                    key,
                    version(counter)?,
                ),
            ];
            match self.wire.commit(writes).await {
                Ok(()) => return Ok(AcquireResult::Acquired(lock.grant())),
                Err(status) if state_moved(&status) => rereads.pause(&status).await?,
                Err(status) => match error::of_commit(&status) {
                    // What is there now tells whether it was applied.
                    error if error.outcome_unknown() => unsettled = Some(error),
                    error => return Err(error),
                },
            }
        }
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        let mut rereads = Rereads::default();
        loop {
            let held = match self.read_holder(id).await?.held_by(id)? {
                Ok(held) => held,
                Err(NotHeld(reason)) => return Ok(ReleaseResult::NotHeld { reason }),
            };
            let write = delete(held.name, held.version);
            match self.wire.commit(vec![write]).await {
                Ok(()) => return Ok(ReleaseResult::Released),
                Err(status) if state_moved(&status) => rereads.pause(&status).await?,
                Err(status) => return Err(error::of_commit(&status)),
            }
        }
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        let mut rereads = Rereads::default();
        let mut overtaken: Option<(LockDocument, i64)> = None;
        loop {
            let snapshot = self.read_holder(id).await?;
            let held = match snapshot.held_by(id)? {
                Ok(held) => held,
                Err(NotHeld(reason)) => return Ok(ExtendResult::NotHeld { reason }),
            };
            if let Some((before, expires_at_ms)) = overtaken
                && held.lock.is_extension_of(&before)
            {
                // Of two extends at once either may come first: this one did, and was replaced.
                return Ok(ExtendResult::Extended { expires_at_ms });
            }
            self.clock.admit(snapshot.moment)?;
            let expires_at_ms = snapshot.moment.now_ms.saturating_add(ttl.as_millis());
            let write = write_expiry(held.name, expires_at_ms, held.version);
            match self.wire.commit(vec![write]).await {
                Ok(()) => return Ok(ExtendResult::Extended { expires_at_ms }),
                Err(status) if state_moved(&status) => rereads.pause(&status).await?,
                Err(status) => return Err(error::of_commit(&status)),
            }
            overtaken = Some((held.lock, expires_at_ms));
        }
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        let snapshot = self.read_lock(key).await?;
        let locked = snapshot.live_lock()?.is_some();
        self.clean_up(&snapshot);
        Ok(locked)
    }

    async fn lookup_raw(&self, by: Lookup<'_>) -> Result<Option<LockInfoDebug>, LockError> {
        let lock = match by {
            Lookup::Key(key) => self.read_lock(key).await?.live_lock()?,
            Lookup::Id(id) => {
                let held = self.read_holder(id).await?.held_by(id)?;
                held.ok().map(|held| held.lock)
            }
        };
        Ok(lock.map(LockDocument::info))
    }
}

fn version(document: Option<&Document>) -> Result<Version, LockError> {
    document.map_or(Ok(Version::ABSENT), Version::of)
}

impl fmt::Debug for FirestoreStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirestoreStore")
            .field("names", self.wire.names())
            .field("clock", &self.clock)
            .field("cleanup_in_is_locked", &self.cleanup_in_is_locked)
            .finish_non_exhaustive()
    }
}
