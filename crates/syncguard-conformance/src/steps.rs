//! The steps of cases: each does one thing and fails unless the result is right.
//!
//! A step is a function that returns a future, not an `async fn`: it runs where the case calls it,
//! so its failure can name that line of the case.

use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use syncguard_core::backend::{AcquireResult, FenceToken, Grant, LockBackend, Lookup};
use syncguard_core::{
    ErrorCode, ExtendResult, Fence, LockError, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl,
};
use tokio::task::JoinHandle;

use crate::outcome::{require, same, step};
use crate::{Client, Failure};

/// A TTL longer than any case.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// How long background work may take. Far below [`LONG`], and far above what it takes on a slow machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The same for the releases of hundreds of abandoned acquires, each of which is sent several times.
pub(crate) const DRAIN: Duration = Duration::from_secs(120);

#[track_caller]
pub(crate) fn ttl(duration: Duration) -> Result<Ttl, Failure> {
    Ok(Ttl::new(duration)?)
}

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Acquires a key that must be free, with a fresh id.
#[track_caller]
pub(crate) fn acquire<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    lasting: Duration,
) -> impl Future<Output = Result<Grant<B::Fence>, Failure>> {
    step(async move { acquire_as(client, key, &LockId::generate()?, lasting).await })
}

/// Acquires a key that must be free, or held by this id.
#[track_caller]
pub(crate) fn acquire_as<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    id: &LockId,
    lasting: Duration,
) -> impl Future<Output = Result<Grant<B::Fence>, Failure>> {
    step(async move {
        match client.acquire(key, id, ttl(lasting)?).await? {
            AcquireResult::Acquired(grant) => {
                same("the id of the grant", grant.lock_id, *id)?;
                Ok(grant)
            }
            AcquireResult::Locked { .. } => {
                Err(Failure::new("acquire: expected a grant, saw Locked"))
            }
        }
    })
}

/// Tries to acquire a key that another id must hold.
#[track_caller]
pub(crate) fn refused<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        match client
            .acquire(key, &LockId::generate()?, ttl(LONG)?)
            .await?
        {
            AcquireResult::Locked { .. } => Ok(()),
            AcquireResult::Acquired(_) => Err(Failure::new(
                "acquire of a held key: expected Locked, saw a grant",
            )),
        }
    })
}

/// Tries to acquire a key that may be held, and releases it. Returns whether the attempt was refused.
#[track_caller]
pub(crate) fn challenge<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<bool, Failure>> {
    step(async move {
        let challenger = LockId::generate()?;
        let attempt = client.acquire(key, &challenger, ttl(LONG)?).await?;
        let refused = attempt.is_locked();
        let released = client.release(&challenger).await?.is_released();
        same("the release after an attempt", released, !refused)?;
        Ok(refused)
    })
}

/// The quickest grants of a free key, and the quickest answers about another one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quickest {
    granting: Duration,
    answering: Option<Duration>,
}

impl Quickest {
    pub(crate) const NONE: Self = Self {
        granting: Duration::MAX,
        answering: None,
    };

    /// Acquires the idle key.
    #[track_caller]
    pub(crate) fn grant<B: LockBackend>(
        &mut self,
        client: &Client<B>,
        idle: &LockKey,
    ) -> impl Future<Output = Result<(), Failure>> {
        step(async move {
            let began = Instant::now();
            let grant = acquire(client, idle, LONG).await?;
            self.granting = self.granting.min(began.elapsed());
            release(client, &grant.lock_id).await
        })
    }

    /// Tries to acquire the other key. Returns whether that was refused.
    #[track_caller]
    pub(crate) fn ask<B: LockBackend>(
        &mut self,
        client: &Client<B>,
        key: &LockKey,
    ) -> impl Future<Output = Result<bool, Failure>> {
        step(async move {
            let (challenger, lasting) = (LockId::generate()?, ttl(LONG)?);
            let began = Instant::now();
            let refused = client.acquire(key, &challenger, lasting).await?.is_locked();
            let took = began.elapsed();
            self.answering = Some(self.answering.map_or(took, |quickest| quickest.min(took)));
            if !refused {
                release(client, &challenger).await?;
            }
            Ok(refused)
        })
    }

