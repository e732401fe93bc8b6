//! The smallest window of a history that still has no explanation.
//!
//! Every step only removes knowledge: later calls, earlier calls, outcomes of single calls. A legal history
//! stays legal if less is known of it. So the rest is a violation by itself.

use crate::facts::Facts;
use crate::history::{Call, History, Response};
use crate::model::State;
use crate::reason::Reason;
use crate::search::{Stuck, search};

/// The calls that remain, and why they are impossible. `calls` have no explanation.
pub(crate) fn smallest_window(history: &History, calls: &[&Call]) -> (Vec<Call>, Reason) {
    let window = Window {
        history,
        from_start: true,
        calls: calls.iter().map(|call| (*call).clone()).collect(),
    };
    let window = window.without_future().without_past().without_bystanders();
    let reason = window.stuck().map_or("", |stuck| stuck.reason);
    let says_nothing = |call: &Call| matches!(call.response, Response::Unknown | Response::Failed);
    let known = |call: &Call| call.returned_us.is_some() && !says_nothing(call);
    (window.calls.into_iter().filter(known).collect(), reason)
}

#[derive(Clone)]
struct Window<'a> {
    history: &'a History,
    /// Whether nothing came before it.
    from_start: bool,
    calls: Vec<Call>,
}

impl<'a> Window<'a> {
    fn stuck(&self) -> Option<Stuck> {
        let initial = if self.from_start {
            State::fresh()
        } else {
            State::anything()
        };
        search(&Facts::new(self.history, &self.calls), initial).err()
    }

    /// Ends with the earliest return by which there is a violation.
    fn without_future(self) -> Self {
        let mut returns: Vec<i64> = self
            .calls
            .iter()
            .filter_map(|call| call.returned_us)
            .collect();
        returns.sort_unstable();
        let violates = |end: &i64| self.until(*end).stuck().is_none();
        let shortest = returns.partition_point(violates);
        match returns.get(shortest) {
            Some(end) => self.until(*end),
            None => self,
        }
    }

    /// What was known at `end_us`.
    fn until(&self, end_us: i64) -> Self {
        let mut calls = self.calls.clone();
        calls.retain(|call| call.invoked_us <= end_us);
        for call in &mut calls {
            if call.returned_us.is_some_and(|returned| returned > end_us) {
                forget(call);
            }
        }
        Self {
            calls,
            ..self.clone()
        }
    }

    /// Begins with the latest return from which on there is a violation, whatever was before.
    fn without_past(self) -> Self {
        let mut returns: Vec<i64> = self
            .calls
            .iter()
            .filter_map(|call| call.returned_us)
            .collect();
        returns.sort_unstable();
        let violates = |start: &i64| self.since(*start).stuck().is_some();
        let starts = returns.partition_point(violates);
        match starts.checked_sub(1).and_then(|last| returns.get(last)) {
            Some(start) => self.since(*start),
            None => self,
        }
    }

    /// What can be known without what had returned before `start_us`. Calls of unknown outcome
    /// stay, since they may be applied later.
    fn since(&self, start_us: i64) -> Self {
        let mut calls = self.calls.clone();
        calls.retain(|call| {
            call.response == Response::Unknown
                || call.returned_us.is_none_or(|returned| returned >= start_us)
        });
        Self {
            calls,
            from_start: false,
            ..self.clone()
        }
    }

    /// Forgets the outcome of every call that is not needed, in ever smaller groups.
    fn without_bystanders(mut self) -> Self {
        let mut size = self.calls.len().div_ceil(2);
        loop {
            let mut start = 0;
            while start < self.calls.len() {
                let end = (start + size).min(self.calls.len());
                let mut fewer = self.clone();
                fewer.calls[start..end].iter_mut().for_each(forget);
                if fewer.stuck().is_some() {
                    self = fewer;
                }
                start = end;
            }
            if size <= 1 {
                return self;
            }
            size = size.div_ceil(2);
        }
    }
}

fn forget(call: &mut Call) {
    if call.response != Response::Failed {
        call.response = Response::Unknown;
    }
}
