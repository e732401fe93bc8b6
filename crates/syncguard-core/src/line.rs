//! [`Lines`]: callers of `lock` in one process wait for a key in order of arrival.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry as Slot, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::backend::FenceToken;
use crate::lease::WeakLease;
use crate::{Lease, LockId, LockKey};

/// The lines of all keys that a caller waits for or that a guard of this process holds.
#[derive(Clone)]
pub(crate) struct Lines<F: FenceToken>(Arc<Shared<F>>);

/// After this many grants in a row, while other processes want the key too, a process pauses. If nobody
/// acquires the key in the pause, the next run may be twice as long.
const RUN: u32 = 2;
const LONGEST_RUN: u32 = 64;

/// The pause, in durations of a refusal: the others have to be woken and to ask.
const STAND_BACK: u32 = 2;
const SHORTEST_STAND_BACK: Duration = Duration::from_millis(2);
const LONGEST_STAND_BACK: Duration = Duration::from_millis(100);

/// A process also pauses once it has had the key for this many times the length of a pause, although it knows of nobody
/// else: its line asks as soon as a release is answered, and may win every race against others that want the key.
const LONGEST_ALONE: u32 = 100;

/// For how long after a refusal SyncGuard assumes that others want the key. Others that poll ask at least
/// this often.
const CONTENDED_FOR: Duration = Duration::from_secs(1);

struct Shared<F: FenceToken> {
    lines: Mutex<Keys<F>>,
    /// How many callers wait, for any key.
    waiting: AtomicUsize,
}

struct Keys<F: FenceToken> {
    // Faster than the standard library's hash, and seeded at random, too.
    entries: HashMap<LockKey, Entry<F>, RandomState>,
    /// Lines without a place that are kept for a while because others want their keys, and until when.
    resting: VecDeque<(Instant, LockKey)>,
    /// The last line that was removed, to be used for the next key. So a lock that nobody waits for
    /// allocates no line.
    spare: Option<Arc<Line<F>>>,
}

struct Entry<F: FenceToken> {
    line: Arc<Line<F>>,
    /// How many places refer to the line.
    places: usize,
    /// It is kept without a place.
    rests: bool,
}

struct Line<F: FenceToken> {
    /// One permit, given in order of arrival. Only the caller that has it asks the store.
    turn: Semaphore,
    waiting: AtomicUsize,
    /// The lock that a guard of this process holds.
    held: Mutex<Option<(LockId, WeakLease<F>)>>,
    share: Mutex<Share>,
    /// Notifies that the key may be free: a release of this process ended.
    freed: Notify,
}

/// The grants that this process got of a key that others want too.
#[derive(Debug)]
struct Share {
    /// When the key was last seen held by others.
    refused_at: Option<Instant>,
    /// How long that refusal took; without one, how long the last grant took.
    round_trip: Duration,
    /// Grants in a row since the last refusal or pause.
    run: u32,
    longest_run: u32,
    /// The process has paused, and not asked since.
    stood_back: bool,
    /// Since when the line has had the key without a pause, and knows of nobody else.
    alone_since: Option<Instant>,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            refused_at: None,
            round_trip: Duration::ZERO,
            run: 0,
            longest_run: RUN,
            stood_back: false,
            alone_since: None,
        }
    }
}

impl Share {
    fn granted(&mut self, asked: Option<Instant>) {
        self.run = self.run.saturating_add(1);
        if let Some(asked) = asked
            && self.run >= RUN
            && self.refused_at.is_none()
        {
            self.round_trip = asked.elapsed();
        }
        if self.stood_back {
            // Nobody acquired the key in the pause.
            self.stood_back = false;
            self.longest_run = LONGEST_RUN.min(self.longest_run * 2);
        }
    }

    fn refused(&mut self, round_trip: Duration) {
        *self = Self {
            refused_at: Some(Instant::now()),
            round_trip,
            ..Self::default()
        };
    }

    /// Until when SyncGuard assumes that others want the key.
    fn contended_until(&self) -> Option<Instant> {
        let until = self.refused_at? + CONTENDED_FOR;
        (Instant::now() < until).then_some(until)
    }

    /// How long to pause for the others, if it is time to.
    fn stand_back(&mut self) -> Option<Duration> {
        if self.run < RUN {
            return None;
        }
        let pause = self.round_trip * STAND_BACK;
        let pause = pause.clamp(SHORTEST_STAND_BACK, LONGEST_STAND_BACK);
        let due = match self.contended_until() {
            Some(_) => self.run >= self.longest_run,
            None => {
                let now = Instant::now();
                now - *self.alone_since.get_or_insert(now) >= pause * LONGEST_ALONE
            }
        };
        if due {
            self.run = 0;
            self.stood_back = true;
            self.alone_since = None;
        }
        due.then_some(pause)
    }
}

