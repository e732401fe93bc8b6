//! Operations that are dropped, cancelled or timed out.

use std::panic::resume_unwind;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use syncguard_core::{CancellationToken, ErrorCode, LockOptions};

use crate::outcome::{require, same};
use crate::polling::{poll_once, poll_times};
use crate::steps::{
    DRAIN, LONG, acquire, fails_with, fence_step, free, held, join, ms, next_fence, refused,
    release, rise, ttl,
};
use crate::{Bench, CaseResult, Failure, Harness, Outcome};

/// An acquire dropped at any of its polls leaves no lock.
///
/// Proves C1. The key is free long before the TTL ends, and no late call acquires it.
pub async fn an_acquire_dropped_at_any_poll_leaves_no_lock<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let keys = bench.keys("dropped", 24)?;
    let attempts = keys.iter().cloned().enumerate().map(|(index, key)| {
        let client = client.clone();
        tokio::spawn(async move {
            if let Some(guard) =
                poll_times(index % 12, client.locks().try_lock(&key).ttl(LONG)).await
            {
                let guard = guard?.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
                same("the release", guard.release().await?.is_released(), true)?;
            }
            Ok(())
        })
    });
    join(attempts).await?;
    client.locks().drain(DRAIN).await?;
    // A call that a driver has queued would take effect now.
    tokio::time::sleep(ms(1_500)).await;
    for key in &keys {
        free(&other, key).await?;
        // The same client is granted the key again.
        let next = acquire(&client, key, LONG).await?;
        release(&other, &next.lock_id).await?;
    }
    Ok(Outcome::Passed)
}

/// Acquires that random timeouts cut off leave no lock.
///
/// Proves C1. 480 acquires, with timeouts of up to 8 ms.
pub async fn acquires_in_random_timeouts_leave_no_lock<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let keys = bench.keys("timed-out", 24)?;
    let tasks = keys.iter().map(|key| {
        let (client, key) = (client.clone(), key.clone());
        tokio::spawn(async move {
            for _ in 0..20 {
                let within = Duration::from_micros(random_up_to(8_000)?);
                let attempt = client.locks().try_lock(&key).ttl(LONG);
                if let Ok(guard) = tokio::time::timeout(within, attempt).await
                    && let Some(guard) = guard?
                {
                    same("the release", guard.release().await?.is_released(), true)?;
                }
            }
            Ok(())
        })
    });
    join(tasks).await?;
    client.locks().drain(DRAIN).await?;
    for key in &keys {
        free(&other, key).await?;
    }
    Ok(Outcome::Passed)
}

/// A contended acquire that is dropped does not disturb the holder, and acquires nothing after it.
///
/// Proves C1, R3.
pub async fn a_dropped_contender_does_not_disturb_the_holder<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("held")?;
    let grant = acquire(&client, &key, LONG).await?;
    let before = held(&client, &key, &grant.lock_id).await?;
    for polls in 0..12 {
        if let Some(guard) = poll_times(polls, other.locks().try_lock(&key).ttl(LONG)).await {
            require(
                guard?.is_none(),
                "acquire of a held key: expected None, saw a guard",
            )?;
        }
    }
    other.locks().drain(DRAIN).await?;
    // A call that a driver has queued meets the holder now.
    tokio::time::sleep(ms(1_500)).await;
    let after = held(&client, &key, &grant.lock_id).await?;
    same("the holder's lock", after, before)?;
    release(&client, &grant.lock_id).await?;
    // Several times: on a busy machine, a call that waits in the background may sleep as long as this case.
    for _ in 0..10 {
        tokio::time::sleep(ms(40)).await;
        free(&client, &key).await?;
    }
    Ok(Outcome::Passed)
}

