//! [`work`]: clients that use a few keys with all operations, and record the results.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use syncguard_core::backend::{AcquireRequest, LockBackend};
use syncguard_core::observe::{Observer, WaitEnd};
use syncguard_core::{
    ErrorCode, Fence, LockError, LockGuard, LockId, LockKey, Locks, LocksBuilder, Ttl,
};
use tokio::time::{Instant, timeout};

use crate::clock::now_us;
use crate::record::Recorder;
use crate::recording::Recording;
use crate::rng::Rng;

/// A TTL longer than a run: so a leaked lock is still held at the end of the run.
const LONG_TTL_MS: u64 = 120_000;
/// A repeated acquire that arrives late holds its key no longer than this.
const REPEATED_TTL: Duration = Duration::from_millis(300);
/// For how long to wait for a repeated acquire.
const REPEATED_WITHIN: Duration = Duration::from_millis(500);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(45);

/// The options of a worker.
#[derive(Debug, Clone)]
pub struct Work {
    /// Distinguishes it from other workers.
    pub worker: u32,
    /// How many clients it runs, all over one backend.
    pub clients: u32,
    /// Determines its choices, but not their outcomes.
    pub seed: u64,
    /// The keys that it contends for.
    pub keys: Vec<LockKey>,
    /// When it ends, by [`now_us`](crate::now_us).
    pub until_us: i64,
}

/// Does the work over `Locks` that `configure` configures, then releases everything and waits for that.
/// Returns how many operations its clients made through them.
///
/// # Errors
/// If calls cannot be recorded, or background releases do not end.
pub async fn work<B>(
    backend: B,
    configure: impl Fn(LocksBuilder) -> LocksBuilder,
    work: Work,
    recorder: Recorder,
) -> Result<u64>
where
    B: LockBackend<Fence = Fence>,
{
    let (backend, recorder) = (Arc::new(backend), Arc::new(recorder));
    let clients: Vec<_> = (0..work.clients)
        .map(|index| {
            let number = work.worker * 100 + index;
            let backend = Recording::new(Arc::clone(&backend), number, Arc::clone(&recorder));
            let asked = Arc::<Asked>::default();
            let builder = Locks::builder(backend.clone()).observe(asked.clone());
            let client = Client {
                locks: configure(builder).build(),
                asked,
                backend,
                rng: Rng::part(work.seed, number.into()),
                former: None,
                operations: 0,
            };
            tokio::spawn(client.run(work.keys.clone(), work.until_us))
        })
        .collect();
    let mut operations = 0;
    for client in clients {
        operations += client.await??;
    }
    Ok(operations)
}

/// How often calls of `lock` have asked the store.
#[derive(Default)]
struct Asked(AtomicU64);

impl Observer for Asked {
    fn wait_ended(&self, wait: &WaitEnd<'_>) {
        self.0
            .fetch_add(wait.summary.attempts.into(), Ordering::Relaxed);
    }
}

struct Client<B> {
    locks: Locks,
    asked: Arc<Asked>,
    backend: Recording<B>,
    rng: Rng,
    /// A lock that it held once.
    former: Option<LockId>,
    operations: u64,
}

impl<B: LockBackend<Fence = Fence>> Client<B> {
    async fn run(mut self, keys: Vec<LockKey>, until_us: i64) -> Result<u64> {
        while now_us() < until_us {
            let key = self.rng.pick(&keys).context("no keys to work on")?.clone();
            let (ttl, is_short) = self.ttl()?;
            let acquired = if self.rng.percent(25) {
                self.wait(&key, ttl).await
            } else {
                let attempt = self.locks.try_lock(&key).ttl(ttl);
                self.call(attempt).await
            };
            match acquired {
                Some(Ok(Some(guard))) => {
                    let id = *guard.lock_id();
                    self.hold(&key, &id).await?;
                    self.give_up(guard, is_short).await?;
                    self.former = Some(id);
                }
                Some(Ok(None)) => self.look_around(&key).await?,
                Some(Err(_)) | None => self.pause(5..60).await,
            }
        }
        let drained = self.locks.drain(DRAIN_TIMEOUT).await;
        drained.context("locks of unknown outcome were not released")?;
        Ok(self.operations + self.asked.0.load(Ordering::Relaxed))
    }

