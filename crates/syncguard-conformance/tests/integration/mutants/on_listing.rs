//! Faults of listings.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use syncguard_core::backend::{
    AcquireResult, ListPage, ListPosition, MAX_PAGE_SIZE, TIME_TOLERANCE_MS,
};
use syncguard_core::list::KeyPrefix;
use syncguard_core::{ExtendResult, LockId, LockInfoDebug, LockKey, Ttl};

use super::broken::Fault;
use super::store::{Answer, Ask, Store, Wanted, now_ms};

/// All live locks with this prefix, in the order of their keys.
async fn all(store: &Store, prefix: &KeyPrefix) -> Answer<Vec<LockInfoDebug>> {
    let (mut locks, mut after) = (Vec::new(), None);
    loop {
        let wanted = Wanted {
            prefix,
            after: after.as_ref(),
            limit: MAX_PAGE_SIZE,
        };
        let page = store.memory.list(wanted).await?.expect("it lists");
        locks.extend(page.locks);
        after = page.next;
        if after.is_none() {
            return Ok(locks);
        }
    }
}

fn position(key: &LockKey) -> ListPosition {
    ListPosition::new(key.as_str().to_owned())
}

/// One page with all of these.
fn page_of(locks: impl IntoIterator<Item = LockInfoDebug>) -> Answer<Option<ListPage>> {
    Ok(Some(ListPage::new(locks.into_iter().collect(), None)))
}

/// The page of a correct store, and then something else.
async fn page(
    store: &Store,
    wanted: Wanted<'_>,
    change: impl FnOnce(&mut ListPage),
) -> Answer<Option<ListPage>> {
    let mut page = store.memory.list(wanted).await?;
    page.as_mut().map(change);
    Ok(page)
}

/// Shows only the first page.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopsAtThePage;

impl Fault for StopsAtThePage {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        page(store, wanted, |page| page.next = None).await
    }
}

/// Skips the lock behind a page.
#[derive(Debug, Clone, Default)]
pub(crate) struct SkipsOne;

impl Fault for SkipsOne {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let later = wanted.after.is_some();
        page(store, wanted, |page| {
            if later && !page.locks.is_empty() {
                page.locks.remove(0);
            }
        })
        .await
    }
}

/// Shows only the locks of its own client.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsItsOwn(Arc<Mutex<HashSet<LockId>>>);

impl Fault for ShowsItsOwn {
    fn connect(&self) -> Self {
        Self::default()
    }

    async fn acquire(&self, store: &Store, ask: Ask<'_>) -> Answer<AcquireResult> {
        self.0.lock().unwrap().insert(*ask.id);
        store.acquire(ask).await
    }

    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let own = self.0.lock().unwrap().clone();
        page(store, wanted, |page| {
            page.locks.retain(|lock| own.contains(&lock.lock_id));
        })
        .await
    }
}

/// Hides a lock whose expiry at the grant has passed, even if it was extended.
#[derive(Debug, Clone, Default)]
pub(crate) struct ForgetsExtends;

impl Fault for ForgetsExtends {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        page(store, wanted, |page| {
            page.locks.retain(|lock| {
                let row = store.row_of(&lock.lock_id).unwrap();
                row.first_expiry_ms > now_ms() - TIME_TOLERANCE_MS
            });
        })
        .await
    }
}

/// Shows the names under which the store has the keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsTheStorageKey;

impl Fault for ShowsTheStorageKey {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        page(store, wanted, |page| {
            for lock in &mut page.locks {
                let name = format!("syncguard:{}", lock.key.as_str());
                // The longest keys have no room for more.
                lock.key = LockKey::new(&name).unwrap_or_else(|_| lock.key.clone());
            }
        })
        .await
    }
}

/// Shows in all listings what the first one found.
#[derive(Debug, Clone, Default)]
pub(crate) struct IsCached(Arc<Mutex<HashMap<KeyPrefix, Vec<LockInfoDebug>>>>);

impl Fault for IsCached {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let cached = self.0.lock().unwrap().get(wanted.prefix).cloned();
        let locks = match cached {
            Some(locks) => locks,
            None => all(store, wanted.prefix).await?,
        };
        let mut cache = self.0.lock().unwrap();
        cache.insert(wanted.prefix.clone(), locks.clone());
        page_of(locks)
    }
}

/// Counts a lease as dead a second before its expiry.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndsEarly;

impl Fault for EndsEarly {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        page(store, wanted, |page| {
            let ends = now_ms() + 1_000;
            page.locks.retain(|lock| lock.expires_at_ms > ends);
        })
        .await
    }
}

/// Counts a lease as dead at its expiry.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndsAtTheExpiry;

