//! What callers that wait rely on.

use std::time::{Duration, Instant};

use syncguard_core::backend::{AcquireResult, LockBackend, TIME_TOLERANCE_MS, Watch};
use syncguard_core::{LockId, LockKey};

use crate::clock::{LIFETIMES, too_slow};
use crate::outcome::{require, step};
use crate::steps::{LONG, acquire, ms, release, ttl};
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

/// Far longer than a wake-up takes, on a slow machine too.
const WOKEN_WITHIN: Duration = Duration::from_secs(30);

/// A key is granted when the time that a refusal stated has passed, and not before its lease ends.
///
/// Proves W1. Extended or not; by the local monotonic clock, from before the refused call to after the
/// granted one.
pub async fn a_refusal_says_when_the_key_is_free<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    // Granted for that long, or extended to it from a shorter or a longer time.
    let histories: [fn(Duration) -> Duration; 3] = [|lease| lease, |lease| lease / 2, |_| LONG];
    for (index, granted) in histories.into_iter().enumerate() {
        let mut refused = None;
        // On a slow machine a lease may end too soon.
        for lease in LIFETIMES.into_iter().skip_while(|lease| *lease < LEAST) {
            let key = bench.key(&format!("freed:{index}:{}", lease.as_millis()))?;
            refused = refusal(&client, &other, &key, (granted(lease), lease)).await?;
            if refused.is_some() {
                break;
            }
        }
        let Some(Refusal {
            key,
            lease,
            began,
            asked,
            answered,
            free_in,
        }) = refused
        else {
            return Err(too_slow());
        };
        let Some(free_in) = free_in else {
            return Ok(Outcome::Skipped(
                "the backend does not say when a key is free",
            ));
        };
        // Whole milliseconds on either side.
        let slack = ms(10);
        require(
            asked + free_in <= answered + lease + ms(TIME_TOLERANCE_MS.unsigned_abs()) + slack,
            format_args!("expected the key free a second after its lease at most, saw {free_in:?}"),
        )?;
        require(
            answered + free_in + slack >= began + lease,
            format_args!("expected the key held until its lease ends, saw {free_in:?}"),
        )?;
        tokio::time::sleep_until((answered + free_in + slack).into()).await;
        let id = LockId::generate()?;
        let next = other.acquire(&key, &id, ttl(LONG)?).await?;
        require(
            !next.is_locked(),
            format_args!("expected the key granted after {free_in:?}, saw it held"),
        )?;
        release(&other, &id).await?;
    }
    Ok(Outcome::Passed)
}

/// The shortest lease: half of it is longer than a few calls on most machines.
const LEAST: Duration = Duration::from_millis(1_000);

/// A refused acquire of a key whose lease began at a known time.
struct Refusal {
    key: LockKey,
    lease: Duration,
    /// The lease was granted or extended after this time.
    began: Instant,
    asked: Instant,
    answered: Instant,
    free_in: Option<Duration>,
}

/// Acquires a key, extends its lease unless it is granted as long as that, and asks for it. `None` if the lease ended
/// too soon.
#[track_caller]
fn refusal<B: LockBackend>(
    client: &Client<B>,
    other: &Client<B>,
    key: &LockKey,
    (granted, lease): (Duration, Duration),
) -> impl Future<Output = Result<Option<Refusal>, Failure>> {
    step(async move {
        let mut began = Instant::now();
        let id = acquire(client, key, granted).await?.lock_id;
        if granted != lease {
            began = Instant::now();
            let answer = client.extend(&id, ttl(lease)?).await?;
            if answer.expires_at_ms().is_none() {
                return Ok(None);
            }
        }
        let challenger = LockId::generate()?;
        let asked = Instant::now();
        let answer = other.acquire(key, &challenger, ttl(LONG)?).await?;
        let answered = Instant::now();
        let AcquireResult::Locked { free_in, .. } = answer else {
            release(other, &challenger).await?;
            return Ok(None);
        };
        Ok(Some(Refusal {
            key: key.clone(),
            lease,
            began,
            asked,
            answered,
            free_in,
        }))
    })
}

/// A watch resolves each time that any client releases the key.
///
/// Proves W2. The watch is put in place once. Its own client and another one acquire and release the
/// key many times.
pub async fn a_release_wakes_who_watches<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("watched")?;
    let mut watch = None;
    for round in 0..20_u64 {
        let id = acquire(&client, &key, LONG).await?.lock_id;
        if watch.is_none() {
            watch = client.watch(&key).await?;
        }
        let Some(watch) = &mut watch else {
            release(&client, &id).await?;
            return Ok(Outcome::NO_WAKE_UPS);
        };
        let releasing = async {
            tokio::time::sleep(ms(round % 5 * 4)).await;
            match round % 2 {
                0 => release(&client, &id).await,
                _ => release(&other, &id).await,
            }
        };
        let (woken, released) = tokio::join!(until_free(&client, &key, watch), releasing);
        released?;
        woken?;
    }
    Ok(Outcome::Passed)
}

/// A watch that begins after the release resolves at once.
///
/// Proves W2. Nothing happens to the key afterwards, so the watch has to read it.
pub async fn a_watch_of_a_free_key_resolves_at_once<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    for key in bench.keys("free", 5)? {
        let id = acquire(&client, &key, LONG).await?.lock_id;
        release(&other, &id).await?;
        let Some(mut watch) = client.watch(&key).await? else {
            return Ok(Outcome::NO_WAKE_UPS);
        };
        until_free(&client, &key, &mut watch).await?;
    }
    Ok(Outcome::Passed)
}

/// Waits as a caller does, but without a poll: a wake-up may be a false alarm.
#[track_caller]
fn until_free<B: LockBackend>(
    client: &Client<B>,
    key: &LockKey,
    watch: &mut Watch,
) -> impl Future<Output = Result<(), Failure>> {
    step(async move {
        let freed = async {
            loop {
                watch.changed().await?;
                if !client.is_locked(key).await? {
                    return Ok::<_, Failure>(());
                }
                // Endless false alarms must not occupy the thread: this case and others have to end.
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WOKEN_WITHIN, freed)
            .await
            .unwrap_or_else(|_| Err(Failure::new("expected a wake-up by the release, saw none")))
    })
}