/// With a token that is already cancelled an operation is `Aborted`, and nothing is sent to the store.
///
/// Proves C2. Every operation: none acquires a lock, uses a fence or loses a lock.
pub async fn a_cancelled_token_leaves_no_trace<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let (key, held_key) = (bench.key("free")?, bench.key("held")?);
    let step = fence_step(&client, &key).await?;
    let fence = next_fence(&client, &key).await?;
    let grant = acquire(&client, &held_key, LONG).await?;
    let (holder, lasting) = (&grant.lock_id, LONG * 2);
    let before = held(&client, &held_key, holder).await?;
    let token = CancellationToken::new();
    token.cancel();
    let (locks, code) = (client.locks(), ErrorCode::Aborted);
    let attempt = locks.try_lock(&key).cancel_on(&token);
    let error = fails_with("acquire", code, attempt).await?;
    same(
        "outcome_unknown of what was not begun",
        error.outcome_unknown(),
        false,
    )?;
    let section = locks.lock(&key).cancel_on(&token).run(async |_| ());
    fails_with("lock", code, section).await?;
    let request = locks.release(holder).cancel_on(&token);
    fails_with("release", code, request).await?;
    let extend = locks.extend(holder, lasting).cancel_on(&token);
    fails_with("extend", code, extend).await?;
    let question = locks.is_locked(&held_key).cancel_on(&token);
    fails_with("is_locked", code, question).await?;
    let lookup = locks.get_by_key(&held_key).cancel_on(&token);
    fails_with("lookup", code, lookup).await?;

    client.locks().drain(DRAIN).await?;
    free(&client, &key).await?;
    let next = next_fence(&client, &key).await?;
    same(
        "rise of the fence across aborted acquires",
        rise(fence, next)?,
        step,
    )?;
    let after = held(&client, &held_key, holder).await?;
    same("a lock across aborted operations", after, before)?;
    release(&client, holder).await?;
    Ok(Outcome::Passed)
}

/// A token that is cancelled in flight ends the operation at its next poll, and no lock remains.
///
/// Proves C3, C1. A call that the store answers at the first poll is never in flight, so it passes.
pub async fn a_token_cancelled_in_flight_aborts_at_once<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let keys = bench.keys("in-flight", 12)?;
    for (index, key) in keys.iter().enumerate() {
        let token = CancellationToken::new();
        let attempt = client.locks().try_lock(key).ttl(LONG).cancel_on(&token);
        let mut attempt = pin!(attempt.into_future());
        let mut answer = Poll::Pending;
        for _ in 0..=index % 3 {
            answer = poll_once(attempt.as_mut()).await;
            if answer.is_ready() {
                break;
            }
        }
        if let Poll::Ready(guard) = answer {
            let guard = guard?.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
            same("the release", guard.release().await?.is_released(), true)?;
            continue;
        }
        token.cancel();
        match poll_once(attempt.as_mut()).await {
            Poll::Ready(Err(error)) => {
                let seen = (error.code(), error.outcome_unknown());
                same("the aborted acquire", seen, (ErrorCode::Aborted, true))?;
            }
            Poll::Ready(Ok(_)) => {
                return Err(Failure::new(
                    "after cancel: expected Aborted, saw an answer",
                ));
            }
            Poll::Pending => {
                return Err(Failure::new("after cancel: expected Aborted, saw it go on"));
            }
        }
    }
    client.locks().drain(DRAIN).await?;
    for key in &keys {
        free(&client, key).await?;
    }
    Ok(Outcome::Passed)
}

/// `lock()` that waits for a held key ends with `Aborted` when its token is cancelled.
///
/// Proves C3. It ends at its next poll, and acquires nothing afterwards.
pub async fn a_cancelled_wait_ends_at_once<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("held")?;
    let holder = acquire(&client, &key, LONG).await?;
    let token = CancellationToken::new();
    let options = LockOptions::new()
        .timeout(LONG)
        .retry_delay(LONG / 2)
        .cancel_on(&token);
    let mut waiting = pin!(other.locks().lock(&key).options(&options).run(async |_| ()));
    // Until its first attempt was refused. On a slow store the token cancels that attempt, which proves as much.
    let waited = tokio::time::timeout(ms(100), waiting.as_mut()).await;
    same("a wait for a held key goes on", waited.is_err(), true)?;
    token.cancel();
    let answer = poll_once(waiting.as_mut()).await;
    let code = answer.map(|answer| answer.err().map(|error| error.code()));
    let expected = Poll::Ready(Some(ErrorCode::Aborted));
    same("a cancelled wait at its next poll", code, expected)?;
    release(&client, &holder.lock_id).await?;
    other.locks().drain(DRAIN).await?;
    free(&client, &key).await?;
    Ok(Outcome::Passed)
}

