//! A complete backend with its conformance suite: a map behind a mutex, which tasks share.
//!
//! `cargo run --example custom_backend` shows it at work,
//! `cargo test -p syncguard-examples --example custom_backend` runs the suite on it.
//!
//! On a real store `table` is a connection, each call one script or statement, and one function
//! maps the driver's errors to codes, with `with_outcome_unknown()` where the store may have acted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, ExtendRequest, Grant, LockBackend, Lookup,
    LookupRequest, ReleaseRequest, TIME_TOLERANCE_MS, TimeAuthority, is_live,
};
use syncguard_core::{
    ExtendResult, Fence, LockError, LockId, LockInfoDebug, LockKey, Locks, ReleaseResult,
};

/// The latest lock of each key. It stays when it ends, so that no fence is granted twice.
type Table = HashMap<LockKey, LockInfoDebug>;

#[derive(Debug, Clone, Default)]
struct ToyBackend {
    table: Arc<Mutex<Table>>,
}

impl ToyBackend {
    /// The table and the time. The time is read after the wait: a lease gets its whole TTL.
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

impl LockBackend for ToyBackend {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new("toy", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        let AcquireRequest { key, id, ttl, .. } = request;
        let (mut table, now_ms) = self.step();
        let lock = match table.get(key) {
            Some(lock) if is_held(lock, now_ms) && lock.lock_id != *id => {
                return Ok(AcquireResult::locked());
            }
            Some(lock) if is_held(lock, now_ms) => lock.clone(),
            former => {
                let fence = Fence::from_counter(former.map_or(1, |lock| lock.fence.get() + 1))?;
                let ends = now_ms + ttl.as_millis();
                LockInfoDebug::new(key.clone(), *id, ends, now_ms, fence)
            }
        };
        let grant = Grant::new(*id, lock.expires_at_ms, lock.fence);
        table.insert(key.clone(), lock);
        Ok(AcquireResult::Acquired(grant))
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        Ok(match self.end(request.id, |_| 0) {
            Some(_) => ReleaseResult::Released,
            None => ReleaseResult::not_held(None),
        })
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        let ExtendRequest { id, ttl, .. } = request;
        Ok(match self.end(id, |now_ms| now_ms + ttl.as_millis()) {
            Some(expires_at_ms) => ExtendResult::extended(expires_at_ms),
            None => ExtendResult::not_held(None),
        })
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        let (table, now_ms) = self.step();
        let mut live = table.values().filter(|lock| is_held(lock, now_ms));
        let found = live.find(|lock| match request.by {
            Lookup::Key(key) => lock.key == *key,
            Lookup::Id(id) => lock.lock_id == *id,
        });
        Ok(found.cloned())
    }
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    // Deadlines, waiting, guards and the rest of the policy come with `Locks`.
    let locks = Locks::new(ToyBackend::default());
    let guard = locks.lock("report:daily").await?;
    println!("granted under fence {}", guard.fence());
    let again = locks.try_lock("report:daily").await?;
    println!("asked again: {}", again.map_or("held", |_| "granted"));
    println!("released: {:?}", guard.release().await?);
    Ok(())
}

#[cfg(test)]
mod suite {
    use super::{LockError, ToyBackend};

    /// Clients of one store. With `set_fence_counter` too, the cases of used-up fences would run.
    #[derive(Default)]
    struct Harness(ToyBackend);

    impl syncguard_conformance::Harness for Harness {
        type Backend = ToyBackend;

        async fn connect(&self) -> Result<ToyBackend, LockError> {
            Ok(self.0.clone())
        }
    }

    syncguard_conformance::suite!(Harness::default());
}