impl<F: FenceToken> Lines<F> {
    /// A place in the line of a key.
    pub(crate) fn enter(&self, key: &LockKey) -> Place<F> {
        let mut keys = unpoisoned(&self.0.lines);
        keys.forget_rested();
        let Keys { entries, spare, .. } = &mut *keys;
        let entry = entries.entry(key.clone()).or_insert_with(|| Entry {
            line: spare.take().and_then(renewed).unwrap_or_default(),
            places: 0,
            rests: false,
        });
        entry.places += 1;
        Place {
            line: Arc::clone(&entry.line),
            key: key.clone(),
            holds: OnceLock::new(),
            shared: Arc::clone(&self.0),
        }
    }

    /// The background released a lock on this key.
    pub(crate) fn freed(&self, key: &LockKey) {
        if let Some(entry) = unpoisoned(&self.0.lines).entries.get(key) {
            entry.line.notify();
        }
    }

    /// The lock of this id was released. If a guard of this process holds it, the next caller in its line asks.
    pub(crate) fn released(&self, id: &LockId) {
        // The search for the id takes time, and usually nobody waits.
        if self.0.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        for entry in unpoisoned(&self.0.lines).entries.values() {
            entry.line.let_go(id);
        }
    }
}

impl<F: FenceToken> Keys<F> {
    /// A place was dropped. The last one removes the line, or keeps it for a while.
    fn leave(&mut self, key: &LockKey) {
        let Slot::Occupied(mut slot) = self.entries.entry(key.clone()) else {
            return;
        };
        let entry = slot.get_mut();
        entry.places -= 1;
        if entry.places > 0 || entry.rests {
            return;
        }
        match entry.line.contended_until() {
            Some(until) => {
                entry.rests = true;
                self.resting.push_back((until, key.clone()));
            }
            None => self.spare = Some(slot.remove().line),
        }
    }

    /// Removes some of the lines that were kept for long enough. Called more often than lines are kept.
    fn forget_rested(&mut self) {
        const AT_MOST: usize = 4;
        if self.resting.is_empty() {
            return;
        }
        let now = Instant::now();
        for _ in 0..AT_MOST {
            let Some((_, key)) = self.resting.pop_front_if(|(until, _)| *until <= now) else {
                return;
            };
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.rests = false;
                entry.places += 1;
                self.leave(&key);
            }
        }
    }
}

impl<F: FenceToken> Line<F> {
    fn contended_until(&self) -> Option<Instant> {
        unpoisoned(&self.share).contended_until()
    }

    /// The lock of this id is no longer held.
    fn let_go(&self, id: &LockId) {
        let mut held = unpoisoned(&self.held);
        if held.as_ref().is_some_and(|(holder, _)| holder == id) {
            *held = None;
            // A caller that begins to wait reads `held` after it was counted.
            self.notify();
        }
    }

    fn notify(&self) {
        // If the permit stayed, it would wake a later caller.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.freed.notify_one();
        }
    }
}

/// A place in the line of a key. It belongs to a caller that waits, then to the guard that holds the key.
pub(crate) struct Place<F: FenceToken> {
    line: Arc<Line<F>>,
    key: LockKey,
    /// The lock, once it is held.
    holds: OnceLock<LockId>,
    shared: Arc<Shared<F>>,
}

impl<F: FenceToken> Place<F> {
    /// Counts the caller as one that waits. Returns how many are ahead of it.
    pub(crate) fn wait(&self) -> (InLine<'_, F>, usize) {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        let ahead = self.line.waiting.fetch_add(1, Ordering::Relaxed);
        (InLine(self), ahead)
    }

    /// Notes that this lease holds the key, and when a caller in the line asked for it. Others wait until the place is
    /// dropped.
    pub(crate) fn hold(&self, lease: &Lease<F>, asked: Option<Instant>) {
        unpoisoned(&self.line.share).granted(asked);
        let id = *self.holds.get_or_init(|| *lease.lock_id());
        *unpoisoned(&self.line.held) = Some((id, lease.downgrade()));
    }

    /// The store has refused the key: others hold it. The reply took this long.
    pub(crate) fn refused(&self, round_trip: Duration) {
        unpoisoned(&self.line.share).refused(round_trip);
    }

    /// How long to pause for the others.
    pub(crate) fn stand_back(&self) -> Option<Duration> {
        unpoisoned(&self.line.share).stand_back()
    }

    /// Whether other callers wait, too.
    pub(crate) fn others_wait(&self) -> bool {
        self.line.waiting.load(Ordering::Relaxed) > 1
    }

