//! A complete backend with its conformance suite: a map behind a mutex, which tasks share.
//!
//! `cargo run --example custom_backend` shows it at work,
//! `cargo test -p syncguard-examples --example custom_backend` runs the suite on it.
//!
//! On a real store `table` is a connection, each call one script or statement, and one function
//! maps the driver's errors to codes, with `with_outcome_unknown()` where the store may have acted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use syncguard_core::{
    AcquireResult, Capabilities, ExtendResult, Fence, Grant, LockBackend, LockError, LockId,
    LockInfoDebug, LockKey, Lookup, Managed, ReleaseResult, TIME_TOLERANCE_MS, TimeAuthority, Ttl,
    acquire, is_live,
};

/// What users hold: deadlines, reclaiming and the rest of the policy come with `Managed`.
type ToyBackend = Managed<ToyStore>;

/// The latest lock of each key. It stays when it ends, so that no fence is granted twice.
type Table = HashMap<LockKey, LockInfoDebug>;

#[derive(Debug, Clone, Default)]
struct ToyStore {
    table: Arc<Mutex<Table>>,
}

impl ToyStore {
    /// The table and the time. The time is read after the wait: no lease is born dead.
    fn step(&self) -> (MutexGuard<'_, Table>, i64) {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
        (table, i64::try_from(now).unwrap_or(i64::MAX))
    }

    /// Moves the end of the live lock of `id`.
    fn end(&self, id: &LockId, end: impl FnOnce(i64) -> i64) -> Option<i64> {
        let (mut table, now_ms) = self.step();
        let mut live = table.values_mut().filter(|lock| is_held(lock, now_ms));
        let lock = live.find(|lock| lock.lock_id == *id)?;
        lock.expires_at_ms = end(now_ms);
        Some(lock.expires_at_ms)
    }
}

fn is_held(lock: &LockInfoDebug, now_ms: i64) -> bool {
    is_live(lock.expires_at_ms, now_ms, TIME_TOLERANCE_MS)
}

impl LockBackend for ToyStore {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new::<Fence>("toy", TimeAuthority::Server)
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let (mut table, now_ms) = self.step();
        let lock = match table.get(key) {
            Some(lock) if is_held(lock, now_ms) && lock.lock_id != *id => {
                return Ok(AcquireResult::Locked);
            }
            Some(lock) if is_held(lock, now_ms) => lock.clone(),
            former => LockInfoDebug {
                key: key.clone(),
                lock_id: *id,
                expires_at_ms: now_ms + ttl.as_millis(),
                acquired_at_ms: now_ms,
                fence: Fence::from_counter(former.map_or(1, |lock| lock.fence.get() + 1))?,
            },
        };
        table.insert(key.clone(), lock.clone());
        Ok(AcquireResult::Acquired(Grant {
            lock_id: *id,
            expires_at_ms: lock.expires_at_ms,
            fence: lock.fence,
        }))
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        Ok(match self.end(id, |_| 0) {
            Some(_) => ReleaseResult::Released,
            None => ReleaseResult::NotHeld { reason: None },
        })
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        Ok(match self.end(id, |now_ms| now_ms + ttl.as_millis()) {
            Some(expires_at_ms) => ExtendResult::Extended { expires_at_ms },
            None => ExtendResult::NotHeld { reason: None },
        })
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        Ok(self.lookup_raw(Lookup::Key(key)).await?.is_some())
    }

    async fn lookup_raw(&self, by: Lookup<'_>) -> Result<Option<LockInfoDebug>, LockError> {
        let (table, now_ms) = self.step();
        let mut live = table.values().filter(|lock| is_held(lock, now_ms));
        let found = live.find(|lock| match by {
            Lookup::Key(key) => lock.key == *key,
            Lookup::Id(id) => lock.lock_id == *id,
        });
        Ok(found.cloned())
    }
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let backend = ToyBackend::default();
    let ttl = Duration::from_secs(30);
    if let Some(guard) = acquire(&backend, "report:daily", ttl).await? {
        println!("granted under fence {}", guard.fence());
        let again = acquire(&backend, "report:daily", ttl).await?;
        println!("asked again: {}", again.map_or("held", |_| "granted"));
        println!("released: {:?}", guard.release().await?);
    }
    Ok(())
}

#[cfg(test)]
mod suite {
    use super::{LockError, ToyBackend, ToyStore};

    /// Clients of one store. With `set_fence_counter` too, the cases of used-up fences would run.
    #[derive(Default)]
    struct Harness(ToyStore);

    impl syncguard_conformance::Harness for Harness {
        type Backend = ToyBackend;

        async fn connect(&self) -> Result<ToyBackend, LockError> {
            Ok(ToyBackend::new(self.0.clone()))
        }
    }

    syncguard_conformance::suite!(Harness::default());
}
