//! The last milliseconds of a lease.
//!
//! Only the store's clock decides whether an answer was wrong. The local monotonic clock shows about when a lease
//! ends, and so whether a call fell into its last milliseconds. The call that began the lease was sent at one
//! local time and answered at another: the lease ends between one TTL after the first and one TTL after the
//! second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use syncguard_core::backend::{LockBackend, TIME_TOLERANCE_MS};
use syncguard_core::{ExtendResult, LockId, LockKey};

use crate::clock::StoreClock;
use crate::outcome::{require, step};
use crate::steps::{LONG, acquire, join, ms, release, ttl};
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

/// A lease that is about to end.
struct Ending {
    id: LockId,
    expires_at_ms: i64,
    /// It ends between these local times.
    earliest: Instant,
    latest: Instant,
}

impl Ending {
    /// Whether a call fell into the last `window` of the lease, but not into its last millisecond: the store
    /// counts whole milliseconds, and may have reached the expiry by then.
    fn was_met(&self, asked: Instant, answered: Instant, window: Duration) -> bool {
        let left = self.latest.saturating_duration_since(asked);
        answered <= self.earliest && (ms(1)..=window).contains(&left)
    }

    /// The end of its tolerance.
    fn tolerance(&self) -> Self {
        let later = ms(TIME_TOLERANCE_MS.unsigned_abs());
        Self {
            id: self.id,
            expires_at_ms: self.expires_at_ms + TIME_TOLERANCE_MS,
            earliest: self.earliest + later,
            latest: self.latest + later,
        }
    }
}

/// How a lease gets its end: the TTL of the grant, if it differs from that of the extends; and how often the lease is
/// extended.
#[derive(Debug, Clone, Copy, PartialEq)]
struct History {
    granted: Option<Duration>,
    extends: usize,
}

const LASTING: Duration = Duration::from_millis(500);

const HISTORIES: [History; 4] = [
    History {
        granted: None,
        extends: 0,
    },
    History {
        granted: None,
        extends: 1,
    },
    History {
        granted: None,
        extends: 3,
    },
    SHORTENED,
];

const SHORTENED: History = History {
    granted: Some(LONG),
    extends: 1,
};

/// For how long a case makes new leases if the store is fast enough and the machine is busy. Far below the timeout
/// of a case.
const PATIENCE: Duration = Duration::from_secs(60);

const TOO_SLOW: Outcome =
    Outcome::Skipped("the store takes too long to be asked in the last milliseconds of a lease");

/// Nobody else is granted a key before its lease ends, extended or not.
///
/// Proves E1, E3, X1, A2. Shortly before the end a contender begins to ask without pause, until the store grants the
/// key. The grant must count from the end of the lease, or later. If the store also refuses the key in the tolerance,
/// the contender does the same at the end of the tolerance. The holder's client and two others contend.
/// For each history, the case makes new leases until the store has certainly decided in the last 10 ms of a lease and
/// of a tolerance, or until the chance that it has not is below one in a million.
pub async fn nobody_is_granted_a_key_before_its_lease_ends<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    contend_to_the_end(&bench, ms(10), ms(20_000)).await
}

/// Nobody else is granted a key in the last two milliseconds of its lease, extended or not.
///
/// Proves E1, E3, X1. As above, on a store that answers within a few milliseconds. A store that refuses the key in the
/// tolerance must refuse it in the last two milliseconds of the tolerance, too.
pub async fn nobody_is_granted_a_key_in_its_last_milliseconds<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    contend_to_the_end(&bench, ms(2), ms(8_000)).await
}

