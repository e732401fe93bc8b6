//! Histories of a simulated store. With any seed, a correct store under faults is legal, and each kind of
//! broken store is detected.

use std::collections::BinaryHeap;

use syncguard_chaos::{Call, History, Operation, Outcome, Rng, check};

/// How the store is broken, now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    GrantsHeldKeys,
    ReusesFences,
    ReleasesWithoutCompare,
    ExtendsTheDead,
    ForgetsLocks,
    LosesExtensions,
}

#[derive(Clone)]
struct Lock {
    id: String,
    fence: u64,
    acquired_ms: i64,
    expires_ms: i64,
}

/// One key of a store that counts a lease as live until this long after its expiry.
struct Store {
    tolerance_ms: i64,
    flaw: Flaw,
    lock: Option<Lock>,
    former: Option<Lock>,
    counter: u64,
}

impl Store {
    fn apply(&mut self, operation: &Operation, now_ms: i64, rng: &mut Rng) -> Outcome {
        let often = match self.flaw {
            // Few ask for what is dead, and fewer notice what was lost.
            Flaw::ExtendsTheDead => 100,
            Flaw::LosesExtensions => 30,
            _ => 3,
        };
        let flaw = if rng.percent(often) {
            self.flaw
        } else {
            Flaw::None
        };
        let tolerance_ms = self.tolerance_ms;
        if flaw == Flaw::ForgetsLocks {
            self.lock = None;
        }
        self.former = self.lock.clone().or(self.former.take());
        self.lock = self
            .lock
            .take()
            .filter(|lock| now_ms < lock.expires_ms + tolerance_ms);
        if flaw == Flaw::ExtendsTheDead && self.lock.is_none() {
            let asked =
                |lock: &Lock| matches!(operation, Operation::Extend { id, .. } if *id == lock.id);
            self.lock = self.former.clone().filter(asked);
        }
        let owner = |id: &str, lock: &Option<Lock>| lock.as_ref().is_some_and(|lock| lock.id == id);
        match operation {
            Operation::Acquire { id, ttl_ms } => {
                let held = self.lock.as_ref().filter(|lock| lock.id != *id);
                if held.is_some() && flaw != Flaw::GrantsHeldKeys {
                    return Outcome::Locked;
                }
                if !owner(id, &self.lock) {
                    if flaw != Flaw::ReusesFences || self.counter == 0 {
                        self.counter += 1;
                    }
                    self.lock = Some(Lock {
                        id: id.clone(),
                        fence: self.counter,
                        acquired_ms: now_ms,
                        expires_ms: now_ms + ttl_ms,
                    });
                }
                let lock = self.lock.as_ref().expect("just granted");
                Outcome::Granted {
                    fence: lock.fence,
                    expires_at_ms: lock.expires_ms,
                }
            }
            Operation::Release { id } => {
                let blind = flaw == Flaw::ReleasesWithoutCompare && self.lock.is_some();
                if owner(id, &self.lock) || blind {
                    self.lock = None;
                    Outcome::Released
                } else {
                    Outcome::NotHeld
                }
            }
            Operation::Extend { id, ttl_ms } => match &mut self.lock {
                Some(lock) if lock.id == *id => {
                    if flaw != Flaw::LosesExtensions {
                        lock.expires_ms = now_ms + ttl_ms;
                    }
                    Outcome::Extended {
                        expires_at_ms: now_ms + ttl_ms,
                    }
                }
                _ => Outcome::NotHeld,
            },
            Operation::IsLocked if self.lock.is_some() => Outcome::Locked,
            Operation::IsLocked => Outcome::Free,
            Operation::LookupByKey | Operation::LookupById { .. } => {
                let asked = operation.id();
                let found = self
                    .lock
                    .as_ref()
                    .filter(|lock| asked.is_none_or(|id| id == lock.id));
                found.map_or(Outcome::Free, |lock| Outcome::Found {
                    key: "k".into(),
                    id: lock.id.clone(),
                    fence: lock.fence,
                    acquired_at_ms: lock.acquired_ms,
                    expires_at_ms: lock.expires_ms,
                })
            }
        }
    }
}

/// What a client believes.
#[derive(Default)]
struct Client {
    held: Option<String>,
    former: Vec<String>,
    made: u32,
}

impl Client {
    fn next(&mut self, index: u64, rng: &mut Rng) -> Operation {
        let ttl_ms = i64::try_from(rng.within(5..400)).unwrap();
        let mut fresh = || {
            self.made += 1;
            Operation::Acquire {
                id: format!("{index}.{}", self.made),
                ttl_ms,
            }
        };
        let id = self
            .held
            .clone()
            .or_else(|| rng.pick(&self.former).cloned());
        let (id, choice) = match id {
            Some(id) => (id, rng.within(0..if self.held.is_some() { 8 } else { 12 })),
            None => return fresh(),
        };
        match choice {
            0..=2 => Operation::Release { id },
            3 | 4 => Operation::Extend { id, ttl_ms },
            5 => Operation::IsLocked,
            6 => Operation::LookupByKey,
            7 if self.held.is_some() => Operation::Acquire { id, ttl_ms },
            7 => Operation::LookupById { id },
            _ => fresh(),
        }
    }

