//! [`Harness`]: all that the suite needs to know of a backend.

use std::future::Future;
use std::sync::Arc;

use syncguard_core::backend::LockBackend;
use syncguard_core::{LockError, LockKey, LocksBuilder};

/// Connects the suite to a store.
///
/// ```
/// use syncguard_conformance::Harness;
/// use syncguard_core::{LockError, LockKey};
/// use syncguard_memory::MemoryBackend;
///
/// #[derive(Default)]
/// struct MemoryHarness(MemoryBackend);
///
/// impl Harness for MemoryHarness {
///     type Backend = MemoryBackend;
///
///     async fn connect(&self) -> Result<MemoryBackend, LockError> {
///         Ok(self.0.clone())
///     }
///
///     async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
///         self.0.set_fence_counter(key, counter);
///         Ok(true)
///     }
/// }
/// ```
pub trait Harness: Send + Sync + 'static {
    /// The backend.
    type Backend: LockBackend;

    /// Makes a new client with its own connections. It shares nothing with earlier clients but the store.
    /// All clients use the *same* store, with the same prefix or tables.
    ///
    /// # Errors
    /// A failure to connect; the case then fails.
    fn connect(&self) -> impl Future<Output = Result<Self::Backend, LockError>> + Send;

    /// Sets the key's fence counter to `counter`: the next grant of the key has the fence `counter + 1`.
    ///
    /// `Ok(false)`, the default: the harness cannot do so. The report then lists the cases that need it as
    /// skipped.
    ///
    /// # Errors
    /// A failure of the store; the case then fails.
    fn set_fence_counter(
        &self,
        key: &LockKey,
        counter: u64,
    ) -> impl Future<Output = Result<bool, LockError>> + Send {
        let _ = (key, counter);
        std::future::ready(Ok(false))
    }

    /// Configures the [`Locks`](syncguard_core::Locks) through which cases about policy use a client, for
    /// example with an observer. Default: no change.
    fn configure(&self, builder: LocksBuilder<Fence<Self>>) -> LocksBuilder<Fence<Self>> {
        builder
    }
}

/// The fence type of a harness's backend.
pub(crate) type Fence<H> = <<H as Harness>::Backend as LockBackend>::Fence;

/// A harness that is shared.
#[deny(clippy::missing_trait_methods)]
impl<H: Harness> Harness for Arc<H> {
    type Backend = H::Backend;

    fn connect(&self) -> impl Future<Output = Result<Self::Backend, LockError>> + Send {
        H::connect(self)
    }

    fn set_fence_counter(
        &self,
        key: &LockKey,
        counter: u64,
    ) -> impl Future<Output = Result<bool, LockError>> + Send {
        H::set_fence_counter(self, key, counter)
    }

    fn configure(&self, builder: LocksBuilder<Fence<H>>) -> LocksBuilder<Fence<H>> {
        H::configure(self, builder)
    }
}
