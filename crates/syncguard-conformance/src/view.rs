//! [`View`]: what the store keeps, as the harness counts it.

use std::time::Instant;

use syncguard_core::{LockId, LockKey};

use crate::outcome::{require, same, step};
use crate::steps::{LONG, SOON, acquire, ms, release};
use crate::{Bench, Failure, Harness, Stored};

/// What the store keeps of a case's keys.
pub(crate) struct View<'a, H> {
    bench: &'a Bench<H>,
    beginning: String,
    /// Whether the store keeps an index entry for each lock, and a counter for each key.
    indexed: bool,
    counted: bool,
}

impl<'a, H: Harness> View<'a, H> {
    /// A view of all keys of the case.
    #[track_caller]
    pub(crate) fn new(bench: &'a Bench<H>) -> impl Future<Output = Result<Option<Self>, Failure>> {
        Self::of(bench, "")
    }

    /// A view of the keys of this name. `None` if the harness cannot read the store.
    #[track_caller]
    pub(crate) fn of(
        bench: &'a Bench<H>,
        name: &'a str,
    ) -> impl Future<Output = Result<Option<Self>, Failure>> {
        step(async move {
            // Another namespace: the lock that shows how the store keeps them is not among those counted.
            let sample = LockId::generate()?.as_str()[..12].to_owned();
            let client = bench.client().await?;
            let key = LockKey::new(&format!("{sample}:held"))?;
            let id = acquire(&client, &key, LONG).await?.lock_id;
            let stored = bench.harness().stored(&sample).await?;
            release(&client, &id).await?;
            let Some(stored) = stored else {
                return Ok(None);
            };
            same("stored locks of a held key", stored.locks, 1)?;
            require(
                stored.index_entries <= 1 && stored.fence_counters <= 1,
                format_args!("stored for a held key: expected one of each, saw {stored:?}"),
            )?;
            same(
                "whether a counter is stored for a key with fences",
                stored.fence_counters == 1,
                bench.has_fences(),
            )?;
            Ok(Some(Self {
                bench,
                beginning: format!("{}:{name}", bench.namespace()),
                indexed: stored.index_entries == 1,
                counted: stored.fence_counters == 1,
            }))
        })
    }

    pub(crate) fn expected(&self, locks: usize, keys: usize) -> Stored {
        Stored {
            locks,
            index_entries: if self.indexed { locks } else { 0 },
            fence_counters: if self.counted { keys } else { 0 },
            others: 0,
        }
    }

    #[track_caller]
    pub(crate) fn count(&self) -> impl Future<Output = Result<Stored, Failure>> {
        step(async move {
            let stored = self.bench.harness().stored(&self.beginning).await?;
            stored.ok_or_else(|| Failure::new("stored: expected the counts, saw None"))
        })
    }

    /// Fails unless the store keeps this many locks, and what belongs to this many keys.
    #[track_caller]
    pub(crate) fn keeps(
        &self,
        what: &'static str,
        locks: usize,
        keys: usize,
    ) -> impl Future<Output = Result<(), Failure>> {
        step(async move {
            let stored = self.count().await?;
            same(
                &format!("stored for {what}"),
                stored,
                self.expected(locks, keys),
            )
        })
    }

    /// The same, once background work has ended.
    #[track_caller]
    pub(crate) fn soon_keeps(
        &self,
        what: &'static str,
        locks: usize,
        keys: usize,
    ) -> impl Future<Output = Result<(), Failure>> {
        step(async move {
            let began = Instant::now();
            while self.count().await? != self.expected(locks, keys) && began.elapsed() < SOON {
                tokio::time::sleep(ms(20)).await;
            }
            self.keeps(what, locks, keys).await
        })
    }
}
