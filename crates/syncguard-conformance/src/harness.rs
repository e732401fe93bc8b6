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

    /// Makes a new client of the store: own connections, nothing shared with earlier ones but the
    /// store itself. Always the *same* store, under the same prefix or in the same tables.
    ///
    /// # Errors
    /// Whatever keeps it from connecting; the case then fails.
    fn connect(&self) -> impl Future<Output = Result<Self::Backend, LockError>> + Send;

    /// Makes the key's fence counter stand at `counter`, as after a long history: the next grant
    /// of the key has the fence `counter + 1`.
    ///
    /// `Ok(false)`, the default, says that the harness cannot do so; the cases that need it are
    /// reported as skipped.
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

    /// Configures the [`Locks`](syncguard_core::Locks) by which cases about policy use a client, such
    /// as with an observer. Default: as it is.
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