impl Fault for EndsAtTheExpiry {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        page(store, wanted, |page| {
            page.locks.retain(|lock| lock.expires_at_ms > now_ms());
        })
        .await
    }
}

/// Pages by offset: locks that come and go before it move the others.
#[derive(Debug, Clone, Default)]
pub(crate) struct PagesByNumber;

impl Fault for PagesByNumber {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let from = wanted.after.map_or(0, |at| at.as_str().parse().unwrap());
        let limit = usize::try_from(wanted.limit).unwrap();
        let locks = all(store, wanted.prefix).await?.into_iter();
        let locks: Vec<_> = locks.skip(from).take(limit).collect();
        let next = (locks.len() == limit).then(|| ListPosition::new((from + limit).to_string()));
        Ok(Some(ListPage::new(locks, next)))
    }
}

/// Begins a page with the last lock of the page before.
#[derive(Debug, Clone, Default)]
pub(crate) struct RepeatsTheLast(Arc<Mutex<Option<LockInfoDebug>>>);

impl Fault for RepeatsTheLast {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let later = wanted.after.is_some();
        let limit = usize::try_from(wanted.limit).unwrap();
        page(store, wanted, |page| {
            let mut last = self.0.lock().unwrap();
            if let Some(last) = last.clone().filter(|_| later && page.locks.len() < limit) {
                page.locks.insert(0, last);
            }
            *last = page.locks.last().cloned();
        })
        .await
    }
}

/// Shows a lock twice in a page, and says of all pages that they may repeat.
#[derive(Debug, Clone, Default)]
pub(crate) struct RepeatsInThePage;

impl Fault for RepeatsInThePage {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let limit = usize::try_from(wanted.limit).unwrap();
        page(store, wanted, |page| {
            page.may_repeat = true;
            if let Some(last) = page.locks.last().filter(|_| page.locks.len() < limit) {
                page.locks.push(last.clone());
            }
        })
        .await
    }
}

/// Shows all locks that were not released, expired ones too.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsTheExpired;

impl Fault for ShowsTheExpired {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let mut locks = all(store, wanted.prefix).await?;
        for row in store.unreleased() {
            if wanted.prefix.begins(&row.key) && store.holder(&row.key).await.is_none() {
                locks.push(row);
            }
        }
        page_of(locks)
    }
}

/// Shows released locks beside the live ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsTheReleased(Arc<Mutex<Vec<LockInfoDebug>>>);

impl Fault for ShowsTheReleased {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let mut locks = all(store, wanted.prefix).await?;
        let seen: Vec<_> = self.0.lock().unwrap().clone();
        for lock in seen {
            let gone = store.row_of(&lock.lock_id).is_some_and(|row| row.released);
            if gone && wanted.prefix.begins(&lock.key) && store.holder(&lock.key).await.is_none() {
                locks.push(lock);
            }
        }
        self.0.lock().unwrap().extend(locks.iter().cloned());
        page_of(locks)
    }
}

/// Shows a key's former lock, once another one was granted.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsTheFormer;

impl Fault for ShowsTheFormer {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let unreleased = store.unreleased();
        page(store, wanted, |page| {
            for lock in &mut page.locks {
                let of_key = unreleased.iter().filter(|row| row.key == lock.key);
                if let Some(former) = of_key.min_by_key(|row| row.acquired_at_ms) {
                    *lock = former.clone();
                }
            }
        })
        .await
    }
}

/// Shows fence counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsCounters;

impl Fault for ShowsCounters {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let mut locks = all(store, wanted.prefix).await?;
        for mut row in store.unreleased() {
            let name = format!("fence:{}", row.key.as_str());
            let counter = LockKey::new(&name).ok();
            if let Some(counter) = counter.filter(|counter| wanted.prefix.begins(counter)) {
                row.key = counter;
                row.lock_id = LockId::generate()?;
                locks.push(row);
            }
        }
        page_of(locks)
    }
}

/// Compares prefixes without regard to case.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoldsPrefixes;

impl Fault for FoldsPrefixes {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let prefix = wanted.prefix.as_str().to_lowercase();
        let locks = all(store, &KeyPrefix::default()).await?.into_iter();
        page_of(locks.filter(|lock| lock.key.as_str().to_lowercase().starts_with(&prefix)))
    }
}

/// Uses a prefix as a pattern: of `LIKE`, or a glob.
#[derive(Debug, Clone, Default)]
pub(crate) struct PrefixesMatch<const GLOB: bool>;

impl<const GLOB: bool> Fault for PrefixesMatch<GLOB> {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let (any, whole) = if GLOB { ('?', '*') } else { ('_', '%') };
        let pattern: Vec<_> = wanted.prefix.as_str().chars().chain([whole]).collect();
        let locks = all(store, &KeyPrefix::default()).await?.into_iter();
        page_of(locks.filter(|lock| {
            let text: Vec<_> = lock.key.as_str().chars().collect();
            matches(&pattern, &text, any, whole)
        }))
    }
}