/// Contends for leases of each history until the store has decided within the last `window` of a lease and of a
/// tolerance. Stops after the first rounds if the chances fall so slowly that it would take longer than `longest`.
#[track_caller]
fn contend_to_the_end<H: Harness>(
    bench: &Bench<H>,
    window: Duration,
    longest: Duration,
) -> impl Future<Output = CaseResult> {
    // The chance that the store has never decided within the window.
    const GREATEST_CHANCE: f64 = 1e-6;
    // If it once answered within this time, it is the machine that is slow.
    const AT_ONCE: Duration = Duration::from_millis(1);
    const FIRST_ROUNDS: u32 = 3;
    const EACH: usize = 8;
    step(async move {
        let clients = bench.clients(3).await?;
        let histories = HISTORIES.iter().zip(clients.iter().cycle());
        let mut undecided: Vec<_> = histories
            .map(|(history, contender)| (*history, contender.clone(), [1.0; 2]))
            .collect();
        let (began, mut fastest, mut leases) = (Instant::now(), Duration::MAX, 0);
        for round in 1_u32.. {
            let each = if round == 1 { EACH / 2 } else { EACH };
            let keys = bench.keys(&format!("ending:{round}"), undecided.len() * each)?;
            let probes = undecided.clone().into_iter().cycle().zip(keys);
            let probes = probes.map(|((history, contender, _), key)| {
                let client = clients[0].clone();
                // The leases end one after the other, so that few contenders slow each other down, and at different
                // times after they began, so that neither a contender's pace nor a stall of a busy machine always
                // meets them in the same millisecond.
                leases += 1;
                let lasting = LASTING + ms(leases * 31 % 1_000);
                tokio::spawn(async move {
                    match lease(&client, &key, history, lasting).await? {
                        Some(ending) => Ok((history, contend(&contender, &key, &ending).await?)),
                        None => Ok((history, [Contended::UNSEEN; 2])),
                    }
                })
            });
            let probes: Vec<_> = probes.collect();
            for (of_history, contended) in join(probes).await? {
                let of_history = undecided
                    .iter_mut()
                    .find(|(other, ..)| *other == of_history);
                if let Some((.., chances)) = of_history {
                    for (chance, contended) in chances.iter_mut().zip(&contended) {
                        *chance *= contended.chance_to_miss(window);
                    }
                }
                fastest = fastest.min(contended[0].fastest);
            }
            let above = |greatest: f64| {
                move |(_, _, chances): &(_, _, [f64; 2])| {
                    chances.iter().any(|chance| *chance > greatest)
                }
            };
            undecided.retain(above(GREATEST_CHANCE));
            if undecided.is_empty() {
                return Ok(Outcome::Passed);
            }
            let hoped = GREATEST_CHANCE.powf(began.elapsed().as_secs_f64() / longest.as_secs_f64());
            let seldom = undecided.iter().any(above(hoped));
            let slow = round >= FIRST_ROUNDS && seldom && fastest > AT_ONCE;
            if slow || began.elapsed() > PATIENCE {
                return Ok(TOO_SLOW);
            }
        }
        Ok(TOO_SLOW)
    })
}

