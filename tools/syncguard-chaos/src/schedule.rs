//! [`schedule`]: the faults and their times, determined by a seed.

use std::fmt;
use std::time::Duration;

use crate::rng::Rng;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The server is killed, and started again.
    Kill,
    /// The server is paused, without closing a connection.
    Pause,
    /// Both directions are slower.
    Delay,
    /// Requests are lost and connections reset.
    Reset,
    /// Connections are reset and new ones refused.
    Refuse,
    /// Requests are executed, the replies lost, and connections hang.
    DropReply,
    /// Requests are executed, the replies lost, and connections reset.
    CutAtReply,
    /// Connections are accepted, and nothing is forwarded.
    HalfOpen,
    /// Requests are delivered twice.
    Duplicate,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Kill,
        Self::Pause,
        Self::Delay,
        Self::Reset,
        Self::Refuse,
        Self::DropReply,
        Self::CutAtReply,
        Self::HalfOpen,
        Self::Duplicate,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Delay => "delay",
            Self::Reset => "reset",
            Self::Refuse => "refuse",
            Self::DropReply => "drop reply",
            Self::CutAtReply => "cut at reply",
            Self::HalfOpen => "half-open",
            Self::Duplicate => "duplicate",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A scheduled fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strike {
    /// The pause before it.
    pub after: Duration,
    /// Its kind.
    pub fault: Fault,
    /// How long it lasts.
    pub lasts: Duration,
    /// The delay, if the fault is a delay.
    pub delay: Duration,
}

/// Faults of these kinds, without end. Every kind strikes once before any strikes again.
pub fn schedule(seed: u64, kinds: &[Fault]) -> impl Iterator<Item = Strike> {
    let mut rng = Rng::part(seed, u64::MAX);
    let mut deck = Vec::new();
    let kinds = kinds.to_vec();
    std::iter::from_fn(move || {
        if deck.is_empty() {
            deck.clone_from(&kinds);
            rng.shuffle(&mut deck);
        }
        let fault = deck.pop()?;
        let mut millis = |range| Duration::from_millis(rng.within(range));
        Some(Strike {
            after: millis(150..500),
            fault,
            lasts: match fault {
                Fault::Kill => millis(50..400),
                Fault::Pause => millis(200..1_200),
                _ => millis(200..800),
            },
            delay: millis(20..350),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_schedule_and_every_kind_has_its_turn() {
        let first: Vec<_> = schedule(7, &Fault::ALL).take(18).collect();
        assert_eq!(first, schedule(7, &Fault::ALL).take(18).collect::<Vec<_>>());
        assert_ne!(first, schedule(8, &Fault::ALL).take(18).collect::<Vec<_>>());
        for round in first.chunks(Fault::ALL.len()) {
            let mut kinds: Vec<_> = round.iter().map(|strike| strike.fault).collect();
            kinds.sort();
            assert_eq!(kinds, Fault::ALL);
        }
        assert_eq!(schedule(7, &[]).count(), 0);
    }
}
