//! [`Facts`]: facts about one key's history that hold throughout it.

use std::collections::HashMap;

use crate::history::{Call, History, Invocation, Response};

/// After its expiry a lease counts as live for up to this long, depending on the store.
pub(crate) const TOLERANCE_US: i64 = 1_000_000;

/// A call whose outcome is known, on the store's clock.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) call: Call,
    /// It took effect in this span.
    pub(crate) earliest_us: i64,
    pub(crate) latest_us: i64,
}

/// The calls of one key: those with a known outcome, and the possible effects of those with an unknown outcome.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Sorted by the time at which they were made.
    pub(crate) events: Vec<Event>,
    pub(crate) drift_us: i64,
    /// When the first acquire of unknown outcome was made.
    first_possible_grant_us: Option<i64>,
    by_id: HashMap<String, Possible>,
}

/// What calls of unknown outcome may have done with an id. Times are the times of the calls.
#[derive(Debug, Default)]
struct Possible {
    grant_us: Option<i64>,
    release_us: Option<i64>,
    /// With the TTLs, in microseconds.
    extends: Vec<(i64, i64)>,
}

impl Facts {
    pub(crate) fn new<'a>(history: &History, calls: impl IntoIterator<Item = &'a Call>) -> Self {
        let mut facts = Self {
            drift_us: history.clock_drift_us,
            ..Self::default()
        };
        for call in calls {
            match (&call.response, call.returned_us) {
                (Response::Failed, Some(_)) => {}
                (Response::Unknown | Response::Failed, _) | (_, None) => {
                    facts.note_unknown(history, call, true);
                }
                (_, Some(returned_us)) => {
                    facts.note_event(history, call, returned_us);
                    if history.may_be_redelivered(call) {
                        // Of two deliveries, nobody got the reply to one.
                        facts.note_unknown(history, call, false);
                    }
                }
            }
        }
        facts.events.sort_by_key(|event| event.earliest_us);
        facts
    }

    fn note_event(&mut self, history: &History, call: &Call, returned_us: i64) {
        let invoked_us = call.invoked_us + history.clock_offset_us;
        let event = Event {
            earliest_us: invoked_us,
            latest_us: returned_us + history.clock_offset_us,
            call: call.clone(),
        };
        self.events.push(event);
    }

    /// A call may have taken effect without its caller knowing. If an acquire has an unknown outcome, the
    /// background releases its lock.
    fn note_unknown(&mut self, history: &History, call: &Call, reclaimed: bool) {
        let made_us = call.invoked_us + history.clock_offset_us;
        let earliest =
            |time: &mut Option<i64>| *time = Some(time.map_or(made_us, |t| t.min(made_us)));
        let Some(id) = call.invocation.id() else {
            return;
        };
        let possible = self.by_id.entry(id.to_owned()).or_default();
        match &call.invocation {
            Invocation::Acquire { .. } => {
                earliest(&mut possible.grant_us);
                if reclaimed {
                    earliest(&mut possible.release_us);
                }
                earliest(&mut self.first_possible_grant_us);
            }
            Invocation::Release { .. } => earliest(&mut possible.release_us),
            Invocation::Extend { ttl_ms, .. } => possible.extends.push((made_us, ttl_ms * 1_000)),
            Invocation::IsLocked | Invocation::LookupByKey | Invocation::LookupById { .. } => {}
        }
    }

    /// Whether some acquire of unknown outcome may have been granted by then.
    pub(crate) fn possible_grant(&self, by_us: i64) -> bool {
        self.first_possible_grant_us
            .is_some_and(|made| made <= by_us)
    }

    /// When an acquire of unknown outcome by this id was made, if by then.
    pub(crate) fn possible_grant_of(&self, id: &str, by_us: i64) -> Option<i64> {
        let made = self.by_id.get(id)?.grant_us?;
        (made <= by_us).then_some(made)
    }

    /// When a release of unknown outcome of this id was made, if by then.
    pub(crate) fn possible_release_of(&self, id: &str, by_us: i64) -> Option<i64> {
        let made = self.by_id.get(id)?.release_us?;
        (made <= by_us).then_some(made)
    }

    /// The times between which a lease of this id may really end, if its last known end is `expires_us`:
    /// extends of unknown outcome may have shortened or, several times, prolonged it.
    pub(crate) fn possible_ends(&self, id: &str, expires_us: i64, by_us: i64) -> (i64, i64) {
        let extends = self
            .by_id
            .get(id)
            .map_or(&[][..], |possible| &possible.extends);
        let made = extends.iter().filter(|(made_us, _)| *made_us <= by_us);
        made.fold(
            (expires_us, expires_us),
            |(first, last), (made_us, ttl_us)| {
                // The store counts from whole milliseconds of its own clock.
                let counted_us = made_us - self.drift_us - 1_000;
                let shortened = counted_us.saturating_add(*ttl_us);
                let prolonged = last.saturating_add(TOLERANCE_US).saturating_add(*ttl_us);
                (first.min(shortened), prolonged)
            },
        )
    }
}
