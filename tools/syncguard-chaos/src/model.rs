//! The lease lock as a state machine: the state of one key, and the effect of a call.
//!
//! Between two calls, unseen things may happen: a lease expires, or a call of unknown outcome is applied.
//! The model assumes them only if the next call has no other explanation. That loses nothing: until the
//! next read, they may as well happen later.

use crate::facts::{Event, Facts, TOLERANCE_US};
use crate::history::{Invocation, Response};
use crate::reason::{
    EXPIRED, HELD, MISMATCH, NOBODY_HELD, NOT_COUNTED, NOT_OWNER, OTHER_ACQUIRED, OTHER_EXPIRY,
    OTHER_FENCE, OTHER_KEY, PHANTOM, REFUSED_OWNER, Reason, STALE_FENCE, STILL_LIVE, TOO_LATE,
};

/// The known state of a key at one point of an order of its calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    holder: Holder,
    /// The fence counter is at least here.
    fence: u64,
    /// It is at least this late: microseconds on the store's clock.
    pub(crate) now_us: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Holder {
    /// Anything that happened before the window.
    Anything,
    Nobody,
    /// An acquire of unknown outcome, whichever.
    Hidden,
    Lease(Lease),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Lease {
    id: String,
    /// Unknown if only an extend of it was seen.
    fence: Option<u64>,
    acquired_ms: Option<i64>,
    expires_ms: i64,
}

impl State {
    /// A key that was never used.
    pub(crate) fn fresh() -> Self {
        Self::with(Holder::Nobody)
    }

    /// A key of which nothing is known.
    pub(crate) fn anything() -> Self {
        Self::with(Holder::Anything)
    }

    fn with(holder: Holder) -> Self {
        Self {
            holder,
            fence: 0,
            now_us: i64::MIN,
        }
    }

    /// The state after `event`, if it can come next.
    pub(crate) fn after(&self, event: &Event, facts: &Facts) -> Result<Self, Reason> {
        let mut step = Step {
            state: self.clone(),
            event,
            facts,
        };
        step.reach(event.earliest_us, TOO_LATE)?;
        step.take()?;
        Ok(step.state)
    }

    /// Whether the two states are equal, except for time.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        self.holder == other.holder && self.fence == other.fence
    }
}

/// One call being applied.
struct Step<'a> {
    state: State,
    event: &'a Event,
    facts: &'a Facts,
}

