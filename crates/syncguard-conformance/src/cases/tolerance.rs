//! The second after the expiry of a lease: in it the lease is live to every operation, or dead to every operation.

use std::fmt;
use std::time::Instant;

use syncguard_core::backend::{
    AcquireResult, LockBackend, Lookup, MAX_PAGE_SIZE, TIME_TOLERANCE_MS,
};
use syncguard_core::{LockId, LockKey};

use crate::clock::{StoreClock, counted_between};
use crate::outcome::{require, same, step};
use crate::overdue::{Overdue, TOO_SLOW};
use crate::pages::{can_list, listed};
use crate::polling::Halts;
use crate::steps::{
    EXTENDS, LONG, Quickest, challenge, fence_in, fence_step, held, join, ms, next_fence, rise, ttl,
};
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

/// How often a case makes new leases if the calls on the former ones came too late.
const ROUNDS: usize = 12;

/// In the tolerance a lease is live to every operation, or dead to every operation.
///
/// Proves E3, L1, L2, L4, A2, N6. On one lease an operation is the first call, on another it follows reads and a
/// refusal, which change nothing. On a third it comes late in the tolerance. The holder's client and two others ask,
/// for leases that were extended or never were. The answer is the same for all leases of a backend.
pub async fn all_operations_agree<H: Harness>(bench: Bench<H>) -> CaseResult {
    const ASKING: usize = 3;
    let clients = bench.clients(ASKING).await?;
    let can_list = can_list(&bench, &clients[0]).await?;
    let may_ask = move |ask: &Ask| *ask != Ask::List || can_list;
    let mut undecided = Vec::new();
    for (index, ask) in (0..).zip(Ask::ALL.into_iter().filter(may_ask)) {
        for (turn, extends) in (index..).zip(EXTENDS) {
            undecided.push((ask, Asked::First, extends, turn % ASKING));
        }
        let (turn, extends) = (index % ASKING, EXTENDS[index % EXTENDS.len()]);
        undecided.push((ask, Asked::AfterOthers, extends, turn));
        undecided.push((ask, Asked::Late, extends, turn));
    }
    let mut verdict = None;
    for round in 0..ROUNDS {
        let keys = bench.keys(&format!("overdue:{round}"), undecided.len())?;
        let asked = (0_u64..).zip(undecided.iter().copied().zip(keys));
        let asked = asked.map(|(index, (asked, key))| {
            let (ask, when, extends, turn) = asked;
            let (client, other) = (clients[0].clone(), clients[turn].clone());
            tokio::spawn(async move {
                let overdue = Overdue::new(&client, key, extends).await?;
                let after = match when {
                    // Spread over the first half, to leave time for the answers.
                    Asked::First | Asked::AfterOthers => ms(index * 12),
                    Asked::Late => ms(650),
                };
                tokio::time::sleep_until((overdue.from + after).into()).await;
                let before: &[Ask] = match when {
                    Asked::First | Asked::Late => &[],
                    Asked::AfterOthers => &Ask::HARMLESS,
                };
                let mut answers = Vec::new();
                for ask in before.iter().filter(|ask| may_ask(ask)).chain([&ask]) {
                    answers.push((*ask, ask.finds_it_live(&other, &overdue).await?));
                }
                let in_time = Instant::now() < overdue.until;
                let _ = client.release(&overdue.id).await?;
                Ok(in_time.then_some((asked, answers)))
            })
        });
        for (asked, answers) in join(asked).await?.into_iter().flatten() {
            for (ask, live) in answers {
                let expected = *verdict.get_or_insert(live);
                require(
                    live == expected,
                    format_args!(
                        "{ask} in the second after the expiry: expected the lease {}, as to other \
                         operations, saw it {}",
                        word(expected),
                        word(live)
                    ),
                )?;
            }
            undecided.retain(|other| *other != asked);
        }
        if undecided.is_empty() {
            return Ok(Outcome::Passed);
        }
    }
    Ok(TOO_SLOW)
}

