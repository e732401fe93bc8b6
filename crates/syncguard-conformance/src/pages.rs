//! Listings, as cases ask for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use syncguard_core::backend::{FenceToken, ListPage, ListPosition, LockBackend};
use syncguard_core::list::KeyPrefix;
use syncguard_core::{LockId, LockInfoDebug, LockKey};

use crate::harness::Fence;
use crate::outcome::{require, same, step};
use crate::steps::{LONG, acquire, release, renew};
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
        let mut listing = Listing::new(client, prefix, limit)?;
        let mut pages = Vec::new();
        while let Some(page) = listing.next_page().await? {
            pages.push(page);
        }
        Ok(pages)
    })
}

/// A listing under way.
struct Listing<'a, B: LockBackend> {
    client: &'a Client<B>,
    prefix: KeyPrefix,
    limit: u32,
    pages: usize,
    after: Option<ListPosition>,
}

impl<'a, B: LockBackend> Listing<'a, B> {
    fn new(client: &'a Client<B>, prefix: &str, limit: u32) -> Result<Self, Failure> {
        Ok(Self {
            client,
            prefix: KeyPrefix::new(prefix)?,
            limit,
            pages: 0,
            after: None,
        })
    }

    /// The next page, `None` after the last one. Fails if it has more locks than its limit.
    #[track_caller]
    fn next_page(&mut self) -> impl Future<Output = Result<Option<ListPage<B::Fence>>, Failure>> {
        step(async move {
            if self.pages > 0 && self.after.is_none() {
                return Ok(None);
            }
            require(
                self.pages < MOST_PAGES,
                format_args!("a listing: expected its end, saw {MOST_PAGES} pages"),
            )?;
            self.pages += 1;
            let (after, limit) = (self.after.as_ref(), self.limit);
            let page = self.client.list(&self.prefix, after, limit).await?;
            let page = page.ok_or_else(|| Failure::new("list: expected a page, saw None"))?;
            let count = page.locks.len();
            require(
                u32::try_from(count).is_ok_and(|count| count <= limit),
                format_args!("locks of a page: expected at most {limit}, saw {count}"),
            )?;
            self.after.clone_from(&page.next);
            Ok(Some(page))
        })
    }
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

/// Acquires free keys, and shows the locks as a lookup does.
#[track_caller]
pub(crate) fn hold<B: LockBackend>(
    client: &Client<B>,
    keys: &[LockKey],
) -> impl Future<Output = Result<Listed<B::Fence>, Failure>> {
    step(async move {
        let mut locks = BTreeMap::new();
        for key in keys {
            acquire(client, key, LONG).await?;
            locks.extend([looked_up(client, key).await?]);
        }
        Ok(locks)
    })
}

#[track_caller]
pub(crate) fn release_all<B: LockBackend>(
    client: &Client<B>,
    locks: &Listed<B::Fence>,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let ids: Vec<LockId> = locks.values().map(|lock| lock.lock_id).collect();
        for id in ids {
            release(client, &id).await?;
        }
        Ok(())
    })
}

/// The locks whose keys begin with this text.
pub(crate) fn beginning<F: FenceToken>(locks: &Listed<F>, prefix: &str) -> Listed<F> {
    let beginning = locks.iter().filter(|(text, _)| text.starts_with(prefix));
    beginning
        .map(|(text, lock)| (text.clone(), lock.clone()))
        .collect()
}

/// Fails unless a listing shows all of these locks, each once, while others are granted after one page and released
/// after the next, or the other way round.
#[track_caller]
pub(crate) fn changes_between_pages<H: Harness>(
    bench: &Bench<H>,
    client: &Client<H::Backend>,
    other: &Client<H::Backend>,
    held_first: bool,
    expected: &Listed<Fence<H>>,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let passing = [
            bench.key("a:0")?,
            bench.key("a:1")?,
            bench.key("steady:1:z")?,
            bench.key("z")?,
        ];
        let mut held = match held_first {
            true => Some(hold(other, &passing).await?),
            false => None,
        };
        let mut listed = BTreeMap::new();
        let mut listing = Listing::new(client, bench.namespace(), 4)?;
        while let Some(page) = listing.next_page().await? {
            for lock in page.locks {
                let text = lock.key.as_str().to_owned();
                let again = expected.contains_key(&text) && listed.contains_key(&text);
                require(
                    page.may_repeat || !again,
                    "a listing: expected each lock once, saw one again",
                )?;
                listed.insert(text, lock);
            }
            held = match held {
                Some(held) => {
                    release_all(other, &held).await?;
                    None
                }
                None => Some(hold(other, &passing).await?),
            };
        }
        if let Some(held) = held {
            release_all(other, &held).await?;
        }
        for (text, lock) in expected {
            let what = format!("the lock on {text:?} while others come and go between pages");
            same(&what, listed.get(text), Some(lock))?;
        }
        Ok(())
    })
}

/// After the first page, extends the locks that it showed by one TTL and the others by another, and releases the last
/// lock of that page. Fails unless the listing shows each lock once. Then releases all.
#[track_caller]
pub(crate) fn extends_between_pages<B: LockBackend>(
    client: &Client<B>,
    other: &Client<B>,
    prefix: &str,
    locks: &Listed<B::Fence>,
    (shown, to_come): (Duration, Duration),
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let (mut listing, mut seen) = (Listing::new(client, prefix, 4)?, BTreeSet::new());
        let mut held = locks.clone();
        while let Some(page) = listing.next_page().await? {
            for lock in &page.locks {
                let first = seen.insert(lock.key.as_str().to_owned());
                require(
                    first || page.may_repeat,
                    "a listing: expected each lock once, saw one again",
                )?;
            }
            if listing.pages == 1 {
                for (text, lock) in locks {
                    let lasting = if seen.contains(text) { shown } else { to_come };
                    renew(other, &lock.lock_id, lasting).await?;
                }
                if let Some(last) = page.locks.last() {
                    release(other, &last.lock_id).await?;
                    held.remove(last.key.as_str());
                }
            }
        }
        for text in locks.keys() {
            require(
                seen.contains(text),
                format_args!(
                    "a listing: expected the lock on {text:?}, changed after the first page, saw none"
                ),
            )?;
        }
        release_all(other, &held).await
    })
}

/// Fails unless a listing shows all of these locks, among others.
#[track_caller]
pub(crate) fn shows_all<B: LockBackend>(
    client: &Client<B>,
    prefix: &str,
    expected: &Listed<B::Fence>,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let listed = listed(client, prefix, 4).await?;
        for (text, lock) in expected {
            let what = format!("the lock on {text:?} while others come and go");
            same(&what, listed.get(text), Some(lock))?;
        }
        Ok(())
    })
}