impl Step<'_> {
    fn take(&mut self) -> Result<(), Reason> {
        match (&self.event.call.invocation, &self.event.call.response) {
            (
                Invocation::Acquire { id, ttl_ms },
                Response::Granted {
                    fence,
                    expires_at_ms,
                },
            ) => self.granted(id, *ttl_ms, *fence, *expires_at_ms),
            (Invocation::Acquire { id, .. }, Response::Locked) => self.held_by_someone(Some(id)),
            (Invocation::IsLocked, Response::Locked) => self.held_by_someone(None),
            (Invocation::Release { id }, Response::Released) => self.released(id),
            (Invocation::Release { id } | Invocation::Extend { id, .. }, Response::NotHeld)
            | (Invocation::LookupById { id }, Response::Free) => self.not_held(id),
            (Invocation::Extend { id, ttl_ms }, Response::Extended { expires_at_ms }) => {
                self.extended(id, *ttl_ms, *expires_at_ms)
            }
            (Invocation::LookupByKey | Invocation::LookupById { .. }, Response::Found { .. }) => {
                self.found()
            }
            (Invocation::IsLocked | Invocation::LookupByKey, Response::Free) => {
                self.vacate(HELD)?;
                self.empty();
                Ok(())
            }
            _ => Err(MISMATCH),
        }
    }

    fn granted(
        &mut self,
        id: &str,
        ttl_ms: i64,
        fence: u64,
        expires_ms: i64,
    ) -> Result<(), Reason> {
        if let Holder::Lease(lease) = &self.state.holder
            && lease.id == id
            && lease.fence.is_none_or(|known| known == fence)
        {
            // A retry by its holder.
            return self.observe(Some(fence), None, expires_ms);
        }
        let counted_ms = expires_ms - ttl_ms;
        let counted_us = counted_ms * 1_000;
        let drift_us = self.facts.drift_us;
        let earlier = self.facts.possible_grant_of(id, self.event.latest_us);
        let earliest_us = earlier.unwrap_or(i64::MAX).min(self.event.earliest_us);
        // The store's times are whole milliseconds.
        let in_the_call = counted_us + 1_000 > earliest_us - drift_us
            && counted_us <= self.event.latest_us + drift_us;
        if !in_the_call {
            return Err(NOT_COUNTED);
        }
        match (&self.state.holder, earlier) {
            // An acquire of unknown outcome, which this one repeats.
            (Holder::Hidden, Some(_)) if fence >= self.state.fence => {}
            _ => {
                self.vacate_by(counted_ms, STILL_LIVE)?;
                if fence <= self.state.fence {
                    return Err(STALE_FENCE);
                }
            }
        }
        self.reach((counted_us - drift_us).min(self.event.latest_us), TOO_LATE)?;
        self.hold(Lease {
            id: id.to_owned(),
            fence: Some(fence),
            acquired_ms: Some(counted_ms),
            expires_ms,
        });
        self.state.fence = fence;
        Ok(())
    }

    fn held_by_someone(&mut self, asked: Option<&String>) -> Result<(), Reason> {
        match &self.state.holder {
            Holder::Anything | Holder::Hidden => Ok(()),
            Holder::Nobody => self.hide(NOBODY_HELD),
            Holder::Lease(lease) => {
                let by_another = asked.is_none_or(|id| lease.id != *id);
                if by_another && self.is_live(lease) {
                    return Ok(());
                }
                let reason = if by_another {
                    NOBODY_HELD
                } else {
                    REFUSED_OWNER
                };
                self.vacate(reason)?;
                self.hide(reason)
            }
        }
    }

    fn released(&mut self, id: &str) -> Result<(), Reason> {
        self.must_hold(id)?;
        self.empty();
        Ok(())
    }

    fn extended(&mut self, id: &str, ttl_ms: i64, expires_ms: i64) -> Result<(), Reason> {
        let counted_us = (expires_ms - ttl_ms) * 1_000;
        let drift_us = self.facts.drift_us;
        if counted_us + 1_000 <= self.event.earliest_us - drift_us
            || counted_us > self.event.latest_us + drift_us
        {
            return Err(NOT_COUNTED);
        }
        if let Holder::Lease(lease) = &self.state.holder
            && lease.id == id
        {
            // By the store's own times there is no drift.
            let (_, last_us) = self.ends(lease);
            if counted_us >= last_us.saturating_add(TOLERANCE_US) {
                return Err(EXPIRED);
            }
        } else {
            self.must_hold(id)?;
        }
        let (fence, acquired_ms) = match &self.state.holder {
            Holder::Lease(lease) => (lease.fence, lease.acquired_ms),
            _ => (None, None),
        };
        self.hold(Lease {
            id: id.to_owned(),
            fence,
            acquired_ms,
            expires_ms,
        });
        Ok(())
    }

    fn not_held(&mut self, id: &str) -> Result<(), Reason> {
        match &self.state.holder {
            Holder::Lease(lease) if lease.id == id => {
                self.vacate(HELD)?;
                self.empty();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn found(&mut self) -> Result<(), Reason> {
        let call = &self.event.call;
        let Response::Found {
            key,
            id,
            fence,
            acquired_at_ms,
            expires_at_ms,
        } = &call.response
        else {
            return Err(MISMATCH);
        };
        if *key != call.key {
            return Err(OTHER_KEY);
        }
        if let Holder::Lease(lease) = &self.state.holder
            && lease.id == *id
            && lease.fence.is_none_or(|known| known == *fence)
        {
            return self.observe(Some(*fence), Some(*acquired_at_ms), *expires_at_ms);
        }
        if self.state.holder != Holder::Anything {
            if self
                .facts
                .possible_grant_of(id, self.event.latest_us)
                .is_none()
            {
                return Err(match &self.state.holder {
                    Holder::Lease(lease) if lease.id == *id => OTHER_FENCE,
                    _ => PHANTOM,
                });
            }
            if self.state.holder != Holder::Hidden {
                self.vacate(PHANTOM)?;
                self.state.fence += 1;
            }
            if *fence < self.state.fence {
                return Err(STALE_FENCE);
            }
        }
        self.hold(Lease {
            id: id.clone(),
            fence: Some(*fence),
            acquired_ms: Some(*acquired_at_ms),
            expires_ms: *expires_at_ms,
        });
        self.state.fence = self.state.fence.max(*fence);
        Ok(())
    }

    /// The holder's lease was read. It must agree with the known state, and makes that more exact.
    fn observe(
        &mut self,
        fence: Option<u64>,
        acquired_ms: Option<i64>,
        expires_ms: i64,
    ) -> Result<(), Reason> {
        let Holder::Lease(lease) = &self.state.holder else {
            return Err(MISMATCH);
        };
        let mut lease = lease.clone();
        if let (Some(known), Some(seen)) = (lease.acquired_ms, acquired_ms)
            && known != seen
        {
            return Err(OTHER_ACQUIRED);
        }
        if let (None, Some(seen)) = (lease.fence, fence)
            && seen < self.state.fence
        {
            return Err(STALE_FENCE);
        }
        let (first_us, last_us) = self.ends(&lease);
        if expires_ms * 1_000 < first_us || expires_ms * 1_000 > last_us {
            return Err(OTHER_EXPIRY);
        }
        lease.fence = lease.fence.or(fence);
        lease.acquired_ms = lease.acquired_ms.or(acquired_ms);
        lease.expires_ms = expires_ms;
        if !self.is_live(&lease) {
            return Err(EXPIRED);
        }
        self.state.fence = self.state.fence.max(lease.fence.unwrap_or(0));
        self.state.holder = Holder::Lease(lease);
        Ok(())
    }

    /// `id` holds the key, if necessary by an acquire of unknown outcome.
    fn must_hold(&mut self, id: &str) -> Result<(), Reason> {
        if let Holder::Lease(lease) = &self.state.holder
            && lease.id == id
        {
            return if self.is_live(lease) {
                Ok(())
            } else {
                Err(EXPIRED)
            };
        }
        if self.state.holder == Holder::Anything {
            return Ok(());
        }
        if self
            .facts
            .possible_grant_of(id, self.event.latest_us)
            .is_none()
        {
            return Err(NOT_OWNER);
        }
        self.vacate(NOT_OWNER)?;
        self.hide(NOT_OWNER)
    }

    /// An acquire of unknown outcome acquired the key, unless it did so before.
    fn hide(&mut self, reason: Reason) -> Result<(), Reason> {
        if self.state.holder == Holder::Hidden {
            return Ok(());
        }
        if !self.facts.possible_grant(self.event.latest_us) {
            return Err(reason);
        }
        self.state.fence += 1;
        self.state.holder = Holder::Hidden;
        Ok(())
    }

    /// A known lease has ended, as early as possible.
    fn vacate(&mut self, reason: Reason) -> Result<(), Reason> {
        let Holder::Lease(lease) = &self.state.holder else {
            return Ok(());
        };
        let (first_us, _) = self.ends(lease);
        let expired_us = first_us - self.facts.drift_us;
        let released_us = self
            .facts
            .possible_release_of(&lease.id, self.event.latest_us);
        let gone_us = released_us.map_or(expired_us, |released| released.min(expired_us));
        self.reach(gone_us, reason)?;
        self.empty();
        Ok(())
    }

    /// The same for a grant that counts from `counted_ms`: by the store's own times.
    fn vacate_by(&mut self, counted_ms: i64, reason: Reason) -> Result<(), Reason> {
        let Holder::Lease(lease) = &self.state.holder else {
            return Ok(());
        };
        let (first_us, _) = self.ends(lease);
        if counted_ms * 1_000 < first_us {
            let released = self
                .facts
                .possible_release_of(&lease.id, self.event.latest_us);
            self.reach(released.ok_or(reason)?, reason)?;
        }
        self.empty();
        Ok(())
    }

    /// Time passes until `moment_us`, but not beyond the return of the call.
    fn reach(&mut self, moment_us: i64, reason: Reason) -> Result<(), Reason> {
        self.state.now_us = self.state.now_us.max(moment_us);
        if self.state.now_us > self.event.latest_us {
            return Err(reason);
        }
        Ok(())
    }

    fn is_live(&self, lease: &Lease) -> bool {
        let (_, last_us) = self.ends(lease);
        self.state.now_us - self.facts.drift_us < last_us.saturating_add(TOLERANCE_US)
    }

    fn ends(&self, lease: &Lease) -> (i64, i64) {
        let expires_us = lease.expires_ms * 1_000;
        self.facts
            .possible_ends(&lease.id, expires_us, self.event.latest_us)
    }

    fn empty(&mut self) {
        self.state.holder = Holder::Nobody;
    }

    fn hold(&mut self, lease: Lease) {
        self.state.holder = Holder::Lease(lease);
    }
}