/// An extend in the tolerance counts from now, and changes the expiry alone; or it is `NotHeld`.
///
/// Proves E3, X1, X4.
pub async fn an_extend_is_like_any_other<H: Harness>(bench: Bench<H>) -> CaseResult {
    const LEASES: usize = 4;
    let client = bench.client().await?;
    let clock = StoreClock::new(&bench).await?;
    let mut in_time = false;
    for round in 0..ROUNDS {
        for key in bench.keys(&format!("extended:{round}"), LEASES)? {
            let overdue = Overdue::new(&client, key, 1).await?;
            // Distinguishes "from now" from "from the expiry".
            tokio::time::sleep_until((overdue.from + ms(100)).into()).await;
            let before_ms = clock.now_ms().await?;
            let answer = client.extend(&overdue.id, ttl(LONG)?).await?;
            let after_ms = clock.now_ms().await?;
            in_time |= Instant::now() < overdue.until;
            if let Some(expires_at_ms) = answer.expires_at_ms() {
                counted_between("an extend", expires_at_ms, LONG, (before_ms, after_ms))?;
                let info = held(&client, &overdue.key, &overdue.id).await?;
                same(
                    "expiry, time of acquisition and fence after an extend",
                    (info.expires_at_ms, info.acquired_at_ms, info.fence),
                    (
                        expires_at_ms,
                        overdue.info.acquired_at_ms,
                        overdue.info.fence,
                    ),
                )?;
            }
            let _ = client.release(&overdue.id).await?;
        }
        if in_time {
            break;
        }
    }
    clock.stop().await?;
    Ok(if in_time { Outcome::Passed } else { TOO_SLOW })
}

/// A refusal in the tolerance uses no fence.
///
/// Proves E3, F4, R4. The release that follows it leaves the counter alone, too.
pub async fn a_refusal_uses_no_fence<H: Harness>(bench: Bench<H>) -> CaseResult {
    if !bench.has_fences() {
        return Ok(Outcome::NO_FENCES);
    }
    let (client, other) = (bench.client().await?, bench.client().await?);
    for key in bench.keys("refused", ROUNDS)? {
        let step = fence_step(&client, &key).await?;
        let overdue = Overdue::new(&client, key, 1).await?;
        tokio::time::sleep_until(overdue.from.into()).await;
        for _ in 0..3 {
            Ask::Acquire.finds_it_live(&other, &overdue).await?;
        }
        let live = client.release(&overdue.id).await?.is_released();
        let next = next_fence(&other, &overdue.key).await?;
        let risen = rise(fence_in(&overdue.info), next)?;
        if live {
            same("rise of the fence across refusals", risen, step)?;
        }
        if Instant::now() < overdue.until {
            return Ok(Outcome::Passed);
        }
    }
    Ok(TOO_SLOW)
}

/// An attempt in the tolerance does not wait for the end of the tolerance.
///
/// Proves A4. Asked early in the tolerance, in its middle and near its end. The quickest answer must take at most ten
/// times as long as the quickest grant of an idle key, plus 50 ms. New leases give a slow store more attempts. The
/// case does not ask in the middle or near the end if this bound is longer than what is left of the tolerance.
pub async fn a_refusal_does_not_wait<H: Harness>(bench: Bench<H>) -> CaseResult {
    const EARLY: u64 = 850;
    const ATTEMPTS: usize = 3;
    const MOST_SLOW: usize = 6;
    let (client, other) = (bench.client().await?, bench.client().await?);
    let asked = [EARLY, 450, 100].map(|left| {
        let (client, other) = (client.clone(), other.clone());
        let keys = bench.keys(&format!("asked:{left}"), ROUNDS);
        let idle = bench.key(&format!("idle:{left}"));
        tokio::spawn(async move {
            let (idle, mut slow) = (idle?, 0);
            for key in keys? {
                let overdue = Overdue::new(&client, key, 1).await?;
                let mut quickest = Quickest::NONE;
                for _ in 0..ATTEMPTS {
                    quickest.grant(&other, &idle).await?;
                }
                if quickest.bound() >= ms(left) && left != EARLY {
                    let _ = client.release(&overdue.id).await?;
                    return Ok(true);
                }
                let then = overdue.from.max(overdue.until - ms(left));
                tokio::time::sleep_until(then.into()).await;
                for _ in 0..ATTEMPTS {
                    // Once it is granted, the key is free.
                    if !quickest.ask(&other, &overdue.key).await? {
                        break;
                    }
                }
                let in_time = Instant::now() < overdue.until;
                let _ = client.release(&overdue.id).await?;
                match quickest.answers_do_not_wait() {
                    Ok(()) if in_time => return Ok(true),
                    Ok(()) => {}
                    Err(failure) if slow == MOST_SLOW => return Err(failure),
                    Err(_) => slow += 1,
                }
            }
            Ok(false)
        })
    });
    let decided = join(asked).await?.into_iter().all(|decided| decided);
    Ok(if decided { Outcome::Passed } else { TOO_SLOW })
}