/// Extend, release and replay succeed up to the end of the lease.
///
/// Proves E1, X1, R1, A5. The case makes new leases until each call succeeded in the last 5 ms of one.
pub async fn its_holder_is_heard_until_the_end<H: Harness>(bench: Bench<H>) -> CaseResult {
    const WINDOW: Duration = Duration::from_millis(5);
    // A busy machine does not stall in all of the first rounds.
    const FIRST_ROUNDS: u32 = 5;
    // If the answer to a late call arrives after the end, that to an earlier call does not.
    const LEADS: [u64; 7] = [3, 5, 8, 16, 32, 64, 128];
    let client = bench.client().await?;
    let clock = Arc::new(StoreClock::new(&bench).await?);
    let mut undecided = HolderCall::ALL.to_vec();
    // The call that begins the lease and the call of its holder both take their time.
    let (began, mut fastest) = (Instant::now(), Duration::MAX);
    for round in 1_u32.. {
        let keys = bench.keys(&format!("heard:{round}"), undecided.len() * LEADS.len())?;
        let calls = undecided
            .iter()
            .flat_map(|call| LEADS.map(|lead| (*call, ms(lead))));
        let calls: Vec<_> = calls.zip(keys).collect();
        let calls = (0..).zip(calls).map(|(order, ((call, lead), key))| {
            let (client, clock) = (client.clone(), Arc::clone(&clock));
            tokio::spawn(async move {
                // They begin and end at different times, so that no call waits for another.
                tokio::time::sleep(ms(order * 13)).await;
                let Some(ending) = lease(&client, &key, SHORTENED, LASTING).await? else {
                    return Ok((call, false, Duration::MAX));
                };
                tokio::time::sleep_until((ending.latest - lead).into()).await;
                let asked = Instant::now();
                let heard = call.is_heard(&client, &key, &ending.id).await?;
                let answered = Instant::now();
                if !heard {
                    // Read after the answer: if the clock has not reached the expiry now, it had not then.
                    let left_ms = ending.expires_at_ms - clock.now_ms().await?;
                    require(
                        left_ms <= 0,
                        format_args!(
                            "{call:?} {left_ms} ms before the expiry: expected it to succeed, saw it \
                             refused"
                        ),
                    )?;
                }
                let _ = client.release(&ending.id).await?;
                // If the clock was read too late, a refusal decides nothing.
                let decided = heard && ending.was_met(asked, answered, WINDOW);
                Ok((call, decided, answered - asked + (ending.latest - ending.earliest)))
            })
        });
        for (call, decided, took) in join(calls).await? {
            undecided.retain(|other| *other != call || !decided);
            fastest = fastest.min(took);
        }
        if undecided.is_empty() {
            return Ok(Outcome::Passed);
        }
        let slow = round >= FIRST_ROUNDS && fastest > WINDOW / 2;
        if slow || began.elapsed() > PATIENCE / 2 {
            return Ok(TOO_SLOW);
        }
    }
    Ok(TOO_SLOW)
}

/// Acquires a lease that ends soon. `None` if the machine is too slow to extend it before it ends.
#[track_caller]
fn lease<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    history: History,
    lasting: Duration,
) -> impl Future<Output = Result<Option<Ending>, Failure>> {
    step(async move {
        let granted = history.granted.unwrap_or(lasting);
        let sent = Instant::now();
        let grant = acquire(client, key, granted).await?;
        let mut ending = Ending {
            id: grant.lock_id,
            expires_at_ms: grant.expires_at_ms,
            earliest: sent + granted,
            latest: Instant::now() + granted,
        };
        for _ in 0..history.extends {
            let sent = Instant::now();
            let answer = client.extend(&ending.id, ttl(lasting)?).await?;
            let answered = Instant::now();
            let ExtendResult::Extended { expires_at_ms, .. } = answer else {
                require(
                    answered + lasting / 4 > ending.earliest,
                    "extend of a live lease: expected Extended, saw NotHeld",
                )?;
                return Ok(None);
            };
            ending.expires_at_ms = expires_at_ms;
            ending.earliest = sent + lasting;
            ending.latest = answered + lasting;
        }
        Ok(Some(ending))
    })
}

/// A contender's calls around the end of a lease, or of its tolerance.
#[derive(Debug, Clone, Copy)]
struct Contended {
    /// How long the fastest answer took.
    fastest: Duration,
    /// The store decided twice within this time: about some call before the end, and about the next one.
    around_the_end: Duration,
    /// The store's time of the grant, unless the contender was still refused long after the end.
    granted_at_ms: Option<i64>,
}

impl Contended {
    /// Nobody contended.
    const UNSEEN: Self = Self {
        fastest: Duration::MAX,
        around_the_end: Duration::MAX,
        granted_at_ms: None,
    };

    /// There was nothing to contend for.
    const NEEDLESS: Self = Self {
        around_the_end: Duration::ZERO,
        ..Self::UNSEEN
    };

    /// The chance that the store decided nothing in the last `window` before the end. One decision came before the end,
    /// the next one after it. If less than `window` is between them, the first one is within the window. Otherwise the
    /// end comes at any time between them.
    fn chance_to_miss(&self, window: Duration) -> f64 {
        (1.0 - window.as_secs_f64() / self.around_the_end.as_secs_f64()).max(0.0)
    }
}