    /// Waits for a key.
    async fn wait(
        &mut self,
        key: &LockKey,
        ttl: Ttl,
    ) -> Option<Result<Option<LockGuard>, LockError>> {
        let timeout = Duration::from_millis(self.rng.within(5..300));
        let wait = self.locks.lock(key).ttl(ttl).timeout(timeout);
        Some(match self.some_abandoned(wait).await? {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.code() == ErrorCode::AcquisitionTimeout => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// The work of a holder.
    async fn hold(&mut self, key: &LockKey, id: &LockId) -> Result<()> {
        for _ in 0..self.rng.within(0..4) {
            match self.rng.within(0..10) {
                0..=3 => self.extend(id).await?,
                4 => self.repeat_acquire(key, id).await?,
                5 => self.look_up_id(id).await,
                6 => self.look_up_key(key).await,
                7 => self.is_locked(key).await,
                _ => self.pause(1..15).await,
            }
        }
        Ok(())
    }

    /// Releases; sometimes too late, twice, by dropping the guard, or after an extend of a lock that it no
    /// longer has.
    async fn give_up(&mut self, guard: LockGuard, is_short: bool) -> Result<()> {
        let id = *guard.lock_id();
        if is_short && self.rng.percent(15) {
            self.pause(300..1_600).await;
            if self.rng.percent(50) {
                self.extend(&id).await?;
            }
        }
        match self.rng.within(0..10) {
            0..=1 => {
                // Its release in the background is an operation, too.
                drop(guard);
                self.operations += 1;
            }
            2..=4 => {
                let release = guard.release();
                let _ = self.call(release).await;
            }
            _ => {
                drop(guard.detach());
                self.release(&id).await;
            }
        }
        if self.rng.percent(10) {
            self.release(&id).await;
        }
        Ok(())
    }

    /// What a caller does after a refusal.
    async fn look_around(&mut self, key: &LockKey) -> Result<()> {
        match (self.rng.within(0..10), self.former) {
            (0, _) => self.look_up_key(key).await,
            (1, _) => self.is_locked(key).await,
            (2, Some(id)) => self.release(&id).await,
            (3, Some(id)) => self.extend(&id).await?,
            (4, Some(id)) => self.look_up_id(&id).await,
            _ => self.pause(1..8).await,
        }
        Ok(())
    }

    /// A TTL, and whether the lock may well expire.
    fn ttl(&mut self) -> Result<(Ttl, bool)> {
        let is_short = self.rng.percent(35);
        let millis = if is_short {
            self.rng.within(30..500)
        } else {
            LONG_TTL_MS
        };
        Ok((Ttl::new(Duration::from_millis(millis))?, is_short))
    }

    /// Repeats an acquire of the id that holds the key, as a driver may.
    async fn repeat_acquire(&mut self, key: &LockKey, id: &LockId) -> Result<()> {
        let (ttl, deadline) = (Ttl::new(REPEATED_TTL)?, Instant::now() + REPEATED_WITHIN);
        let acquire = self
            .backend
            .acquire(AcquireRequest::new(key, id, ttl, deadline));
        let _ = tokio::time::timeout_at(deadline, acquire).await;
        Ok(())
    }

    async fn extend(&mut self, id: &LockId) -> Result<()> {
        let ttl = self.ttl()?.0;
        let extend = self.locks.extend(id, ttl);
        let _ = self.call(extend).await;
        Ok(())
    }

    async fn release(&mut self, id: &LockId) {
        let release = self.locks.release(id);
        let _ = self.call(release).await;
    }

    async fn is_locked(&mut self, key: &LockKey) {
        let question = self.locks.is_locked(key);
        let _ = self.call(question).await;
    }

    async fn look_up_key(&mut self, key: &LockKey) {
        let lookup = self.locks.get_by_key_raw(key);
        let _ = self.call(lookup).await;
    }

    async fn look_up_id(&mut self, id: &LockId) {
        let lookup = self.locks.get_by_id_raw(id);
        let _ = self.call(lookup).await;
    }

    /// Makes a call that is one operation.
    async fn call<T>(
        &mut self,
        operation: impl IntoFuture<Output = Result<T, LockError>>,
    ) -> Option<Result<T, LockError>> {
        self.operations += 1;
        self.some_abandoned(operation).await
    }

    /// Makes a call. Abandons some after a moment, like a caller's own timeout: `None`.
    async fn some_abandoned<T>(
        &mut self,
        operation: impl IntoFuture<Output = Result<T, LockError>>,
    ) -> Option<Result<T, LockError>> {
        if !self.rng.percent(4) {
            return Some(operation.await);
        }
        let patience = Duration::from_micros(self.rng.within(100..50_000));
        timeout(patience, operation).await.ok()
    }

    async fn pause(&mut self, millis: std::ops::Range<u64>) {
        tokio::time::sleep(Duration::from_millis(self.rng.within(millis))).await;
    }
}