/// An extend or a release that is halted in the tolerance takes nothing from a new holder, and a halted extend does not
/// revive a dead lease.
///
/// Proves E3, X3, R3, E1, O1. Halted after each of its first polls, while another client acquires the key; extends also
/// until the lease is dead.
pub async fn a_halted_call_takes_nothing_from_a_successor<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    // With one call at a time, a call that is halted until the lease is dead blocks others for as long.
    let extends = match bench.harness().one_call_at_a_time() {
        true => &Halted::EXTENDS[..1],
        false => &Halted::EXTENDS,
    };
    match race_halted(&bench, extends).await? {
        Outcome::Passed => race_halted(&bench, &[Halted::Release]).await,
        undecided => Ok(undecided),
    }
}

/// Halts these calls, each after each of its first polls.
#[track_caller]
fn race_halted<H: Harness>(bench: &Bench<H>, calls: &[Halted]) -> impl Future<Output = CaseResult> {
    const HALTS: usize = 10;
    const FIRST_ROUNDS: usize = 3;
    step(async move {
        let (client, other) = (bench.client().await?, bench.client().await?);
        let calls = calls.iter();
        let mut undecided: Vec<_> = calls
            .flat_map(|halted| (0..HALTS).map(|polls| (*halted, polls)))
            .collect();
        for round in 0..ROUNDS {
            let name = format!("halted:{:?}:{round}", undecided[0].0);
            let keys = bench.keys(&name, undecided.len())?;
            let races = undecided.iter().copied().zip(keys);
            let races = races.map(|((halted, polls), key)| {
                let clients = (client.clone(), other.clone());
                let halts = match halted.until_it_is_dead() {
                    true => Halts::new(bench),
                    false => Halts::in_tolerance(bench),
                };
                tokio::spawn(async move {
                    let (in_time, outcome) = halted.race(polls, clients, key, halts).await?;
                    Ok(((halted, polls), in_time, outcome))
                })
            });
            let mut outcome = Outcome::Passed;
            for (race, in_time, halted) in join(races.collect::<Vec<_>>()).await? {
                undecided.retain(|other| *other != race || !in_time || halted != Outcome::Passed);
                if halted != Outcome::Passed {
                    outcome = halted;
                }
            }
            // A busy machine does not stall in all of the first rounds.
            let slow = outcome != Outcome::Passed && round + 1 >= FIRST_ROUNDS;
            if undecided.is_empty() || slow {
                return Ok(outcome);
            }
        }
        Ok(TOO_SLOW)
    })
}

/// A call that is halted in the tolerance.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Halted {
    /// While another client acquires the key, in the tolerance.
    Extend,
    /// Until the lease is dead, and another client has acquired the key.
    ExtendBeforeATakeOver,
    /// Until the lease is dead.
    LateExtend,
    /// While another client releases the same lock and acquires the key.
    Release,
}

impl Halted {
    const EXTENDS: [Self; 3] = [Self::Extend, Self::ExtendBeforeATakeOver, Self::LateExtend];

    fn until_it_is_dead(self) -> bool {
        matches!(self, Self::ExtendBeforeATakeOver | Self::LateExtend)
    }

