//! [`Holdings`]: the leases that this process acquired and has not released.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use syncguard_core::LockId;

/// How many leases are followed, and how many expired ones are remembered.
const CAPACITY: usize = 65_536;

/// Follows leases by the results of their operations.
///
/// Memory is bounded even if leases are never released. A lease that has expired by the local clock no
/// longer counts as held. It is forgotten when too many others have expired after it.
pub(crate) struct Holdings {
    capacity: usize,
    leases: HashMap<LockId, Lease>,
    /// The leases that count as held.
    held: BTreeMap<Deadline, LockId>,
    /// The others, oldest first, and ids that are no longer among the leases.
    expired: VecDeque<LockId>,
    /// How many deadlines were set.
    deadlines: u64,
}

/// The second part distinguishes leases that end at the same time.
type Deadline = (Instant, u64);

struct Lease {
    since: Instant,
    deadline: Option<Deadline>,
}

impl Default for Holdings {
    fn default() -> Self {
        Self::with_capacity(CAPACITY)
    }
}

impl Holdings {
    fn with_capacity(capacity: usize) -> Self {
        Self {
            capacity,
            leases: HashMap::new(),
            held: BTreeMap::new(),
            expired: VecDeque::new(),
            deadlines: 0,
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// An id holds a lock from `now` on, or the store has confirmed that it does.
    pub(crate) fn acquired(&mut self, id: &LockId, ttl: Duration, now: Instant) {
        if self.leases.contains_key(id) {
            self.extended(id, ttl, now);
        } else if self.held.len() < self.capacity {
            let lease = Lease {
                since: now,
                deadline: None,
            };
            self.leases.insert(*id, lease);
            self.extended(id, ttl, now);
        }
    }

    /// A lease lasts for `ttl` from `now`.
    pub(crate) fn extended(&mut self, id: &LockId, ttl: Duration, now: Instant) {
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        if let Some(deadline) = lease.deadline.take() {
            self.held.remove(&deadline);
        }
        // A TTL is at most ten years, which the clock can count.
        let end = now.checked_add(ttl).unwrap_or(now);
        let deadline = (end, self.deadlines);
        self.deadlines += 1;
        lease.deadline = Some(deadline);
        self.held.insert(deadline, *id);
    }

    /// An id no longer holds a lock. Returns since when it held the lock, if the lease was followed.
    pub(crate) fn ended(&mut self, id: &LockId) -> Option<Instant> {
        let lease = self.leases.remove(id)?;
        if let Some(deadline) = lease.deadline {
            self.held.remove(&deadline);
        }
        Some(lease.since)
    }

    /// Leases that have expired by `now` no longer count as held.
    pub(crate) fn sweep(&mut self, now: Instant) {
        while let Some(first) = self.held.first_entry() {
            if first.key().0 > now {
                return;
            }
            let id = first.remove();
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.deadline = None;
            }
            self.expired.push_back(id);
            if self.expired.len() > self.capacity {
                self.forget_oldest();
            }
        }
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.expired.pop_front() else {
            return;
        };
        // It may have been extended since.
        let still_expired = |lease: &Lease| lease.deadline.is_none();
        if self.leases.get(&oldest).is_some_and(still_expired) {
            self.leases.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn id() -> LockId {
        LockId::generate().unwrap()
    }

    #[test]
    fn a_lease_counts_until_it_ends_and_no_longer_than_its_ttl() {
        let (mut holdings, start) = (Holdings::default(), Instant::now());
        let (released, forgotten) = (id(), id());
        holdings.acquired(&released, TTL, start);
        holdings.acquired(&forgotten, TTL, start);
        assert_eq!(holdings.held(), 2);

        assert_eq!(holdings.ended(&released), Some(start));
        assert_eq!(holdings.ended(&released), None);
        assert_eq!(holdings.held(), 1);

        holdings.extended(&forgotten, TTL * 2, start);
        holdings.sweep(start + TTL);
        assert_eq!(holdings.held(), 1);
        holdings.sweep(start + TTL * 2);
        assert_eq!(holdings.held(), 0);
        assert_eq!(holdings.ended(&forgotten), Some(start), "a late release");
    }

    #[test]
    fn the_same_grant_twice_is_one_lease() {
        let (mut holdings, start, id) = (Holdings::default(), Instant::now(), id());
        holdings.acquired(&id, TTL, start);
        holdings.acquired(&id, TTL, start + TTL / 2);
        assert_eq!(holdings.held(), 1);
        assert_eq!(holdings.ended(&id), Some(start));
        assert_eq!(holdings.held(), 0);
    }

    #[test]
    fn memory_is_bounded_though_nothing_is_ever_released() {
        let mut holdings = Holdings::with_capacity(8);
        let mut now = Instant::now();
        for _ in 0..100 {
            for _ in 0..20 {
                holdings.acquired(&id(), TTL, now);
            }
            assert_eq!(holdings.held(), 8);
            now += TTL;
            holdings.sweep(now);
            assert_eq!(holdings.held(), 0);
            assert!(holdings.leases.len() <= 8);
            assert!(holdings.expired.len() <= 8);
        }
    }

    #[test]
    fn an_expired_lease_that_was_extended_is_not_forgotten() {
        let mut holdings = Holdings::with_capacity(2);
        let (start, extended) = (Instant::now(), id());
        holdings.acquired(&extended, TTL, start);
        holdings.sweep(start + TTL);
        holdings.extended(&extended, TTL * 10, start + TTL);
        for _ in 0..4 {
            holdings.acquired(&id(), Duration::ZERO, start + TTL);
            holdings.sweep(start + TTL);
        }
        assert_eq!(holdings.held(), 1);
        assert_eq!(holdings.ended(&extended), Some(start));
    }
}
