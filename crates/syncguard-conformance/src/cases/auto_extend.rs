//! Leases that are kept alive by auto-extension, on a real store.

use std::future::pending;
use std::time::Instant;

use syncguard_core::{AutoExtend, ErrorCode, Lease, LockError, LockOptions, Receipt};

use crate::clock::{LIFETIMES, too_slow};
use crate::outcome::{require, same};
use crate::steps::{LONG, acquire, held, join, ms, not_renewed, release, soon_free};
use crate::{Bench, CaseResult, Failure, Harness, Outcome};

/// A section that is longer than its TTL keeps others out, and releases its lock at the end.
///
/// Proves X1, X2, E1.
pub async fn a_section_outlives_its_ttl<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("kept")?;
    for lasting in LIFETIMES {
        let options = LockOptions::new()
            .ttl(lasting)
            .auto_extend(AutoExtend::new());
        let section = async |lease: Lease<_>| -> Result<(), Failure> {
            let end = Instant::now() + lasting * 3;
            while Instant::now() < end {
                tokio::time::sleep(lasting / 4).await;
                let attempt = other.locks().try_lock(&key).ttl(LONG).await?;
                require(
                    attempt.is_none() || !lease.is_valid(),
                    "a key whose lease is kept: expected Locked for others, saw a grant",
                )?;
            }
            Ok(())
        };
        let kept = client.locks().lock(&key).options(&options).run(section);
        match kept.await {
            // A machine or a store too slow to renew in time: that was noticed, as it should be.
            Err(error) if error.code() == ErrorCode::LockLost => {
                soon_free(&client, &key).await?;
            }
            // So slow that the lease had ended when the grant arrived, or ended with the section: only a short
            // one may.
            Err(error) if error.code() == ErrorCode::NetworkTimeout && lasting < ms(4_000) => {
                soon_free(&client, &key).await?;
            }
            Ok(receipt) if receipt.overran() && lasting < ms(4_000) => {
                soon_free(&client, &key).await?;
            }
            kept => {
                let receipt = kept?;
                same("the lock was gone at the end", receipt.overran(), false)?;
                receipt.into_value()?;
                soon_free(&other, &key).await?;
                return Ok(Outcome::Passed);
            }
        }
    }
    Err(too_slow())
}

/// A holder whose lock was removed notices the loss, and does not touch the successor's lock.
///
/// Proves X3, R3.
pub async fn a_lock_taken_away_is_lost<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("taken")?;
    let options = LockOptions::new()
        .ttl(ms(3_000))
        .auto_extend(AutoExtend::new());
    let successor = std::sync::Mutex::new(None);
    let outcome: Result<Receipt<Result<(), Failure>>, LockError> = client
        .locks()
        .lock(&key)
        .options(&options)
        .run(async |lease| {
            release(&other, lease.lock_id()).await?;
            let grant = acquire(&other, &key, LONG).await?;
            if let Ok(mut successor) = successor.lock() {
                *successor = Some(grant);
            }
            pending().await
        })
        .await;
    let error = match outcome {
        Ok(receipt) => return Err(receipt.into_value().err().unwrap_or_else(too_slow)),
        Err(error) => error,
    };
    same(
        "the code of a lost lease",
        error.code(),
        ErrorCode::LockLost,
    )?;
    let successor = successor.into_inner().ok().flatten();
    let successor = successor.ok_or_else(|| Failure::new("expected a successor, saw none"))?;
    held(&client, &key, &successor.lock_id).await?;
    release(&other, &successor.lock_id).await?;
    Ok(Outcome::Passed)
}

/// A renewal in flight does not bring back a lock that was released.
///
/// Proves X3, R1.
pub async fn released_locks_stay_released<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let keys = (0_u64..).zip(bench.keys("renewed", 8)?);
    let workers = keys.map(|(worker, key)| {
        let client = client.clone();
        tokio::spawn(async move {
            for round in 0..8_u64 {
                let guard = match client.locks().try_lock(&key).ttl(ms(300)).await {
                    Err(error) if error.outcome_unknown() => {
                        soon_free(&client, &key).await?;
                        continue;
                    }
                    guard => guard?.ok_or_else(|| Failure::new("a free key: expected a guard"))?,
                };
                let guard = guard.auto_extend(AutoExtend::new());
                // Up to and around the first two renewals.
                tokio::time::sleep(ms(60 + (worker * 8 + round) * 7 % 170)).await;
                let id = *guard.lock_id();
                let _ = guard.release().await?;
                not_renewed(&client, &id).await?;
                let again = client.release(&id).await?;
                same("a second release", again.is_released(), false)?;
                soon_free(&client, &key).await?;
            }
            Ok(())
        })
    });
    join(workers).await?;
    Ok(Outcome::Passed)
}

/// A section that hangs does not keep its key: renewals stop after `max_hold`.
///
/// Proves E2.
pub async fn the_longest_hold_ends<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let key = bench.key("hanging")?;
    let (lasting, longest) = (ms(600), ms(1_500));
    let options = LockOptions::new()
        .ttl(lasting)
        .auto_extend(AutoExtend::new().max_hold(longest));
    let begun = Instant::now();
    let outcome = client
        .locks()
        .lock(&key)
        .options(&options)
        .run(async |_| pending::<()>().await)
        .await;
    let code = outcome.err().map(|error| error.code());
    same(
        "the code of a hold that ended",
        code,
        Some(ErrorCode::LockLost),
    )?;
    require(
        begun.elapsed() >= lasting,
        "a lease that is kept: expected it to last for its TTL at the least",
    )?;
    soon_free(&client, &key).await?;
    require(!client.is_locked(&key).await?, "expected a free key")?;
    Ok(Outcome::Passed)
}