    fn learn(&mut self, operation: &Operation, outcome: &Outcome) {
        let id = operation.id().map(str::to_owned);
        match outcome {
            Outcome::Granted { .. } => self.held = id,
            Outcome::Released | Outcome::NotHeld | Outcome::Unknown if id == self.held => {
                self.former.extend(self.held.take());
            }
            _ => {}
        }
    }
}

const CLIENTS: u64 = 6;
const CALLS: usize = 1_200;

fn simulate(seed: u64, flaw: Flaw) -> History {
    let mut rng = Rng::new(seed);
    let tolerance_ms = *rng.pick(&[0, 300, 1_000]).unwrap();
    let lossy = *rng.pick(&[0, 5, 30]).unwrap();
    let mut store = Store {
        tolerance_ms,
        flaw,
        lock: None,
        former: None,
        counter: 0,
    };
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::default()).collect();
    let mut history = History::default();
    // What happens next: a client's call, or one of unknown outcome that arrives after all. In
    // microseconds, and told apart by a number; the heap gives the greatest first.
    let mut agenda: BinaryHeap<(i64, u64)> = BinaryHeap::new();
    let mut late: Vec<Operation> = Vec::new();
    for index in 0..CLIENTS {
        agenda.push((-i64::try_from(rng.within(0..5_000)).unwrap(), index));
    }
    while let Some((at, index)) = agenda.pop() {
        let takes_effect_us = -at;
        if let Some(position) = index.checked_sub(CLIENTS) {
            let operation = late[usize::try_from(position).unwrap()].clone();
            store.apply(&operation, takes_effect_us / 1_000, &mut rng);
            continue;
        }
        if history.calls.len() == CALLS {
            continue;
        }
        let client = &mut clients[usize::try_from(index).unwrap()];
        let operation = client.next(index, &mut rng);
        let slow = if rng.percent(3) { 200_000 } else { 3_000 };
        let mut span = || i64::try_from(rng.within(0..slow)).unwrap();
        // The time since the client's last call, of which the request took a part.
        let (sent, reply) = (span() % 900, span());
        let mut outcome = Outcome::Unknown;
        let mut after = |operation: Operation, delay_us: u64, agenda: &mut BinaryHeap<_>| {
            let delay_us = i64::try_from(delay_us).unwrap();
            agenda.push((at - delay_us, CLIENTS + u64::try_from(late.len()).unwrap()));
            late.push(operation);
        };
        if !rng.percent(lossy) {
            outcome = store.apply(&operation, takes_effect_us / 1_000, &mut rng);
        } else if rng.percent(40) {
            let _ = store.apply(&operation, takes_effect_us / 1_000, &mut rng);
        } else if rng.percent(60) {
            after(operation.clone(), rng.within(0..300_000), &mut agenda);
        }
        if let (Outcome::Unknown, Operation::Acquire { id, .. }) = (&outcome, &operation) {
            let give_back = Operation::Release { id: id.clone() };
            after(give_back, rng.within(0..500_000), &mut agenda);
        }
        client.learn(&operation, &outcome);
        history.calls.push(Call {
            client: u32::try_from(index).unwrap(),
            invoked_us: takes_effect_us - sent,
            returned_us: Some(takes_effect_us + reply),
            key: "k".into(),
            operation,
            outcome,
        });
        let pause = i64::try_from(rng.within(1_000..20_000)).unwrap();
        agenda.push((at - reply - pause, index));
    }
    history
}

#[test]
fn what_a_correct_store_does_is_legal() {
    for seed in 0..300 {
        let history = simulate(seed, Flaw::None);
        assert!(history.calls.len() >= CALLS);
        let violations = check(&history);
        assert!(violations.is_empty(), "seed {seed}: {}", violations[0]);
    }
}

#[test]
fn every_flaw_is_found() {
    for flaw in [
        Flaw::GrantsHeldKeys,
        Flaw::ReusesFences,
        Flaw::ReleasesWithoutCompare,
        Flaw::ExtendsTheDead,
        Flaw::ForgetsLocks,
        Flaw::LosesExtensions,
    ] {
        let seeds = 20;
        let found = (0..seeds).filter_map(|seed| check(&simulate(seed, flaw)).pop());
        let found: Vec<_> = found.collect();
        // Not every history gives the flaw an occasion, and a lost call may excuse it.
        let enough = found.len() * 3 >= usize::try_from(seeds).unwrap();
        assert!(
            enough,
            "{flaw:?}: found with {} of {seeds} seeds",
            found.len()
        );
        for violation in found {
            assert!(violation.window.len() <= 6, "{flaw:?}: {violation}");
        }
    }
}