fn matches(pattern: &[char], text: &[char], any: char, whole: char) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if *first == whole => {
            (0..=text.len()).any(|cut| matches(rest, &text[cut..], any, whole))
        }
        (Some((first, rest)), Some((seen, others))) => {
            (*first == any || first == seen) && matches(rest, others, any, whole)
        }
        _ => false,
    }
}

/// Ends a range of keys one character too early.
#[derive(Debug, Clone, Default)]
pub(crate) struct CutsTheRange;

impl Fault for CutsTheRange {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let end = format!("{}\u{ffff}", wanted.prefix.as_str());
        page(store, wanted, |page| {
            page.locks.retain(|lock| lock.key.as_str() < end.as_str());
        })
        .await
    }
}

/// Leaves out the key that is equal to the prefix.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeavesThePrefixOut;

impl Fault for LeavesThePrefixOut {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        page(store, wanted, |page| {
            let prefix = wanted.prefix.as_str();
            page.locks.retain(|lock| lock.key.as_str() != prefix);
        })
        .await
    }
}

/// Shows one lock more than the limit.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsOneMore;

impl Fault for ShowsOneMore {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let limit = wanted.limit + 1;
        store.memory.list(Wanted { limit, ..wanted }).await
    }
}

/// Shows all at once.
#[derive(Debug, Clone, Default)]
pub(crate) struct IgnoresTheLimit;

impl Fault for IgnoresTheLimit {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        page_of(all(store, wanted.prefix).await?)
    }
}

/// Always has a next page.
#[derive(Debug, Clone, Default)]
pub(crate) struct NeverEnds;

impl Fault for NeverEnds {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let here = wanted.after.cloned();
        page(store, wanted, |page| {
            if page.next.is_none() {
                let last = page.locks.last().map(|lock| position(&lock.key));
                page.next = last
                    .or(here)
                    .or_else(|| LockKey::new("~").ok().as_ref().map(position));
            }
        })
        .await
    }
}

/// Extends what it shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeepsAlive;

impl Fault for KeepsAlive {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let page = store.memory.list(wanted).await?;
        for lock in page.iter().flat_map(|page| &page.locks) {
            let _ = store.memory.extend(&lock.lock_id, Ttl::MAX).await?;
        }
        Ok(page)
    }
}

/// Increments the fence counter at each listing.
#[derive(Debug, Clone, Default)]
pub(crate) struct BurnsFences;

impl Fault for BurnsFences {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        page(store, wanted, |page| {
            for lock in &page.locks {
                let burnt = lock.fence.get() + 1;
                store.memory.set_fence_counter(&lock.key, burnt);
            }
        })
        .await
    }
}

/// Releases what it finds in the tolerance.
#[derive(Debug, Clone, Default)]
pub(crate) struct RemovesTheOverdue;

impl Fault for RemovesTheOverdue {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let page = store.memory.list(wanted).await?;
        for lock in page.iter().flat_map(|page| &page.locks) {
            if lock.expires_at_ms <= now_ms() {
                let _ = store.memory.release(&lock.lock_id).await?;
            }
        }
        Ok(page)
    }
}

/// Deletes the counters of expired locks.
#[derive(Debug, Clone, Default)]
pub(crate) struct CleansFences;

impl Fault for CleansFences {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        for row in store.unreleased() {
            if store.holder(&row.key).await.is_none() {
                store.memory.set_fence_counter(&row.key, 0);
            }
        }
        store.memory.list(wanted).await
    }
}

/// Shows one lock more than the greatest limit.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowsOneMoreThanTheGreatest;

impl Fault for ShowsOneMoreThanTheGreatest {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let mut page = store.memory.list(wanted).await?.expect("it lists");
        if let Some(next) = page.next.take_if(|_| page.locks.len() >= 1_000) {
            let (after, limit) = (Some(&next), 1);
            let one = Wanted {
                after,
                limit,
                ..wanted
            };
            let one = store.memory.list(one).await?.expect("it lists");
            page.locks.extend(one.locks);
            page.next = one.next;
        }
        Ok(Some(page))
    }
}

/// Takes a page of a thousand locks for the last one.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopsAtAThousand;

impl Fault for StopsAtAThousand {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        page(store, wanted, |page| {
            page.next.take_if(|_| page.locks.len() >= 1_000);
        })
        .await
    }
}

/// Shows a lock that was extended as it was before, to the first page of a listing after that.
#[derive(Debug, Clone, Default)]
pub(crate) struct LagsBehindExtends(Arc<Mutex<HashMap<LockId, i64>>>);

