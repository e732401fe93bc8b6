//! Faults of TTLs, expiries and the tolerance.

use std::time::Duration;

use syncguard_core::backend::{AcquireResult, FailureReason, Lookup, TIME_TOLERANCE_MS};
use syncguard_core::{ExtendResult, LockId, LockInfoDebug, LockKey, ReleaseResult, Ttl};

use super::broken::Fault;
use super::on_tolerance::revive;
use super::store::{Answer, Ask, Store, lasting, now_ms};

/// Counts in seconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct TtlInSeconds;

impl Fault for TtlInSeconds {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let seconds = ask.ttl.as_duration().as_secs().max(1);
        let ttl = Ttl::new(Duration::from_secs(seconds))?;
        store.acquire(Ask { ttl, ..ask }).await
    }
}

/// Keeps milliseconds in 32 bits: 24 days.
#[derive(Debug, Clone, Default)]
pub(crate) struct TtlIn32Bits;

impl Fault for TtlIn32Bits {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let ttl = lasting(ask.ttl.as_millis().min(i32::MAX.into()));
        store.acquire(Ask { ttl, ..ask }).await
    }
}

/// Raises a TTL below 100 ms to 100 ms.
#[derive(Debug, Clone, Default)]
pub(crate) struct TtlHasAMinimum;

impl Fault for TtlHasAMinimum {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let ttl = lasting(ask.ttl.as_millis().max(100));
        store.acquire(Ask { ttl, ..ask }).await
    }
}

/// Returns an expiry one second later than the store's.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpiryIsLate;

impl Fault for ExpiryIsLate {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let mut answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &mut answer {
            grant.expires_at_ms += 1_000;
        }
        Ok(answer)
    }
}

/// Refuses a key for some time after the tolerance: a second, if it allows the tolerance once in the expiry that it keeps
/// and once in the comparison.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToleranceIsLonger<const MILLIS: i64>;

impl<const MILLIS: i64> Fault for ToleranceIsLonger<MILLIS> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let last = store.unreleased_on(ask.key);
        if last.is_some_and(|last| last.expires_at_ms > now_ms() - TIME_TOLERANCE_MS - MILLIS) {
            return Ok(AcquireResult::locked());
        }
        store.acquire(ask).await
    }
}

/// Extends dead locks.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendsTheDead;

impl Fault for ExtendsTheDead {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        revive(store, id, ttl).await
    }
}

/// Compares by `>=` in place of `>`: a lease is live a millisecond too long.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveAtTheBoundary;

impl LiveAtTheBoundary {
    fn live(row: &LockInfoDebug) -> bool {
        row.expires_at_ms >= now_ms() - TIME_TOLERANCE_MS
    }
}

impl Fault for LiveAtTheBoundary {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let last = store.unreleased_on(ask.key).filter(Self::live);
        if last.is_some_and(|last| last.lock_id != *ask.id) {
            return Ok(AcquireResult::locked());
        }
        store.acquire(ask).await
    }

    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        Ok(store.unreleased_on(key).as_ref().is_some_and(Self::live))
    }

    async fn lookup_raw(&self, store: &Store, by: Lookup<'_>) -> Answer<Option<LockInfoDebug>> {
        let found = match by {
            Lookup::Key(key) => store.unreleased_on(key),
            Lookup::Id(id) => store
                .row_of(id)
                .filter(|row| !row.released)
                .map(|row| row.info),
        };
        Ok(found.filter(Self::live))
    }
}

/// Subtracts the tolerance on the wrong side: reads count a lease as dead a second too early.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadsDeadEarly;

impl Fault for ReadsDeadEarly {
    async fn is_locked(&self, store: &Store, key: &LockKey) -> Answer<bool> {
        let holder = store.holder(key).await;
        Ok(holder.is_some_and(|holder| holder.expires_at_ms > now_ms() + TIME_TOLERANCE_MS))
    }
}

/// The same in acquire: a key is granted while its lease is live.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrantsEarly<const MILLIS: i64>;

