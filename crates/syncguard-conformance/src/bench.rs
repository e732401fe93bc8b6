//! [`Bench`]: the clients and keys of one case.

use std::sync::Arc;

use syncguard_core::backend::{FenceToken, LockBackend};
use syncguard_core::{LockId, LockKey, Locks};

use crate::outcome::step;
use crate::{Client, Failure, Harness};

/// Characters of a case's random namespace: 72 bits.
const NAMESPACE_LENGTH: usize = 12;

/// What a case is given: clients of the store, and keys that no other case uses.
#[derive(Debug)]
pub struct Bench<H> {
    harness: Arc<H>,
    namespace: String,
}

impl<H: Harness> Bench<H> {
    /// A bench with a random namespace of its own.
    ///
    /// # Errors
    /// If the system's random number generator fails.
    pub fn new(harness: Arc<H>) -> Result<Self, Failure> {
        let mut namespace = LockId::generate()?.as_str().to_owned();
        namespace.truncate(NAMESPACE_LENGTH);
        Ok(Self { harness, namespace })
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

    /// Whether the backend's grants carry fences.
    #[must_use]
    pub fn has_fences(&self) -> bool {
        <H::Backend as LockBackend>::Fence::SUPPORTED
    }
}
