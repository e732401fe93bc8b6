//! The diagnostic helpers, and the bare operations on text and durations.

use crate::{
    ExtendResult, LockError, LockId, LockInfo, LockInfoDebug, LockKey, Lookup, ManagedBackend,
    ReleaseResult, Ttl,
};

/// The live lock on a key, with hashes for identifiers; `None` if it is free.
///
/// ```
/// # use std::time::Duration;
/// # use syncguard_core::{acquire, get_by_key};
/// # use syncguard_memory::MemoryBackend;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
/// # let backend = MemoryBackend::default();
/// let guard = acquire(&backend, "deploy:production", Duration::from_secs(60)).await?.unwrap();
/// let info = get_by_key(&backend, "deploy:production").await?.unwrap();
/// assert_eq!(info.fence, guard.fence());
/// # Ok(()) }
/// ```
///
/// # Errors
/// `InvalidArgument` for a bad key, or a failure of the store.
///
/// # Cancel safety
/// Safe: it only reads.
pub async fn get_by_key<B, K>(backend: &B, key: K) -> Result<Option<LockInfo<B::Fence>>, LockError>
where
    B: ManagedBackend,
    K: TryInto<LockKey>,
    LockError: From<K::Error>,
{
    let key = key.try_into()?;
    backend.lookup(Lookup::Key(&key)).await
}

/// The live lock that an id holds, with hashes for identifiers; `None` if it holds none.
///
/// # Errors
/// `InvalidArgument` for a malformed id, or a failure of the store.
///
/// # Cancel safety
/// Safe: it only reads.
pub async fn get_by_id<B, I>(backend: &B, id: I) -> Result<Option<LockInfo<B::Fence>>, LockError>
where
    B: ManagedBackend,
    I: TryInto<LockId>,
    LockError: From<I::Error>,
{
    let id = id.try_into()?;
    backend.lookup(Lookup::Id(&id)).await
}

/// As [`get_by_key`], with the raw key and id. They are sensitive: for debugging only.
///
/// # Errors
/// As [`get_by_key`].
///
/// # Cancel safety
/// Safe: it only reads.
pub async fn get_by_key_raw<B, K>(
    backend: &B,
    key: K,
) -> Result<Option<LockInfoDebug<B::Fence>>, LockError>
where
    B: ManagedBackend,
    K: TryInto<LockKey>,
    LockError: From<K::Error>,
{
    let key = key.try_into()?;
    backend.lookup_raw(Lookup::Key(&key)).await
}

/// As [`get_by_id`], with the raw key and id. They are sensitive: for debugging only.
///
/// # Errors
/// As [`get_by_id`].
///
/// # Cancel safety
/// Safe: it only reads.
pub async fn get_by_id_raw<B, I>(
    backend: &B,
    id: I,
) -> Result<Option<LockInfoDebug<B::Fence>>, LockError>
where
    B: ManagedBackend,
    I: TryInto<LockId>,
    LockError: From<I::Error>,
{
    let id = id.try_into()?;
    backend.lookup_raw(Lookup::Id(&id)).await
}

/// Whether an id holds a live lock right now.
///
/// For diagnostics and user interfaces. Never `if owns { write }`: the answer can be out of date
/// when it arrives. Release and extend verify the owner themselves, and a resource that checks
/// fences needs no question at all.
///
/// # Errors
/// As [`get_by_id`].
///
/// # Cancel safety
/// Safe: it only reads.
pub async fn owns<B, I>(backend: &B, id: I) -> Result<bool, LockError>
where
    B: ManagedBackend,
    I: TryInto<LockId>,
    LockError: From<I::Error>,
{
    Ok(get_by_id(backend, id).await?.is_some())
}

/// Whether anyone holds a key.
///
/// # Errors
/// `InvalidArgument` for a bad key, or a failure of the store.
///
/// # Cancel safety
/// Safe: it only reads.
pub async fn is_locked<B, K>(backend: &B, key: K) -> Result<bool, LockError>
where
    B: ManagedBackend,
    K: TryInto<LockKey>,
    LockError: From<K::Error>,
{
    let key = key.try_into()?;
    backend.is_locked(&key).await
}

/// Gives back the lock that an id holds, from any process.
///
/// Asking again is harmless: it answers `NotHeld`, and never touches a successor's lock.
///
/// # Errors
/// `InvalidArgument` for a malformed id, or a failure of the store. The release is then repeated
/// in the background.
///
/// # Cancel safety
/// Safe: once begun, a dropped release goes on in the background.
pub async fn release<B, I>(backend: &B, id: I) -> Result<ReleaseResult, LockError>
where
    B: ManagedBackend,
    I: TryInto<LockId>,
    LockError: From<I::Error>,
{
    let id = id.try_into()?;
    backend.release(&id).await
}

/// Makes the lock that an id holds last for `ttl` from now, from any process.
///
/// # Errors
/// `InvalidArgument` for a malformed id or a bad TTL, or a failure of the store.
///
/// # Cancel safety
/// Safe, but whether the lease was extended is then unknown. It is never shorter than the shorter
/// of the two.
pub async fn extend<B, I, T>(backend: &B, id: I, ttl: T) -> Result<ExtendResult, LockError>
where
    B: ManagedBackend,
    I: TryInto<LockId>,
    T: TryInto<Ttl>,
    LockError: From<I::Error> + From<T::Error>,
{
    let (id, ttl) = (id.try_into()?, ttl.try_into()?);
    backend.extend(&id, ttl).await
}