    /// How long an answer may take that does not wait.
    pub(crate) fn bound(&self) -> Duration {
        self.granting.saturating_mul(10) + ms(50)
    }

    /// Fails if the quickest answer took much longer than grants do.
    #[track_caller]
    pub(crate) fn answers_do_not_wait(&self) -> Result<(), Failure> {
        let (answering, bound) = (self.answering.unwrap_or_default(), self.bound());
        require(
            answering <= bound,
            format_args!(
                "the quickest answer to an acquire: expected {bound:?} at most, saw {answering:?}"
            ),
        )
    }
}

/// Releases a lock that must be held.
#[track_caller]
pub(crate) fn release<B: LockBackend>(
    client: &Client<B>,
    id: &LockId,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        match client.release(id).await? {
            ReleaseResult::Released => Ok(()),
            ReleaseResult::NotHeld { .. } => {
                Err(Failure::new("release: expected Released, saw NotHeld"))
            }
        }
    })
}

/// Releases what must not be held.
#[track_caller]
pub(crate) fn not_released<B: LockBackend>(
    client: &Client<B>,
    id: &LockId,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        match client.release(id).await? {
            ReleaseResult::NotHeld { .. } => Ok(()),
            ReleaseResult::Released => Err(Failure::new(
                "release of what is not held: expected NotHeld, saw Released",
            )),
        }
    })
}

/// Extends a lock that must be held; returns the store's new expiry.
#[track_caller]
pub(crate) fn renew<B: LockBackend>(
    client: &Client<B>,
    id: &LockId,
    lasting: Duration,
) -> impl Future<Output = Result<i64, Failure>> {
    step(async move {
        match client.extend(id, ttl(lasting)?).await? {
            ExtendResult::Extended { expires_at_ms, .. } => Ok(expires_at_ms),
            ExtendResult::NotHeld { .. } => {
                Err(Failure::new("extend: expected Extended, saw NotHeld"))
            }
        }
    })
}

/// Extends what must not be held.
#[track_caller]
pub(crate) fn not_renewed<B: LockBackend>(
    client: &Client<B>,
    id: &LockId,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        match client.extend(id, ttl(LONG)?).await? {
            ExtendResult::NotHeld { .. } => Ok(()),
            ExtendResult::Extended { .. } => Err(Failure::new(
                "extend of what is not held: expected NotHeld, saw Extended",
            )),
        }
    })
}

/// The lock on a key that `id` must hold, by every lookup.
#[track_caller]
pub(crate) fn held<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    id: &LockId,
) -> impl Future<Output = Result<LockInfoDebug<B::Fence>, Failure>> {
    step(async move {
        require(
            client.is_locked(key).await?,
            "is_locked of a held key: expected true, saw false",
        )?;
        let found = |what: &str, info: Option<LockInfoDebug<B::Fence>>| {
            info.ok_or_else(|| Failure::new(format_args!("{what}: expected the lock, saw None")))
        };
        let by_key = client.lookup_raw(Lookup::Key(key)).await?;
        let by_key = found("lookup of a held key", by_key)?;
        let by_id = client.lookup_raw(Lookup::Id(id)).await?;
        let by_id = found("lookup of a holding id", by_id)?;
        same("lookup by id, as by key", &by_id, &by_key)?;
        same("the key that lookup shows", &by_key.key, key)?;
        same("the id that lookup shows", by_key.lock_id, *id)?;
        Ok(by_key)
    })
}

/// Fails unless every lookup says that the key is free.
#[track_caller]
pub(crate) fn free<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        require(
            !client.is_locked(key).await?,
            "is_locked of a free key: expected false, saw true",
        )?;
        require(
            client.lookup_raw(Lookup::Key(key)).await?.is_none(),
            "lookup of a free key: expected None, saw a lock",
        )
    })
}

/// Fails unless every lookup says that the id holds nothing.
#[track_caller]
pub(crate) fn holds_nothing<B: LockBackend>(
    client: &Client<B>,
    id: &LockId,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        require(
            client.lookup_raw(Lookup::Id(id)).await?.is_none(),
            "lookup of an id that holds nothing: expected None, saw a lock",
        )?;
        not_renewed(client, id).await?;
        not_released(client, id).await
    })
}

