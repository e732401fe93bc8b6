//! Histories of a simulated store. With any seed, a correct store under faults is legal, and each kind of
//! broken store is detected.

use std::collections::BinaryHeap;

use syncguard_chaos::{Call, History, Invocation, Response, Rng, check};

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
    fn apply(&mut self, invocation: &Invocation, now_ms: i64, rng: &mut Rng) -> Response {
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
                |lock: &Lock| matches!(invocation, Invocation::Extend { id, .. } if *id == lock.id);
            self.lock = self.former.clone().filter(asked);
        }
        let owner = |id: &str, lock: &Option<Lock>| lock.as_ref().is_some_and(|lock| lock.id == id);
        match invocation {
            Invocation::Acquire { id, ttl_ms } => {
                let held = self.lock.as_ref().filter(|lock| lock.id != *id);
                if held.is_some() && flaw != Flaw::GrantsHeldKeys {
                    return Response::Locked;
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
                Response::Granted {
                    fence: lock.fence,
                    expires_at_ms: lock.expires_ms,
                }
            }
            Invocation::Release { id } => {
                let blind = flaw == Flaw::ReleasesWithoutCompare && self.lock.is_some();
                if owner(id, &self.lock) || blind {
                    self.lock = None;
                    Response::Released
                } else {
                    Response::NotHeld
                }
            }
            Invocation::Extend { id, ttl_ms } => match &mut self.lock {
                Some(lock) if lock.id == *id => {
                    if flaw != Flaw::LosesExtensions {
                        lock.expires_ms = now_ms + ttl_ms;
                    }
                    Response::Extended {
                        expires_at_ms: now_ms + ttl_ms,
                    }
                }
                _ => Response::NotHeld,
            },
            Invocation::IsLocked if self.lock.is_some() => Response::Locked,
            Invocation::IsLocked => Response::Free,
            Invocation::LookupByKey | Invocation::LookupById { .. } => {
                let asked = invocation.id();
                let found = self
                    .lock
                    .as_ref()
                    .filter(|lock| asked.is_none_or(|id| id == lock.id));
                found.map_or(Response::Free, |lock| Response::Found {
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
    fn next(&mut self, index: u64, rng: &mut Rng) -> Invocation {
        let ttl_ms = i64::try_from(rng.within(5..400)).unwrap();
        let mut fresh = || {
            self.made += 1;
            Invocation::Acquire {
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
            0..=2 => Invocation::Release { id },
            3 | 4 => Invocation::Extend { id, ttl_ms },
            5 => Invocation::IsLocked,
            6 => Invocation::LookupByKey,
            7 if self.held.is_some() => Invocation::Acquire { id, ttl_ms },
            7 => Invocation::LookupById { id },
            _ => fresh(),
        }
    }

    fn learn(&mut self, invocation: &Invocation, response: &Response) {
        let id = invocation.id().map(str::to_owned);
        match response {
            Response::Granted { .. } => self.held = id,
            Response::Released | Response::NotHeld | Response::Unknown if id == self.held => {
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
    let mut late: Vec<Invocation> = Vec::new();
    for index in 0..CLIENTS {
        agenda.push((-i64::try_from(rng.within(0..5_000)).unwrap(), index));
    }
    while let Some((at, index)) = agenda.pop() {
        let takes_effect_us = -at;
        if let Some(position) = index.checked_sub(CLIENTS) {
            let invocation = late[usize::try_from(position).unwrap()].clone();
            store.apply(&invocation, takes_effect_us / 1_000, &mut rng);
            continue;
        }
        if history.calls.len() == CALLS {
            continue;
        }
        let client = &mut clients[usize::try_from(index).unwrap()];
        let invocation = client.next(index, &mut rng);
        let slow = if rng.percent(3) { 200_000 } else { 3_000 };
        let mut span = || i64::try_from(rng.within(0..slow)).unwrap();
        // The time since the client's last call, of which the request took a part.
        let (sent, reply) = (span() % 900, span());
        let mut response = Response::Unknown;
        let mut after = |invocation: Invocation, delay_us: u64, agenda: &mut BinaryHeap<_>| {
            let delay_us = i64::try_from(delay_us).unwrap();
            agenda.push((at - delay_us, CLIENTS + u64::try_from(late.len()).unwrap()));
            late.push(invocation);
        };
        if !rng.percent(lossy) {
            response = store.apply(&invocation, takes_effect_us / 1_000, &mut rng);
        } else if rng.percent(40) {
            let _ = store.apply(&invocation, takes_effect_us / 1_000, &mut rng);
        } else if rng.percent(60) {
            after(invocation.clone(), rng.within(0..300_000), &mut agenda);
        }
        if let (Response::Unknown, Invocation::Acquire { id, .. }) = (&response, &invocation) {
            let give_back = Invocation::Release { id: id.clone() };
            after(give_back, rng.within(0..500_000), &mut agenda);
        }
        client.learn(&invocation, &response);
        history.calls.push(Call {
            client: u32::try_from(index).unwrap(),
            invoked_us: takes_effect_us - sent,
            returned_us: Some(takes_effect_us + reply),
            key: "k".into(),
            invocation,
            response,
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