    /// How much is left of the lease if a guard of this process holds the key. While that guard releases, the
    /// result is longer than any caller waits.
    pub(crate) fn held_for(&self) -> Option<Duration> {
        let held = unpoisoned(&self.line.held);
        let lease = held.as_ref().and_then(|(_, lease)| lease.upgrade())?;
        // This may be the last reference: do not drop it under the mutex.
        drop(held);
        match lease.is_ended() {
            true => Some(Duration::MAX),
            false => Some(lease.remaining()).filter(|left| !left.is_zero()),
        }
    }

    /// Resolves once a release of this process has ended.
    pub(crate) async fn freed(&self) {
        self.line.freed.notified().await;
    }
}

impl<F: FenceToken> Drop for Place<F> {
    fn drop(&mut self) {
        if let Some(id) = self.holds.get() {
            self.line.let_go(id);
        }
        let mut keys = unpoisoned(&self.shared.lines);
        keys.leave(&self.key);
    }
}

/// A caller that waits.
pub(crate) struct InLine<'a, F: FenceToken>(&'a Place<F>);

impl<'a, F: FenceToken> InLine<'a, F> {
    /// The caller's turn to ask the store, if nobody is ahead of it.
    pub(crate) fn try_turn(&self) -> Option<SemaphorePermit<'a>> {
        self.0.line.turn.try_acquire().ok()
    }

    /// Waits for the caller's turn to ask the store. Turns come in the order of these calls.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'a> {
        match self.0.line.turn.acquire().await {
            Ok(turn) => turn,
            // Cannot happen: nobody closes the semaphore.
            Err(_) => std::future::pending().await,
        }
    }
}

impl<F: FenceToken> Drop for InLine<'_, F> {
    fn drop(&mut self) {
        self.0.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.line.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The line, reset, if nobody refers to it any more.
fn renewed<F: FenceToken>(mut line: Arc<Line<F>>) -> Option<Arc<Line<F>>> {
    *Arc::get_mut(&mut line)? = Line::default();
    Some(line)
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: FenceToken> Default for Line<F> {
    fn default() -> Self {
        Self {
            turn: Semaphore::new(1),
            waiting: AtomicUsize::new(0),
            held: Mutex::default(),
            share: Mutex::default(),
            freed: Notify::new(),
        }
    }
}

impl<F: FenceToken> Default for Lines<F> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            lines: Mutex::new(Keys {
                entries: HashMap::default(),
                resting: VecDeque::new(),
                spare: None,
            }),
            waiting: AtomicUsize::new(0),
        }))
    }
}

impl<F: FenceToken> fmt::Debug for Place<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fence;

    fn key(text: &str) -> LockKey {
        LockKey::new(text).unwrap()
    }

    fn kept(lines: &Lines<Fence>) -> usize {
        unpoisoned(&lines.0.lines).entries.len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_ends_with_its_last_place_unless_others_want_the_key() {
        let lines = Lines::<Fence>::default();
        let (first, second) = (lines.enter(&key("k")), lines.enter(&key("k")));
        drop(first);
        assert_eq!(kept(&lines), 1);
        drop(second);
        assert_eq!(kept(&lines), 0);

        for _ in 0..100 {
            let place = lines.enter(&key("wanted"));
            place.refused(Duration::ZERO);
            drop(place);
        }
        assert_eq!(kept(&lines), 1);
        assert_eq!(unpoisoned(&lines.0.lines).resting.len(), 1);
        // Only later callers remove it.
        tokio::time::advance(CONTENDED_FOR).await;
        drop(lines.enter(&key("other")));
        assert_eq!(kept(&lines), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_stands_back_after_a_run_that_grows_while_nobody_takes_the_key() {
        let mut share = Share::default();
        for _ in 0..1_000 {
            assert_eq!(share.stand_back(), None, "nobody else wants the key");
            share.granted(None);
        }
        share.refused(Duration::ZERO);
        for run in [2, 4, 8, 16, 32, 64, 64] {
            for _ in 0..run {
                assert_eq!(share.stand_back(), None);
                share.granted(None);
            }
            assert!(share.stand_back().is_some(), "after {run} grants");
            assert_eq!(share.stand_back(), None, "once");
        }
        share.refused(Duration::ZERO);
        share.granted(None);
        share.granted(None);
        assert!(
            share.stand_back().is_some(),
            "others acquired the key in the meantime"
        );
        share.refused(Duration::ZERO);
        tokio::time::advance(CONTENDED_FOR).await;
        share.granted(None);
        share.granted(None);
        assert_eq!(share.stand_back(), None, "the others are gone");
    }
}
