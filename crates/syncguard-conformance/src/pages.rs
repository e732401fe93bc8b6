//! Listings, as cases ask for them.

use std::collections::{BTreeMap, BTreeSet};

use syncguard_core::backend::{ListPage, LockBackend};
use syncguard_core::list::KeyPrefix;
use syncguard_core::{LockInfoDebug, LockKey};

use crate::outcome::{require, same, step};
use crate::{Bench, Client, Failure, Harness, Outcome};

pub(crate) const CANNOT_LIST: Outcome =
    Outcome::Skipped("the backend cannot list its locks (LockBackend::list)");

/// More pages than the listing of any test's store has.
const MOST_PAGES: usize = 20_000;

/// Locks by the text of their keys.
pub(crate) type Listed<F> = BTreeMap<String, LockInfoDebug<F>>;

/// Whether the backend lists its locks.
#[track_caller]
pub(crate) fn can_list<H: Harness>(
    bench: &Bench<H>,
    client: &Client<H::Backend>,
) -> impl Future<Output = Result<bool, Failure>> {
    step(async move {
        let prefix = KeyPrefix::new(bench.namespace())?;
        Ok(client.list(&prefix, None, 1).await?.is_some())
    })
}

/// The pages of a listing from the first to the last. None may have more locks than its limit.
#[track_caller]
pub(crate) fn pages<B: LockBackend>(
    client: &Client<B>,
    prefix: &str,
    limit: u32,
) -> impl Future<Output = Result<Vec<ListPage<B::Fence>>, Failure>> {
    step(async move {
        let prefix = KeyPrefix::new(prefix)?;
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let page = client.list(&prefix, after.as_ref(), limit).await?;
            let page = page.ok_or_else(|| Failure::new("list: expected a page, saw None"))?;
            let count = page.locks.len();
            require(
                u32::try_from(count).is_ok_and(|count| count <= limit),
                format_args!("locks of a page: expected at most {limit}, saw {count}"),
            )?;
            after.clone_from(&page.next);
            pages.push(page);
            if after.is_none() {
                return Ok(pages);
            }
            require(
                pages.len() < MOST_PAGES,
                format_args!("a listing: expected its end, saw {MOST_PAGES} pages"),
            )?;
            // A store that answers at once would otherwise keep other tasks from the thread.
            tokio::task::yield_now().await;
        }
    })
}

/// What a listing shows. It must show a lock once or, if it says that it may repeat locks, once in a page.
#[track_caller]
pub(crate) fn listed<B: LockBackend>(
    client: &Client<B>,
    prefix: &str,
    limit: u32,
) -> impl Future<Output = Result<Listed<B::Fence>, Failure>> {
    step(async move {
        let mut listed = BTreeMap::new();
        for page in pages(client, prefix, limit).await? {
            let mut of_page = BTreeSet::new();
            for lock in page.locks {
                let (key, id) = (lock.key.as_str().to_owned(), lock.lock_id);
                let first = of_page.insert(key.clone());
                let before = listed.insert(key, lock);
                let repeated = before.is_some_and(|before| before.lock_id == id);
                require(
                    first && (page.may_repeat || !repeated),
                    "a listing: expected each lock once, saw one again",
                )?;
            }
        }
        Ok(listed)
    })
}

/// Fails unless a listing shows these locks and no others.
#[track_caller]
pub(crate) fn lists<B: LockBackend>(
    client: &Client<B>,
    prefix: &str,
    limit: u32,
    expected: &Listed<B::Fence>,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let listed = listed(client, prefix, limit).await?;
        for (key, lock) in expected {
            let found = listed.get(key);
            let found = found.ok_or_else(|| {
                let (found, all) = (listed.len(), expected.len());
                let seen = format_args!("saw {found} locks, and not that on {key:?}");
                Failure::new(format_args!("a listing: expected {all} locks, {seen}"))
            })?;
            same("a lock as a listing shows it", found, lock)?;
        }
        let other = listed.keys().find(|key| !expected.contains_key(*key));
        require(
            other.is_none(),
            format_args!("a listing of {prefix:?}: expected no other locks, saw {other:?}"),
        )
    })
}

/// The lock on a key as a lookup shows it, with the text of its key.
#[track_caller]
pub(crate) fn looked_up<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
) -> impl Future<Output = Result<(String, LockInfoDebug<B::Fence>), Failure>> {
    step(async move {
        let found = client
            .lookup_raw(syncguard_core::backend::Lookup::Key(key))
            .await?;
        let found = found.ok_or_else(|| Failure::new("lookup: expected the lock, saw None"))?;
        Ok((key.as_str().to_owned(), found))
    })
}