/// Asks for the key until it is granted: around the end of the lease, and around that of its tolerance.
#[track_caller]
fn contend<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    ending: &Ending,
) -> impl Future<Output = Result<[Contended; 2], Failure>> {
    step(async move {
        let id = LockId::generate()?;
        let of_lease = contend_at(client, key, &id, ending).await?;
        let tolerance = ending.tolerance();
        let of_tolerance = match of_lease.granted_at_ms {
            // The store also refuses the key in the tolerance.
            None => loop {
                let contended = contend_at(client, key, &id, &tolerance).await?;
                if contended.granted_at_ms.is_some() {
                    break contended;
                }
            },
            Some(granted_at_ms) if granted_at_ms < tolerance.expires_at_ms => Contended::NEEDLESS,
            Some(_) => Contended::UNSEEN,
        };
        release(client, &id).await?;
        Ok([of_lease, of_tolerance])
    })
}

/// Asks for the key until it is granted, or long after this end.
#[track_caller]
fn contend_at<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    id: &LockId,
    ending: &Ending,
) -> impl Future<Output = Result<Contended, Failure>> {
    // Far above a tick of a coarse clock.
    const LONG_AFTER: Duration = Duration::from_millis(100);
    step(async move {
        let lasting = ttl(LONG)?;
        // The store counts whole milliseconds.
        let earliest = ending.earliest - ms(1);
        // Contenders that ask all the time would slow each other down. A lease that has ended by then is granted early.
        let lead = (ending.latest - ending.earliest) * 2;
        tokio::time::sleep_until((earliest - lead.max(ms(20))).into()).await;
        let (mut fastest, mut around_the_end) = (Duration::MAX, None);
        let mut before = None;
        loop {
            let asked = Instant::now();
            let answer = client.acquire(key, id, lasting).await?;
            let answered = Instant::now();
            fastest = fastest.min(answered - asked);
            let between = match before {
                // The first call was too late.
                None if answered >= earliest => Some(Duration::MAX),
                Some(before) if before <= ending.latest && answered >= earliest => {
                    Some(answered - before)
                }
                _ => None,
            };
            around_the_end = around_the_end.max(between);
            let granted = answer.granted();
            let granted_at_ms = granted.map(|grant| grant.expires_at_ms - lasting.as_millis());
            let early_ms = granted_at_ms.map_or(0, |at_ms| ending.expires_at_ms - at_ms);
            require(
                early_ms <= 0,
                format_args!(
                    "{early_ms} ms before the end of the lease, or of its tolerance: expected Locked, \
                     saw a grant"
                ),
            )?;
            if granted_at_ms.is_some() || asked > ending.latest + LONG_AFTER {
                return Ok(Contended {
                    fastest,
                    around_the_end: around_the_end.unwrap_or(Duration::MAX),
                    granted_at_ms,
                });
            }
            before = Some(asked);
            if asked > ending.latest {
                // In the tolerance, a refusal shows nothing.
                tokio::time::sleep(LONG_AFTER / 2).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    })
}

/// A call of the holder.
#[derive(Debug, Clone, Copy, PartialEq)]
enum HolderCall {
    Extend,
    Release,
    Replay,
}

impl HolderCall {
    const ALL: [Self; 3] = [Self::Extend, Self::Release, Self::Replay];

    async fn is_heard<B: LockBackend>(
        self,
        client: &Client<B>,
        key: &LockKey,
        id: &LockId,
    ) -> Result<bool, Failure> {
        let lasting = ttl(LONG)?;
        Ok(match self {
            Self::Extend => client.extend(id, lasting).await?.expires_at_ms().is_some(),
            Self::Release => client.release(id).await?.is_released(),
            Self::Replay => !client.acquire(key, id, lasting).await?.is_locked(),
        })
    }
}