    /// Halts the call after so many polls. Returns whether that was in the tolerance, and what the halt decides.
    async fn race<B: LockBackend>(
        self,
        polls: usize,
        (client, other): (Client<B>, Client<B>),
        key: LockKey,
        mut halts: Halts,
    ) -> Result<(bool, Outcome), Failure> {
        let overdue = Overdue::new(&client, key, 1).await?;
        let from = match self.until_it_is_dead() {
            // Late, so that the halt is short: no store cancels the call.
            true => overdue.until - ms(200),
            false => overdue.from,
        };
        tokio::time::sleep_until(from.into()).await;
        let (challenger, lasting) = (LockId::generate()?, ttl(LONG)?);
        let call = self.call(&client, &overdue);
        let meanwhile = async {
            let in_time = Instant::now() < overdue.until;
            if self.until_it_is_dead() {
                tokio::time::sleep_until(overdue.dead_at.into()).await;
            }
            if self == Self::Release {
                let _ = other.release(&overdue.id).await?;
            }
            let acquired = match self {
                Self::LateExtend => None,
                _ => other
                    .acquire(&overdue.key, &challenger, lasting)
                    .await?
                    .granted(),
            };
            Ok::<_, Failure>((acquired.is_some(), in_time))
        };
        let (extended, meanwhile) = halts.halt(polls, call, meanwhile).await;
        let (extended_at_ms, (acquired, begun_in_time)) = (extended?, meanwhile?);
        let in_time = match self.until_it_is_dead() {
            true => begun_in_time,
            false => Instant::now() < overdue.until,
        };
        require(
            !(extended_at_ms.is_some() && acquired),
            "a halted extend and an acquire: expected one to succeed, saw both",
        )?;
        let dead_from_ms = overdue.info.expires_at_ms + TIME_TOLERANCE_MS;
        let revived_ms = extended_at_ms.map_or(-1, |at_ms| at_ms - dead_from_ms);
        require(
            revived_ms < 0,
            format_args!(
                "a halted extend: expected NotHeld from expiry + {TIME_TOLERANCE_MS} on, \
                 saw Extended {revived_ms} ms after that"
            ),
        )?;
        for (id, wins) in [
            (&overdue.id, extended_at_ms.is_some()),
            (&challenger, acquired),
        ] {
            if wins {
                held(&other, &overdue.key, id).await?;
            }
            let _ = client.release(id).await?;
        }
        Ok((in_time, halts.outcome()))
    }

    /// Returns the store's time from which an extend counted, if it succeeded.
    async fn call<B: LockBackend>(
        self,
        client: &Client<B>,
        overdue: &Overdue<B::Fence>,
    ) -> Result<Option<i64>, Failure> {
        let lasting = ttl(LONG)?;
        if self == Self::Release {
            let _ = client.release(&overdue.id).await?;
            return Ok(None);
        }
        let extended = client.extend(&overdue.id, lasting).await?;
        let expires_at_ms = extended.expires_at_ms();
        Ok(expires_at_ms.map(|expires_at_ms| expires_at_ms - lasting.as_millis()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Asked {
    First,
    AfterOthers,
    Late,
}

/// A call that shows whether a lease is live.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ask {
    IsLocked,
    LookupByKey,
    LookupById,
    List,
    Acquire,
    Replay,
    Extend,
    Release,
}

impl Ask {
    const ALL: [Self; 8] = [
        Self::IsLocked,
        Self::LookupByKey,
        Self::LookupById,
        Self::List,
        Self::Acquire,
        Self::Replay,
        Self::Extend,
        Self::Release,
    ];
    /// Calls that change nothing: reads, and between them an acquire. If it is granted, its lock is released.
    const HARMLESS: [Self; 8] = [
        Self::IsLocked,
        Self::LookupByKey,
        Self::LookupById,
        Self::List,
        Self::Acquire,
        Self::IsLocked,
        Self::LookupByKey,
        Self::LookupById,
    ];

    async fn finds_it_live<B: LockBackend>(
        self,
        client: &Client<B>,
        overdue: &Overdue<B::Fence>,
    ) -> Result<bool, Failure> {
        let (key, id, lasting) = (&overdue.key, &overdue.id, ttl(LONG)?);
        Ok(match self {
            Self::IsLocked => client.is_locked(key).await?,
            Self::LookupByKey => client.lookup_raw(Lookup::Key(key)).await?.is_some(),
            Self::LookupById => client.lookup_raw(Lookup::Id(id)).await?.is_some(),
            Self::List => {
                let listed = listed(client, key.as_str(), MAX_PAGE_SIZE).await?;
                listed.contains_key(key.as_str())
            }
            Self::Acquire => challenge(client, key).await?,
            // The same grant again, or a new one.
            Self::Replay => match client.acquire(key, id, lasting).await? {
                AcquireResult::Acquired(grant) => grant.expires_at_ms == overdue.info.expires_at_ms,
                AcquireResult::Locked { .. } => {
                    return Err(Failure::new(
                        "a replay in the second after the expiry: expected a grant, saw Locked",
                    ));
                }
            },
            Self::Extend => client.extend(id, lasting).await?.expires_at_ms().is_some(),
            Self::Release => client.release(id).await?.is_released(),
        })
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IsLocked => "is_locked",
            Self::LookupByKey => "lookup by key",
            Self::LookupById => "lookup by id",
            Self::List => "list",
            Self::Acquire => "acquire by another",
            Self::Replay => "acquire by the holder",
            Self::Extend => "extend",
            Self::Release => "release",
        })
    }
}

fn word(live: bool) -> &'static str {
    if live { "live" } else { "dead" }
}