impl<const MILLIS: i64> Fault for GrantsEarly<MILLIS> {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let holder = store.holder(ask.key).await;
        if holder.is_some_and(|holder| holder.expires_at_ms <= now_ms() + MILLIS) {
            return store.steal(ask).await;
        }
        store.acquire(ask).await
    }
}

/// Forgets the tolerance in acquire but not in extend, which writes without a look at the owner.
#[derive(Debug, Clone, Default)]
pub(crate) struct TolerancesDiffer;

impl Fault for TolerancesDiffer {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let holder = store.holder(ask.key).await;
        if holder.is_some_and(|holder| holder.expires_at_ms <= now_ms()) {
            return store.steal(ask).await;
        }
        store.acquire(ask).await
    }

    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let answer = store.memory.extend(id, ttl).await?;
        let row = store.row_of(id).filter(|row| !row.released);
        let Some(row) = row.filter(|row| {
            answer.expires_at_ms().is_none()
                && row.info.expires_at_ms > now_ms() - TIME_TOLERANCE_MS
        }) else {
            return Ok(answer);
        };
        let key = &row.info.key;
        let grant = store.steal(Ask { key, id, ttl }).await?.granted().unwrap();
        Ok(ExtendResult::extended(grant.expires_at_ms))
    }
}

/// Finds the row of an expired lease, removes it, and calls that a success.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReleasesTheExpired;

impl Fault for ReleasesTheExpired {
    async fn release(&self, store: &Store, id: &LockId) -> Answer<ReleaseResult> {
        Ok(match store.memory.release(id).await? {
            ReleaseResult::NotHeld {
                reason: Some(FailureReason::Expired),
                ..
            } => ReleaseResult::Released,
            answer => answer,
        })
    }
}

/// Returns an expiry one millisecond later than the store's.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpiryIsOneLate;

impl Fault for ExpiryIsOneLate {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let mut answer = store.acquire(ask).await?;
        if let AcquireResult::Acquired(grant) = &mut answer {
            grant.expires_at_ms += 1;
        }
        Ok(answer)
    }
}

/// Counts the lease of a key's new holder from the end of the former lease.
#[derive(Debug, Clone, Default)]
pub(crate) struct TakeOverCountsFromTheOldExpiry;

impl Fault for TakeOverCountsFromTheOldExpiry {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let expired = store.expired_on(ask.key).await;
        let mut answer = store.acquire(ask).await?;
        if let (Some(former), AcquireResult::Acquired(grant)) = (expired, &mut answer) {
            let ttl = lasting(former.expires_at_ms + ask.ttl.as_millis() - now_ms());
            let shortened = store.memory.extend(ask.id, ttl).await?;
            grant.expires_at_ms = shortened.expires_at_ms().unwrap();
        }
        Ok(answer)
    }
}

/// Stores a TTL that is a millisecond too short.
#[derive(Debug, Clone, Default)]
pub(crate) struct TtlIsOneShort;

impl Fault for TtlIsOneShort {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let ttl = lasting(ask.ttl.as_millis() - 1);
        store.acquire(Ask { ttl, ..ask }).await
    }
}

/// A day.
pub(crate) const DAY_MS: i64 = 86_400_000;

/// Rounds the TTL of an extend to seconds if it is longer than this.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendTtlInSeconds<const ABOVE_MS: i64>;

impl<const ABOVE_MS: i64> Fault for ExtendTtlInSeconds<ABOVE_MS> {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        let seconds = lasting(ttl.as_millis() / 1_000 * 1_000);
        let rounds = ttl.as_millis() > ABOVE_MS;
        store
            .memory
            .extend(id, if rounds { seconds } else { ttl })
            .await
    }
}

/// Allows the tolerance twice for a lock that was extended.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExtendedLivesOn;

impl Fault for ExtendedLivesOn {
    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        let expired = store.expired_on(ask.key).await.filter(|former| {
            former.lock_id != *ask.id && former.expires_at_ms > now_ms() - 2 * TIME_TOLERANCE_MS
        });
        let row = expired.and_then(|former| store.row_of(&former.lock_id));
        if row.is_some_and(|row| row.extends > 0) {
            return Ok(AcquireResult::locked());
        }
        store.acquire(ask).await
    }
}
