//! [`work`]: a client that uses a few keys in every way there is, and records what it sees.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use syncguard_core::{
    AcquireResult, ExtendResult, Fence, LockError, LockId, LockInfoDebug, LockKey, Lookup,
    ManagedBackend, ReleaseResult, Ttl,
};

use crate::clock::now_us;
use crate::history::{Operation, Outcome};
use crate::record::Recorder;
use crate::rng::Rng;

/// A lock that was leaked shows itself at the end, which comes long before.
const LONG_TTL_MS: u64 = 120_000;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(45);

/// What a worker does.
#[derive(Debug, Clone)]
pub struct Work {
    /// Told apart from other workers by this number.
    pub worker: u32,
    /// How many clients it is, all on one backend.
    pub clients: u32,
    /// Determines the choices it makes, though not what comes of them.
    pub seed: u64,
    /// The keys that it contends for.
    pub keys: Vec<LockKey>,
    /// When it ends, by [`now_us`](crate::now_us).
    pub until_us: i64,
}

/// Does the work, gives everything back and waits until that is done. Tells how many calls it made.
///
/// # Errors
/// If calls cannot be recorded, or the backend's background work does not come to an end.
pub async fn work<B>(backend: B, work: Work, recorder: Recorder) -> Result<u64>
where
    B: ManagedBackend<Fence = Fence>,
{
    let recorder = Arc::new(recorder);
    let clients: Vec<_> = (0..work.clients)
        .map(|index| {
            let number = work.worker * 100 + index;
            let client = Client {
                number,
                backend: backend.clone(),
                recorder: Arc::clone(&recorder),
                rng: Rng::part(work.seed, number.into()),
                former: None,
            };
            tokio::spawn(client.run(work.keys.clone(), work.until_us))
        })
        .collect();
    for client in clients {
        client.await??;
    }
    let drained = backend.drain(DRAIN_TIMEOUT).await;
    drained.context("locks of unknown outcome were not given back")?;
    Ok(recorder.calls())
}

struct Client<B> {
    number: u32,
    backend: B,
    recorder: Arc<Recorder>,
    rng: Rng,
    /// A lock that it held once.
    former: Option<(LockKey, LockId)>,
}

impl<B: ManagedBackend<Fence = Fence>> Client<B> {
    async fn run(mut self, keys: Vec<LockKey>, until_us: i64) -> Result<()> {
        while now_us() < until_us {
            let key = self.rng.pick(&keys).context("no keys to work on")?.clone();
            let id = LockId::generate()?;
            let (ttl, is_short) = self.ttl()?;
            match self.acquire(&key, &id, ttl).await? {
                Outcome::Granted { .. } => {
                    self.hold(&key, &id).await?;
                    self.give_up(&key, &id, is_short).await?;
                    self.former = Some((key, id));
                }
                Outcome::Locked => self.look_around(&key).await?,
                _ => self.pause(5..60).await,
            }
        }
        Ok(())
    }

    /// What a holder does with its lock.
    async fn hold(&mut self, key: &LockKey, id: &LockId) -> Result<()> {
        for _ in 0..self.rng.within(0..4) {
            match self.rng.within(0..10) {
                0..=3 => {
                    let ttl = self.ttl()?.0;
                    self.extend(key, id, ttl).await?;
                }
                4 => {
                    let ttl = self.ttl()?.0;
                    self.acquire(key, id, ttl).await?;
                }
                5 => self.look_up(key, Lookup::Id(id)).await?,
                6 => self.look_up(key, Lookup::Key(key)).await?,
                7 => self.is_locked(key).await?,
                _ => self.pause(1..15).await,
            }
        }
        Ok(())
    }

    /// Releases; now and then too late, twice, or after it has extended what it no longer has.
    async fn give_up(&mut self, key: &LockKey, id: &LockId, is_short: bool) -> Result<()> {
        if is_short && self.rng.percent(15) {
            self.pause(300..1_600).await;
            if self.rng.percent(50) {
                let ttl = self.ttl()?.0;
                self.extend(key, id, ttl).await?;
            }
        }
        self.release(key, id).await?;
        if self.rng.percent(10) {
            self.release(key, id).await?;
        }
        Ok(())
    }

    /// What one does whose attempt was refused.
    async fn look_around(&mut self, key: &LockKey) -> Result<()> {
        match (self.rng.within(0..10), self.former.clone()) {
            (0, _) => self.look_up(key, Lookup::Key(key)).await?,
            (1, _) => self.is_locked(key).await?,
            (2, Some((key, id))) => self.release(&key, &id).await?,
            (3, Some((key, id))) => {
                let ttl = self.ttl()?.0;
                self.extend(&key, &id, ttl).await?;
            }
            (4, Some((key, id))) => self.look_up(&key, Lookup::Id(&id)).await?,
            _ => self.pause(1..8).await,
        }
        Ok(())
    }

