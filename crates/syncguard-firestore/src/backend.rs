//! [`FirestoreBackend`]: the contract, by compare-and-set.

use std::fmt;
use std::sync::Arc;

use gcloud_sdk::google::firestore::v1::Document;
use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, CloseRequest, ExtendRequest, FailureReason,
    IsLockedRequest, ListPage, ListRequest, LockBackend, Lookup, LookupRequest, PreflightRequest,
    PurgeRequest, ReleaseRequest, Reporter, Throttle, Watch, WatchRequest,
};
use syncguard_core::{
    ExtendResult, Fence, Finding, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult,
};
use tokio::time::Instant;
use tonic::Status;

use crate::clock::{AuthorityClock, Moment};
use crate::error::{self, state_moved};
use crate::record::{LockDocument, Version, delete, parse_counter, write_counter, write_expiry};
use crate::wake_ups::WakeUps;
use crate::wire::{Reading, Rereads, Wire};

/// Locks in a Firestore database. Clones are cheap and share one client.
///
/// Pass it to [`Locks::new`](syncguard_core::Locks::new).
#[derive(Clone)]
pub struct FirestoreBackend {
    pub(crate) wire: Wire,
    pub(crate) clock: AuthorityClock,
    /// `None` if `is_locked` deletes nothing.
    pub(crate) cleanups: Option<Arc<Throttle>>,
    pub(crate) wake_ups: WakeUps,
}

/// The documents of one read, and the time of the read.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) documents: Vec<Document>,
    pub(crate) moment: Moment,
}

/// A lock that an id holds, in the version that was read.
struct OwnedLock {
    name: String,
    version: Version,
    lock: LockDocument,
}

/// Why an id holds no lock.
struct NotHeld(Option<FailureReason>);

impl FirestoreBackend {
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

    async fn read_lock(&self, key: &LockKey, deadline: Instant) -> Result<Snapshot, LockError> {
        let names = self.wire.names().of(key)?;
        self.read(self.wire.get(vec![names.lock], deadline)).await
    }

