//! [`check`]: whether a legal history explains the records, key by key.

use std::collections::BTreeMap;
use std::fmt;

use crate::facts::Facts;
use crate::history::{Call, History, Response};
use crate::model::State;
use crate::search::search;
use crate::shrink::smallest_window;

/// Calls on one key that no legal history explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The key.
    pub key: String,
    /// Why the last call is impossible, in the best attempt to explain the calls.
    pub reason: &'static str,
    /// The calls, in the order in which they were made. No outcome of any other call can explain them.
    pub window: Vec<Call>,
}

/// Checks a history. Without a violation, it is legal.
#[must_use]
pub fn check(history: &History) -> Vec<Violation> {
    by_key(history)
        .into_iter()
        .filter_map(|(key, calls)| check_key(history, key, &calls))
        .collect()
}

/// Checks a history that has ended: the last read of each key must also have found it free.
#[must_use]
pub fn check_ended(history: &History) -> Vec<Violation> {
    let mut violations = check(history);
    for (key, calls) in by_key(history) {
        let Some(last) = calls.iter().max_by_key(|call| call.invoked_us) else {
            continue;
        };
        if last.response != Response::Free {
            let reason = if last.invocation.only_reads() {
                "the key was left held"
            } else {
                "nobody looked whether the key was left free"
            };
            violations.push(Violation {
                key: key.to_owned(),
                reason,
                window: left_by(&calls, last),
            });
        }
    }
    violations
}

fn check_key(history: &History, key: &str, calls: &[&Call]) -> Option<Violation> {
    let facts = Facts::new(history, calls.iter().copied());
    search(&facts, State::fresh()).err()?;
    let (window, reason) = smallest_window(history, calls);
    Some(Violation {
        key: key.to_owned(),
        reason,
        window,
    })
}

/// The calls that concern the lock that the last one found.
fn left_by(calls: &[&Call], last: &Call) -> Vec<Call> {
    let id = match &last.response {
        Response::Found { id, .. } => Some(id.as_str()),
        _ => None,
    };
    let of_that_lock = |call: &&&Call| id.is_some() && call.invocation.id() == id;
    let mut window: Vec<Call> = calls
        .iter()
        .filter(of_that_lock)
        .map(|call| (*call).clone())
        .collect();
    window.push(last.clone());
    window
}

fn by_key(history: &History) -> BTreeMap<&str, Vec<&Call>> {
    let mut keys: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in &history.calls {
        keys.entry(&call.key).or_default().push(call);
    }
    for calls in keys.values_mut() {
        calls.sort_by_key(|call| call.invoked_us);
    }
    keys
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "key {}: {}", self.key, self.reason)?;
        let start_us = self.window.first().map_or(0, |call| call.invoked_us);
        for call in &self.window {
            let at = millis(call.invoked_us - start_us);
            let until = call
                .returned_us
                .map_or_else(|| "never".to_owned(), |us| millis(us - start_us));
            writeln!(
                f,
                "  {at:>9} - {until:>9} ms  client {:<4} {}: {}",
                call.client, call.invocation, call.response
            )?;
        }
        Ok(())
    }
}

pub(crate) fn millis(us: i64) -> String {
    format!("{}.{:03}", us / 1_000, us % 1_000)
}