    /// A TTL, and whether it may well run out.
    fn ttl(&mut self) -> Result<(Ttl, bool)> {
        let is_short = self.rng.percent(35);
        let millis = if is_short {
            self.rng.within(30..500)
        } else {
            LONG_TTL_MS
        };
        Ok((Ttl::new(Duration::from_millis(millis))?, is_short))
    }

    async fn acquire(&mut self, key: &LockKey, id: &LockId, ttl: Ttl) -> Result<Outcome> {
        let operation = Operation::Acquire {
            id: id.as_str().to_owned(),
            ttl_ms: ttl.as_millis(),
        };
        let backend = self.backend.clone();
        self.record(key, operation, async {
            Ok(match backend.acquire(key, id, ttl).await {
                Ok(AcquireResult::Acquired(grant)) => Outcome::Granted {
                    fence: grant.fence.get(),
                    expires_at_ms: grant.expires_at_ms,
                },
                Ok(AcquireResult::Locked) => Outcome::Locked,
                Err(error) => failure(&error),
            })
        })
        .await
    }

    async fn extend(&mut self, key: &LockKey, id: &LockId, ttl: Ttl) -> Result<Outcome> {
        let operation = Operation::Extend {
            id: id.as_str().to_owned(),
            ttl_ms: ttl.as_millis(),
        };
        let backend = self.backend.clone();
        self.record(key, operation, async {
            Ok(match backend.extend(id, ttl).await {
                Ok(ExtendResult::Extended { expires_at_ms }) => Outcome::Extended { expires_at_ms },
                Ok(ExtendResult::NotHeld { .. }) => Outcome::NotHeld,
                Err(error) => failure(&error),
            })
        })
        .await
    }

    async fn release(&mut self, key: &LockKey, id: &LockId) -> Result<()> {
        let operation = Operation::Release {
            id: id.as_str().to_owned(),
        };
        let backend = self.backend.clone();
        self.record(key, operation, async {
            Ok(match backend.release(id).await {
                Ok(ReleaseResult::Released) => Outcome::Released,
                Ok(ReleaseResult::NotHeld { .. }) => Outcome::NotHeld,
                // Whatever it says of this attempt, the release is repeated in the background.
                Err(_) => Outcome::Unknown,
            })
        })
        .await?;
        Ok(())
    }

    async fn is_locked(&mut self, key: &LockKey) -> Result<()> {
        let backend = self.backend.clone();
        self.record(key, Operation::IsLocked, async {
            Ok(match backend.is_locked(key).await {
                Ok(true) => Outcome::Locked,
                Ok(false) => Outcome::Free,
                Err(_) => Outcome::Failed,
            })
        })
        .await?;
        Ok(())
    }

    async fn look_up(&mut self, key: &LockKey, by: Lookup<'_>) -> Result<()> {
        let operation = match by {
            Lookup::Key(_) => Operation::LookupByKey,
            Lookup::Id(id) => Operation::LookupById {
                id: id.as_str().to_owned(),
            },
        };
        let backend = self.backend.clone();
        self.record(key, operation, async {
            let answer = backend.lookup_raw(by).await;
            Ok(answer.map_or(Outcome::Failed, seen))
        })
        .await?;
        Ok(())
    }

    /// Makes a call and writes it down. Some are given up after a moment, as a caller's own timeout
    /// would have it.
    async fn record(
        &mut self,
        key: &LockKey,
        operation: Operation,
        call: impl Future<Output = Result<Outcome>>,
    ) -> Result<Outcome> {
        let reads = operation.only_reads();
        let patience = self
            .rng
            .percent(4)
            .then(|| Duration::from_micros(self.rng.within(100..50_000)));
        let number = self.recorder.made(self.number, key.as_str(), operation)?;
        let outcome = match patience {
            None => call.await?,
            Some(patience) => match tokio::time::timeout(patience, call).await {
                Ok(outcome) => outcome?,
                Err(_) if reads => Outcome::Failed,
                Err(_) => Outcome::Unknown,
            },
        };
        self.recorder.returned(number, outcome.clone())?;
        Ok(outcome)
    }

    async fn pause(&mut self, millis: std::ops::Range<u64>) {
        tokio::time::sleep(Duration::from_millis(self.rng.within(millis))).await;
    }
}

/// What a lookup saw.
#[must_use]
pub fn seen(info: Option<LockInfoDebug>) -> Outcome {
    info.map_or(Outcome::Free, |info| Outcome::Found {
        key: info.key.as_str().to_owned(),
        id: info.lock_id.as_str().to_owned(),
        fence: info.fence.get(),
        acquired_at_ms: info.acquired_at_ms,
        expires_at_ms: info.expires_at_ms,
    })
}

fn failure(error: &LockError) -> Outcome {
    if error.outcome_unknown() {
        Outcome::Unknown
    } else {
        Outcome::Failed
    }
}
