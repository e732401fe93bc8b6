//! [`Bench`]: the clients and keys of one case.

use std::sync::Arc;
use std::time::Instant;

use syncguard_core::backend::{FenceToken, LockBackend};
use syncguard_core::{LockId, LockKey, Locks};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::sleep_until;

use crate::outcome::step;
use crate::steps::ms;
use crate::{Client, Failure, Harness};

/// Characters of a case's random namespace: 72 bits.
const NAMESPACE_LENGTH: usize = 12;

/// What a case is given: clients of the store, and keys that no other case uses.
#[derive(Debug)]
pub struct Bench<H> {
    harness: Arc<H>,
    namespace: String,
    purges: Turns,
}

/// The cases of a run that purge take turns: a purge deletes the expired locks of all.
pub(crate) type Turns = Arc<Mutex<()>>;

impl<H: Harness> Bench<H> {
    /// A bench with a random namespace of its own.
    ///
    /// # Errors
    /// If the system's random number generator fails.
    pub fn new(harness: Arc<H>) -> Result<Self, Failure> {
        Self::in_run(harness, Turns::default())
    }

    /// The same, of a case that takes turns with others.
    pub(crate) fn in_run(harness: Arc<H>, purges: Turns) -> Result<Self, Failure> {
        let mut namespace = LockId::generate()?.as_str().to_owned();
        namespace.truncate(NAMESPACE_LENGTH);
        Ok(Self {
            harness,
            namespace,
            purges,
        })
    }

    /// The harness.
    #[must_use]
    pub fn harness(&self) -> &H {
        &self.harness
    }

    /// The random text in each key of this case.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A key of this case.
    ///
    /// # Errors
    /// If the key is not valid.
    #[track_caller]
    pub fn key(&self, name: &str) -> Result<LockKey, Failure> {
        Ok(LockKey::new(&format!("{}:{name}", self.namespace))?)
    }

    /// `count` keys of this case.
    ///
    /// # Errors
    /// If a key is not valid.
    pub fn keys(&self, name: &str, count: usize) -> Result<Vec<LockKey>, Failure> {
        (0..count)
            .map(|index| self.key(&format!("{name}:{index}")))
            .collect()
    }

    /// A new client of the store.
    ///
    /// # Errors
    /// If the harness cannot connect.
    #[track_caller]
    pub fn client(&self) -> impl Future<Output = Result<Client<H::Backend>, Failure>> + Send {
        step(async move {
            let backend = Arc::new(self.harness.connect().await?);
            let locks = Locks::builder(Arc::clone(&backend));
            Ok(Client::new(backend, self.harness.configure(locks).build()))
        })
    }

    /// `count` new clients of the store.
    ///
    /// # Errors
    /// If the harness cannot connect.
    #[track_caller]
    pub fn clients(
        &self,
        count: usize,
    ) -> impl Future<Output = Result<Vec<Client<H::Backend>>, Failure>> + Send {
        step(async move {
            let mut clients = Vec::with_capacity(count);
            for _ in 0..count {
                clients.push(self.client().await?);
            }
            Ok(clients)
        })
    }

    /// While the case has this turn, no other case of the run purges.
    pub(crate) async fn purging(&self) -> MutexGuard<'_, ()> {
        self.purges.lock().await
    }

    /// The same, from when a lock can be purged. The turn begins earlier: nobody else has purged the lock.
    pub(crate) async fn purging_at(&self, purgeable_at: Instant) -> MutexGuard<'_, ()> {
        sleep_until((purgeable_at - ms(600)).into()).await;
        let turn = self.purging().await;
        sleep_until(purgeable_at.into()).await;
        turn
    }

    /// Whether the backend's grants carry fences.
    #[must_use]
    pub fn has_fences(&self) -> bool {
        <H::Backend as LockBackend>::Fence::SUPPORTED
    }
}