/// A release dropped at any of its polls still frees the key.
///
/// Proves C4. A bare release once it has begun, and the release of a guard even before that.
pub async fn a_release_dropped_at_any_poll_frees_the_key<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let keys = bench.keys("dropped-release", 20)?;
    for (index, key) in keys.iter().enumerate() {
        let polls = index / 2;
        if index % 2 == 0 {
            let grant = acquire(&client, key, LONG).await?;
            let request = client.locks().release(grant.lock_id);
            if let Some(answer) = poll_times(polls + 1, request).await {
                same("the release", answer?.is_released(), true)?;
            }
        } else {
            let guard = client.locks().try_lock(key).ttl(LONG).await?;
            let guard = guard.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
            if let Some(answer) = poll_times(polls, guard.release()).await {
                same("the guard's release", answer?.is_released(), true)?;
            }
        }
    }
    client.locks().drain(DRAIN).await?;
    for key in &keys {
        free(&other, key).await?;
    }
    Ok(Outcome::Passed)
}

/// Dropped guards free their keys, and `drain` waits until they have.
///
/// Proves C4. Dropped in a task, on a thread without a runtime, and while unwinding.
pub async fn dropped_guards_free_their_keys<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let keys = bench.keys("dropped-guard", 9)?;
    for (index, key) in keys.iter().enumerate() {
        let guard = client.locks().try_lock(key).ttl(LONG).await?;
        let guard = guard.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
        match index % 3 {
            0 => drop(guard),
            1 => {
                let thread = std::thread::spawn(move || drop(guard));
                let joined = tokio::task::spawn_blocking(move || thread.join()).await;
                require(
                    matches!(joined, Ok(Ok(()))),
                    "dropping a guard outside a runtime: expected no panic, saw one",
                )?;
            }
            _ => {
                let unwinding = tokio::spawn(async move {
                    let _guard = guard;
                    resume_unwind(Box::new("the task's own"))
                });
                let joined: Result<(), _> = unwinding.await;
                same(
                    "the task's panic",
                    joined.is_err_and(|error| error.is_panic()),
                    true,
                )?;
            }
        }
    }
    client.locks().drain(DRAIN).await?;
    for key in &keys {
        free(&other, key).await?;
    }
    Ok(Outcome::Passed)
}

/// A section that panics or is dropped frees its key.
///
/// Proves C4. The panic reaches the caller.
pub async fn a_section_that_ends_early_frees_its_key<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let (panics, dropped) = (bench.key("panics")?, bench.key("dropped")?);
    let options = || LockOptions::new().ttl(LONG);
    let (holder, key) = (client.clone(), panics.clone());
    let section = tokio::spawn(async move {
        let section = async |_| resume_unwind(Box::new("the section's own"));
        holder
            .locks()
            .lock(&key)
            .options(&options())
            .run(section)
            .await
            .map(drop)
    });
    let joined = section.await;
    same(
        "the section's panic",
        joined.is_err_and(|error| error.is_panic()),
        true,
    )?;

    let waits = client
        .locks()
        .lock(&dropped)
        .options(&options())
        .run(async |_| {
            std::future::pending::<()>().await;
        });
    let ended = tokio::time::timeout(ms(200), waits).await;
    same("a section without end was dropped", ended.is_err(), true)?;
    client.locks().drain(DRAIN).await?;
    free(&other, &panics).await?;
    free(&other, &dropped).await?;
    Ok(Outcome::Passed)
}

/// An extend that is dropped does not end the lock.
///
/// Proves C1, X4.
pub async fn a_dropped_extend_leaves_the_lock_with_its_holder<H: Harness>(
    bench: Bench<H>,
) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("extended")?;
    let grant = acquire(&client, &key, LONG).await?;
    let before = held(&client, &key, &grant.lock_id).await?;
    for polls in 0..10 {
        let lasting = ttl(LONG)?;
        let extend = client.extend(&grant.lock_id, lasting);
        if let Some(answer) = poll_times(polls, extend).await {
            same("the extend", answer?.expires_at_ms().is_some(), true)?;
        }
        refused(&other, &key).await?;
    }
    let mut after = held(&other, &key, &grant.lock_id).await?;
    after.expires_at_ms = before.expires_at_ms;
    same("the lock but for its expiry", after, before)?;
    release(&client, &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// A random number below the bound, from the operating system.
fn random_up_to(bound: u64) -> Result<u64, Failure> {
    let random = getrandom::u64();
    let random = random.map_err(|error| Failure::new(format_args!("no randomness: {error}")))?;
    Ok(random % bound)
}
