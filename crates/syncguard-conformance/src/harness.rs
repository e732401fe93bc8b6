//! [`Harness`]: all that the suite needs to know of a backend.

use std::future::Future;
use std::sync::Arc;

use syncguard_core::backend::LockBackend;
use syncguard_core::{LockError, LockKey, LocksBuilder};

/// Connects the suite to a store.
///
/// ```
/// use syncguard_conformance::{Harness, Stored};
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
///
///     async fn stored(&self, beginning: &str) -> Result<Option<Stored>, LockError> {
///         let kept = self.0.kept(beginning);
///         let mut stored = Stored::default();
///         stored.locks = kept.locks;
///         stored.index_entries = kept.ids;
///         stored.fence_counters = kept.fence_counters;
///         stored.others = kept.watched;
///         Ok(Some(stored))
///     }
///
///     fn capacity(&self) -> usize {
///         5_000
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

    /// Counts what the store keeps of the keys that begin with this text: 12 characters or more, each a
    /// letter, a digit, `-`, `_` or `:`.
    ///
    /// It reads the store itself, past the backend: tables, names or documents. Cases call it at the
    /// beginning, between and at the end of their calls, while other cases use other keys.
    ///
    /// `Ok(None)`, the default, says that the harness cannot do so; the cases that need it are reported as
    /// skipped.
    ///
    /// # Errors
    /// A failure of the store; the case then fails.
    fn stored(
        &self,
        beginning: &str,
    ) -> impl Future<Output = Result<Option<Stored>, LockError>> + Send {
        let _ = beginning;
        std::future::ready(Ok(None))
    }

    /// How many locks the store must hold at once. The suite asks for as many as some seconds allow, and for
    /// up to a minute if these are fewer than the capacity. Default: 0.
    fn capacity(&self) -> usize {
        0
    }

    /// Whether all clients share one connection, which a call holds from its first step to its last. Default: false.
    ///
    /// Some cases halt a call between two steps and let other clients call. If these get no answer until the halted call
    /// goes on, the case is reported as skipped. With `true`, it passes if they are quick then. The suite cannot check
    /// the claim: on any other store, `true` hides calls that are not atomic.
    fn one_call_at_a_time(&self) -> bool {
        false
    }

    /// Configures the [`Locks`](syncguard_core::Locks) through which cases about policy use a client, for
    /// example with an observer. Default: no change.
    fn configure(&self, builder: LocksBuilder<Fence<Self>>) -> LocksBuilder<Fence<Self>> {
        builder
    }
}

/// What a store keeps of some keys, for [`Harness::stored`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// Locks: rows, values or documents. Released and expired ones that are still there count.
    pub locks: usize,
    /// Entries that lead from a lock id to its lock, if they are apart from the locks.
    pub index_entries: usize,
    /// Fence counters, or what is kept for that purpose alone.
    pub fence_counters: usize,
    /// All else that belongs to these keys: marks of callers that wait, watches, histories.
    pub others: usize,
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

    fn stored(
        &self,
        beginning: &str,
    ) -> impl Future<Output = Result<Option<Stored>, LockError>> + Send {
        H::stored(self, beginning)
    }

    fn capacity(&self) -> usize {
        H::capacity(self)
    }

    fn one_call_at_a_time(&self) -> bool {
        H::one_call_at_a_time(self)
    }

    fn configure(&self, builder: LocksBuilder<Fence<H>>) -> LocksBuilder<Fence<H>> {
        H::configure(self, builder)
    }
}