    async fn read_holder(&self, id: &LockId, deadline: Instant) -> Result<Snapshot, LockError> {
        let query = self.wire.find_by_lock_id(id.as_str(), deadline);
        self.read(query).await
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

    /// The live lock that an id holds. If several documents have the id, none can be trusted: logs a
    /// warning, and returns none.
    fn held_by(&self, id: &LockId) -> Result<Result<OwnedLock, NotHeld>, LockError> {
        let mut owned = Vec::new();
        for document in &self.documents {
            let lock = LockDocument::parse(document)?;
            // Verify the owner: the index alone does not prove it.
            if lock.lock_id == *id {
                owned.push((document, lock));
            }
        }
        if owned.len() > 1 {
            let hashes: Vec<_> = owned.iter().map(|(_, lock)| lock.key.hash_id()).collect();
            tracing::warn!(
                lock_id_hash = %id.hash_id(),
                key_hashes = ?hashes,
                "several documents have one lock id, which extends and releases none of them; \
                 delete the copies, or wait until all have expired"
            );
            return Ok(Err(NotHeld(None)));
        }
        let Some((document, lock)) = owned.pop() else {
            return Ok(Err(NotHeld(Some(FailureReason::NotFound))));
        };
        if !lock.is_live(self.moment.now_ms) {
            return Ok(Err(NotHeld(Some(FailureReason::Expired))));
        }
        Ok(Ok(OwnedLock {
            name: document.name.clone(),
            version: Version::of(document)?,
            lock,
        }))
    }
}

impl LockBackend for FirestoreBackend {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new("firestore", self.clock.authority())
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        let AcquireRequest {
            key,
            id,
            ttl,
            deadline,
            ..
        } = request;
        let names = self.wire.names().of(key)?;
        let mut rereads = Rereads::default();
        let mut unsettled: Option<LockError> = None;
        loop {
            let both = vec![names.lock.clone(), names.fence_counter.clone()];
            let snapshot = match self.read(self.wire.get(both, deadline)).await {
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
                    AcquireResult::locked_for(lock.free_in(now_ms))
                });
            }
            if let Some(error) = unsettled {
                // The commit may still be in flight.
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
            match self.wire.commit(writes, deadline).await {
                Ok(()) => return Ok(AcquireResult::Acquired(lock.grant())),
                Err(status) if state_moved(&status) => rereads.pause(&status, deadline).await?,
                Err(status) => match error::of_commit(&status) {
                    // The next read shows whether it was applied.
                    error if error.outcome_unknown() => unsettled = Some(error),
                    error => return Err(error),
                },
            }
        }
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        let ReleaseRequest { id, deadline, .. } = request;
        let mut rereads = Rereads::default();
        loop {
            let held = match self.read_holder(id, deadline).await?.held_by(id)? {
                Ok(held) => held,
                Err(NotHeld(reason)) => return Ok(ReleaseResult::not_held(reason)),
            };
            let write = delete(held.name, held.version);
            match self.wire.commit(vec![write], deadline).await {
                Ok(()) => return Ok(ReleaseResult::Released),
                Err(status) if state_moved(&status) => rereads.pause(&status, deadline).await?,
                Err(status) => return Err(error::of_commit(&status)),
            }
        }
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        let ExtendRequest {
            id, ttl, deadline, ..
        } = request;
        let mut rereads = Rereads::default();
        let mut overtaken: Option<(LockDocument, i64)> = None;
        loop {
            let snapshot = self.read_holder(id, deadline).await?;
            let held = match snapshot.held_by(id)? {
                Ok(held) => held,
                Err(NotHeld(reason)) => return Ok(ExtendResult::not_held(reason)),
            };
            if let Some((before, expires_at_ms)) = overtaken
                && held.lock.is_extension_of(&before)
            {
                // Two concurrent extends can arrive in either order: this one was first, and the other
                // replaced it.
                return Ok(ExtendResult::extended(expires_at_ms));
            }
            self.clock.admit(snapshot.moment)?;
            let expires_at_ms = snapshot.moment.now_ms.saturating_add(ttl.as_millis());
            let write = write_expiry(held.name, expires_at_ms, held.version);
            match self.wire.commit(vec![write], deadline).await {
                Ok(()) => return Ok(ExtendResult::extended(expires_at_ms)),
                Err(status) if state_moved(&status) => rereads.pause(&status, deadline).await?,
                Err(status) => return Err(error::of_commit(&status)),
            }
            overtaken = Some((held.lock, expires_at_ms));
        }
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        let LookupRequest { by, deadline, .. } = request;
        let lock = match by {
            Lookup::Key(key) => self.read_lock(key, deadline).await?.live_lock()?,
            Lookup::Id(id) => {
                let held = self.read_holder(id, deadline).await?.held_by(id)?;
                held.ok().map(|held| held.lock)
            }
        };
        Ok(lock.map(LockDocument::info))
    }

    async fn is_locked(&self, request: IsLockedRequest<'_>) -> Result<bool, LockError> {
        let snapshot = self.read_lock(request.key, request.deadline).await?;
        let locked = snapshot.live_lock()?.is_some();
        self.clean_up(&snapshot);
        Ok(locked)
    }

    /// Uses a `Listen` stream, which the first wait opens.
    async fn watch(&self, request: WatchRequest<'_>) -> Result<Option<Watch>, LockError> {
        let names = self.wire.names().of(request.key)?;
        let watching = self
            .wake_ups
            .watch(&self.wire, names.lock, request.deadline);
        watching.await
    }

    /// Uses the index on `key`. A page reads as many documents as it may have locks, expired ones included.
    async fn list(&self, request: ListRequest<'_>) -> Result<Option<ListPage>, LockError> {
        self.list_page(request).await.map(Some)
    }

    fn attach(&self, reporter: Reporter) {
        self.clock.attach(reporter);
    }

    async fn preflight(&self, request: PreflightRequest) -> Result<Vec<Finding>, LockError> {
        self.inspect(request.deadline).await
    }

    async fn purge_expired(&self, request: PurgeRequest) -> Result<u64, LockError> {
        self.purge(request.limit, request.deadline).await
    }

    /// Ends the stream for wake-ups.
    async fn close(&self, request: CloseRequest) -> Result<(), LockError> {
        self.wake_ups.close(request.deadline).await;
        Ok(())
    }
}

fn version(document: Option<&Document>) -> Result<Version, LockError> {
    document.map_or(Ok(Version::ABSENT), Version::of)
}

impl fmt::Debug for FirestoreBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirestoreBackend")
            .field("names", self.wire.names())
            .field("clock", &self.clock)
            .field("cleanup_in_is_locked", &self.cleanups.is_some())
            .finish_non_exhaustive()
    }
}