/// Waits for a background release of a key, well before its TTL.
#[track_caller]
pub(crate) fn soon_free<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let started = Instant::now();
        while client.is_locked(key).await? {
            require(
                started.elapsed() < SOON,
                format_args!("expected the key to be free soon, saw it held after {SOON:?}"),
            )?;
            tokio::time::sleep(ms(10)).await;
        }
        Ok(())
    })
}

/// The fence of a grant, if the backend has fences.
pub(crate) fn fence_of<F: FenceToken>(grant: &Grant<F>) -> Option<u64> {
    grant.fence.fence().map(Fence::get)
}

/// The fence that a lookup shows, if the backend has fences.
pub(crate) fn fence_in<F: FenceToken>(info: &LockInfoDebug<F>) -> Option<u64> {
    info.fence.fence().map(Fence::get)
}

/// Acquires and releases a key; returns the fence of the grant.
#[track_caller]
pub(crate) fn next_fence<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<Option<u64>, Failure>> {
    step(async move {
        let grant = acquire(client, key, LONG).await?;
        release(client, &grant.lock_id).await?;
        Ok(fence_of(&grant))
    })
}

/// How long the lock of [`expiring`] is live.
pub(crate) const EXPIRING: Duration = Duration::from_millis(10);

/// A lock that expires at once, as it was before.
#[track_caller]
pub(crate) fn expiring<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<LockInfoDebug<B::Fence>, Failure>> {
    step(async move {
        let id = acquire(client, key, LONG).await?.lock_id;
        let info = held(client, key, &id).await?;
        renew(client, &id, EXPIRING).await?;
        Ok(info)
    })
}

/// How often a lease is extended before it ends: a store may treat one that never was, or often was, in another way.
pub(crate) const EXTENDS: [usize; 3] = [0, 1, 3];

/// Acquires the key of an expired lock for somebody else.
#[track_caller]
pub(crate) fn take_over<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    former: &LockInfoDebug<B::Fence>,
) -> impl Future<Output = Result<LockInfoDebug<B::Fence>, Failure>> {
    step(async move {
        let successor = acquire(client, key, LONG).await?.lock_id;
        let info = held(client, key, &successor).await?;
        rise(fence_in(former), fence_in(&info))?;
        Ok(info)
    })
}

/// By how much the key's fence rises from one grant to the next without other operations.
#[track_caller]
pub(crate) fn fence_step<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<Option<u64>, Failure>> {
    step(async move {
        let first = next_fence(client, key).await?;
        let second = next_fence(client, key).await?;
        rise(first, second)
    })
}

/// The rise of the fence; it must rise.
#[track_caller]
pub(crate) fn rise(earlier: Option<u64>, later: Option<u64>) -> Result<Option<u64>, Failure> {
    let (Some(earlier), Some(later)) = (earlier, later) else {
        return Ok(None);
    };
    match later.checked_sub(earlier) {
        Some(step) if step > 0 => Ok(Some(step)),
        _ => Err(Failure::new(format_args!(
            "fence of a later grant: expected more than {earlier}, saw {later}"
        ))),
    }
}

/// Joins tasks of a case; a task that panicked fails the case.
#[track_caller]
pub(crate) fn join<T>(
    tasks: impl IntoIterator<Item = JoinHandle<Result<T, Failure>>>,
) -> impl Future<Output = Result<Vec<T>, Failure>> {
    step(async move {
        let mut answers = Vec::new();
        for joined in join_all(tasks).await {
            match joined {
                Ok(answer) => answers.push(answer?),
                Err(error) => {
                    return Err(Failure::new(format_args!("a task of the case: {error}")));
                }
            }
        }
        Ok(answers)
    })
}

/// An operation that must fail with this code.
#[track_caller]
pub(crate) fn fails_with<T>(
    what: &str,
    code: ErrorCode,
    operation: impl IntoFuture<Output = Result<T, LockError>>,
) -> impl Future<Output = Result<LockError, Failure>> {
    step(async move {
        match operation.await {
            Err(error) if error.code() == code => Ok(error),
            Err(error) => Err(Failure::new(format_args!(
                "{what}: expected {code}, saw {}",
                error.code()
            ))),
            Ok(_) => Err(Failure::new(format_args!(
                "{what}: expected {code}, saw an answer"
            ))),
        }
    })
}
