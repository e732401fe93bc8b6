//! The search for an order of calls that explains all of them.
//!
//! Calls that overlap in time may have taken effect in either order; those that do not, only in theirs. The
//! search is depth-first, and visits no failed state twice. Ids are unique, and a grant has its fence and
//! its times, so there is seldom a choice. So the cost is linear in the length of the history, not
//! exponential.

use std::collections::{BTreeSet, HashSet};

use crate::facts::Facts;
use crate::model::State;
use crate::reason::{Reason, TOO_LATE};

/// Far more than any history of a correct store needs.
const BUDGET: usize = 4_000_000;

/// Where the best attempt got stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stuck {
    pub(crate) reason: Reason,
}

/// The calls that are already in the order: all before `first`, and some after it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Done {
    first: usize,
    beyond: BTreeSet<usize>,
}

struct Node {
    done: Done,
    state: State,
    /// What to try next, the most likely last.
    choices: Vec<(usize, State)>,
}

/// Finds an order that begins in `initial`, or says where the best attempt got stuck.
pub(crate) fn search(facts: &Facts, initial: State) -> Result<(), Stuck> {
    let mut search = Search {
        facts,
        hopeless: HashSet::new(),
        furthest: (0, TOO_LATE),
    };
    let start = Done {
        first: 0,
        beyond: BTreeSet::new(),
    };
    let mut path = vec![search.node(start, initial)];
    let mut visited = 0;
    while let Some(node) = path.last_mut() {
        if node.done.first == facts.events.len() {
            return Ok(());
        }
        let Some((choice, state)) = node.choices.pop() else {
            // All of its continuations failed.
            if let Some(node) = path.pop() {
                search.hopeless.insert((node.done, node.state));
            }
            continue;
        };
        let mut done = node.done.clone();
        done.add(choice);
        visited += 1;
        if visited > BUDGET {
            return Err(Stuck {
                reason: "undecided: the calls allow of too many orders",
            });
        }
        if !search.hopeless.contains(&(done.clone(), state.clone())) {
            let next = search.node(done, state);
            path.push(next);
        }
    }
    Err(Stuck {
        reason: search.furthest.1,
    })
}

struct Search<'a> {
    facts: &'a Facts,
    hopeless: HashSet<(Done, State)>,
    /// How many calls were explained at best, and why no further one was.
    furthest: (usize, Reason),
}

impl Search<'_> {
    fn node(&mut self, done: Done, state: State) -> Node {
        let candidates = self.candidates(&done);
        let mut choices = Vec::new();
        let mut refusal = None;
        for (position, &candidate) in candidates.iter().enumerate() {
            let event = &self.facts.events[candidate];
            match state.after(event, self.facts) {
                Ok(after) => {
                    // For a call that changes nothing, later is never better than now.
                    let others = &candidates[position + 1..];
                    let holds_nobody_up = others
                        .first()
                        .is_none_or(|&next| after.now_us <= self.facts.events[next].earliest_us);
                    let harmless = after.agrees_with(&state) && holds_nobody_up;
                    if harmless {
                        choices.clear();
                    }
                    choices.push((candidate, after));
                    if harmless {
                        break;
                    }
                }
                // That time has passed is the least specific reason.
                Err(reason) => {
                    refusal = Some(refusal.filter(|told| *told != TOO_LATE).unwrap_or(reason));
                }
            }
        }
        if let Some(reason) = refusal
            && choices.is_empty()
        {
            let (furthest, told) = self.furthest;
            let further = done.count() > furthest || (done.count() == furthest && told == TOO_LATE);
            if further {
                self.furthest = (done.count(), reason);
            }
        }
        choices.reverse();
        Node {
            done,
            state,
            choices,
        }
    }

    /// The calls that may come next: no other that is still to come returned before they were made.
    fn candidates(&self, done: &Done) -> Vec<usize> {
        let events = &self.facts.events;
        let mut candidates = Vec::new();
        let mut first_return = i64::MAX;
        for (index, event) in events.iter().enumerate().skip(done.first) {
            if event.earliest_us > first_return {
                break;
            }
            if !done.beyond.contains(&index) {
                first_return = first_return.min(event.latest_us);
                candidates.push(index);
            }
        }
        candidates
    }
}

impl Done {
    fn add(&mut self, index: usize) {
        self.beyond.insert(index);
        while self.beyond.remove(&self.first) {
            self.first += 1;
        }
    }

    fn count(&self) -> usize {
        self.first + self.beyond.len()
    }
}