impl Fault for LagsBehindExtends {
    async fn extend(&self, store: &Store, id: &LockId, ttl: Ttl) -> Answer<ExtendResult> {
        if let Some(held) = store.held_by(id).await {
            self.0.lock().unwrap().insert(*id, held.expires_at_ms);
        }
        store.memory.extend(id, ttl).await
    }

    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let before = std::mem::take(&mut *self.0.lock().unwrap());
        page(store, wanted, |page| {
            for lock in &mut page.locks {
                if let Some(expires_at_ms) = before.get(&lock.lock_id) {
                    lock.expires_at_ms = *expires_at_ms;
                }
            }
        })
        .await
    }
}

/// Continues a listing with what its first page read, without the locks that have changed since.
#[derive(Debug, Clone, Default)]
pub(crate) struct MissesWhatHasChanged(Arc<Mutex<Vec<LockInfoDebug>>>);

impl Fault for MissesWhatHasChanged {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        if wanted.after.is_none() {
            *self.0.lock().unwrap() = all(store, wanted.prefix).await?;
        }
        let read = self.0.lock().unwrap().clone();
        page(store, wanted, |page| {
            page.locks.retain(|lock| read.contains(lock));
        })
        .await
    }
}

/// Pages in the order of the expiries. It says that it may repeat locks, or not.
#[derive(Debug, Clone, Default)]
pub(crate) struct PagesByExpiry<const MAY_REPEAT: bool>;

impl<const MAY_REPEAT: bool> Fault for PagesByExpiry<MAY_REPEAT> {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let place =
            |lock: &LockInfoDebug| format!("{:020} {}", lock.expires_at_ms, lock.key.as_str());
        let mut locks = all(store, wanted.prefix).await?;
        locks.sort_by_key(place);
        if let Some(after) = wanted.after {
            locks.retain(|lock| place(lock).as_str() > after.as_str());
        }
        let limit = usize::try_from(wanted.limit).unwrap();
        let more = locks.len() > limit;
        locks.truncate(limit);
        let last = locks.last().filter(|_| more);
        let next = last.map(|lock| ListPosition::new(place(lock)));
        let mut page = ListPage::new(locks, next);
        page.may_repeat = MAY_REPEAT;
        Ok(Some(page))
    }
}

/// Begins again if the lock at which the page before ended is gone.
#[derive(Debug, Clone, Default)]
pub(crate) struct BeginsAgain;

impl Fault for BeginsAgain {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let mut after = wanted.after;
        if let Some(at) = wanted.after {
            let holder = store.holder(&LockKey::new(at.as_str())?).await;
            after = after.filter(|_| holder.is_some());
        }
        store.memory.list(Wanted { after, ..wanted }).await
    }
}

/// Has positions of several parts, and takes what is behind a bar in a key for the next part.
#[derive(Debug, Clone, Default)]
pub(crate) struct CutsPositionsAtABar;

impl Fault for CutsPositionsAtABar {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        page(store, wanted, |page| {
            let next = page.next.take();
            let cut = |at: ListPosition| at.as_str().split('|').next().unwrap().to_owned();
            page.next = next.map(cut).map(ListPosition::new);
        })
        .await
    }
}

/// Takes keys for names of its own: of fence counters, or of entries of its index of ids.
#[derive(Debug, Clone, Default)]
pub(crate) struct HidesNames<const IDS: bool>;

impl<const IDS: bool> Fault for HidesNames<IDS> {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let is_own = |name: &str| match IDS {
            true => LockId::parse(name.rsplit(':').next().unwrap()).is_ok(),
            false => name.contains("fence:"),
        };
        page(store, wanted, |page| {
            page.locks.retain(|lock| !is_own(lock.key.as_str()));
        })
        .await
    }
}

/// Finds nothing behind the last character before the surrogates: the next code point is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndsAtTheSurrogates;

impl Fault for EndsAtTheSurrogates {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let ends = wanted.prefix.as_str().ends_with('\u{d7ff}');
        page(store, wanted, |page| page.locks.retain(|_| !ends)).await
    }
}

/// Compares prefixes without two colons at their end, or the first 255 bytes of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct CutsPrefixes<const LONG: bool>;

impl<const LONG: bool> Fault for CutsPrefixes<LONG> {
    async fn list(&self, store: &Store, wanted: Wanted<'_>) -> Answer<Option<ListPage>> {
        let prefix = wanted.prefix.as_str();
        let cut = match LONG {
            true => prefix.get(..255).unwrap_or(prefix),
            false => prefix.strip_suffix("::").unwrap_or(prefix),
        };
        page_of(all(store, &KeyPrefix::new(cut)?).await?)
    }
}
