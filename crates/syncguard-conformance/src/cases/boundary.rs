//! The last milliseconds of a lease.
//!
//! Only the store's clock decides whether an answer was wrong. The local monotonic clock shows about when a lease
//! ends, and so whether a call fell into its last milliseconds. The call that began the lease was sent at one
//! local time and answered at another: the lease ends between one TTL after the first and one TTL after the
//! second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use syncguard_core::backend::{AcquireResult, LockBackend};
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
}

/// How a lease gets its end: the TTL of the grant, if that is another one, and how often the lease is then extended.
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
const PATIENCE: Duration = Duration::from_secs(30);

/// Nobody else is granted a key before its lease ends, extended or not.
///
/// Proves E1, X1, A2. A contender asks without pause until it is granted the key. Its grant must count from the end
/// of the former lease, or later. The case makes new leases until, for each history, an answer arrived in the last
/// 2 ms of a lease. On a store that takes longer to answer, or on a machine that is too busy, it uses the last
/// 10 ms, and so many leases that a miss is unlikely.
pub async fn nobody_is_granted_a_key_before_its_lease_ends<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    // A slow store: a contender that asks every 30 ms misses a window of 10 ms with a chance of 2 in 3, and those of
    // 36 leases with a chance of less than 1 in 2 million.
    const SLOW_ROUNDS: usize = 9;
    const EACH: usize = 4;
    const FAST: Duration = Duration::from_millis(1);
    let (client, other) = (bench.client().await?, bench.client().await?);
    let mut undecided = HISTORIES.to_vec();
    let (began, mut fastest, mut slow_rounds) = (Instant::now(), Duration::MAX, 0);
    for round in 0.. {
        let keys = bench.keys(&format!("ending:{round}"), undecided.len() * EACH)?;
        let probes = undecided.clone().into_iter().cycle().zip(keys);
        let is_fast = fastest < FAST && began.elapsed() < PATIENCE;
        let window = if is_fast { ms(2) } else { ms(10) };
        let probes = (0..).zip(probes).map(|(order, (history, key))| {
            let (client, other) = (client.clone(), other.clone());
            // A busy machine may stall in the millisecond in which a lease ends too early. So these leases end at
            // different times.
            let lasting = LASTING + ms(order * 13);
            tokio::spawn(async move {
                match lease(&client, &key, history, lasting).await? {
                    Some(ending) => {
                        let (decided, took) = contend(&other, &key, &ending, window).await?;
                        // The first round shows how fast the store is.
                        Ok((history, decided && round > 0, took))
                    }
                    None => Ok((history, false, Duration::MAX)),
                }
            })
        });
        for (history, decided, took) in join(probes).await? {
            undecided.retain(|other| *other != history || !decided);
            fastest = fastest.min(took);
        }
        slow_rounds += usize::from(!is_fast);
        if undecided.is_empty() || slow_rounds == SLOW_ROUNDS {
            break;
        }
    }
    Ok(Outcome::Passed)
}

/// Extend, release and replay succeed up to the end of the lease.
///
/// Proves E1, X1, R1, A5. The case makes new leases until each call was answered in the last 5 ms of one, unless
/// the store takes longer to answer.
pub async fn its_holder_is_heard_until_the_end<H: Harness>(bench: Bench<H>) -> CaseResult {
    const WINDOW: Duration = Duration::from_millis(5);
    // If the answer to a late call arrives after the end, that to an earlier call does not.
    const LEADS: [u64; 7] = [3, 5, 8, 16, 32, 64, 128];
    let client = bench.client().await?;
    let clock = Arc::new(StoreClock::new(&bench).await?);
    let mut undecided = HolderCall::ALL.to_vec();
    let (began, mut fastest) = (Instant::now(), Duration::MAX);
    for round in 0.. {
        let keys = bench.keys(&format!("heard:{round}"), undecided.len() * LEADS.len())?;
        let calls = undecided
            .iter()
            .flat_map(|call| LEADS.map(|lead| (*call, ms(lead))));
        let calls: Vec<_> = calls.zip(keys).collect();
        let calls = calls.into_iter().map(|((call, lead), key)| {
            let (client, clock) = (client.clone(), Arc::clone(&clock));
            tokio::spawn(async move {
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
                let met = ending.was_met(asked, answered, WINDOW);
                Ok((call, met, answered - asked))
            })
        });
        for (call, decided, took) in join(calls).await? {
            undecided.retain(|other| *other != call || !decided);
            fastest = fastest.min(took);
        }
        if undecided.is_empty() || fastest > WINDOW || began.elapsed() > PATIENCE {
            break;
        }
    }
    Ok(Outcome::Passed)
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

/// Asks for the key until it is granted. Returns whether a refusal arrived just before the end, and how long the
/// fastest answer took.
#[track_caller]
fn contend<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    ending: &Ending,
    window: Duration,
) -> impl Future<Output = Result<(bool, Duration), Failure>> {
    step(async move {
        let (id, lasting) = (LockId::generate()?, ttl(LONG)?);
        let (mut decided, mut fastest) = (false, Duration::MAX);
        loop {
            let asked = Instant::now();
            let answer = client.acquire(key, &id, lasting).await?;
            let answered = Instant::now();
            fastest = fastest.min(answered - asked);
            if let AcquireResult::Acquired(grant) = answer {
                let early_ms = ending.expires_at_ms - (grant.expires_at_ms - lasting.as_millis());
                require(
                    early_ms <= 0,
                    format_args!(
                        "{early_ms} ms before the end of the lease: expected Locked, saw a grant"
                    ),
                )?;
                release(client, &id).await?;
                return Ok((decided, fastest));
            }
            decided |= ending.was_met(asked, answered, window);
            if asked > ending.latest {
                // In the tolerance, a refusal shows nothing.
                tokio::time::sleep(ms(20)).await;
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
