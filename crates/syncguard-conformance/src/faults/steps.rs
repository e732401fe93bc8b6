//! Steps that cases share, and how they measure time on a busy machine.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use syncguard_core::{ErrorCode, LockError, LockGuard, Locks};

/// The TTL of a lock that must not expire during a case.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// The longest that a step may take on any machine. It only guards against hanging; no case tests it.
pub(crate) const BEFORE_LONG: Duration = Duration::from_secs(60);

/// TTLs within which a machine has to finish its work. If it is too slow for one, the next is tried.
const TTLS: [Duration; 3] = [
    Duration::from_secs(3),
    Duration::from_secs(9),
    Duration::from_secs(27),
];

/// The result of one trial of a case.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trial {
    /// What the case proves.
    Proved,
    /// The lease was lost. The machine may have been too slow to keep it; with a TTL that is long
    /// enough there is no such excuse.
    LeaseLost,
}

/// Makes trials with ever longer TTLs until one succeeds.
pub(crate) async fn with_longer_ttls(trial: impl AsyncFn(Duration) -> Trial) {
    with_ttls(TTLS, trial).await;
}

/// Makes trials with these TTLs until one succeeds, for cases that must also fit into the timeout of an
/// operation.
pub(crate) async fn with_ttls(ttls: [Duration; 3], trial: impl AsyncFn(Duration) -> Trial) {
    for ttl in ttls {
        if trial(ttl).await == Trial::Proved {
            return;
        }
    }
    panic!("the lease was lost with every TTL of {ttls:?}");
}

/// Acquires a free key.
pub(crate) async fn acquire(locks: &Locks, key: &str, ttl: Duration) -> LockGuard {
    let guard = locks.try_lock(key).ttl(ttl).await;
    guard.expect("acquire failed").expect("the key is held")
}

/// Releases a lock that must still be held.
pub(crate) async fn release(guard: LockGuard) {
    let released = guard.release().await.expect("release failed");
    assert!(released.is_released(), "the lock was gone: {released:?}");
}

/// Waits until a key can be acquired, and releases it again. Fails if that takes longer than
/// `within`; returns how long it took.
pub(crate) async fn free_within(locks: &Locks, key: &str, within: Duration) -> Duration {
    let started = Instant::now();
    loop {
        let guard = locks.try_lock(key).ttl(LONG).await;
        if let Some(guard) = guard.expect("acquire failed") {
            let took = started.elapsed();
            release(guard).await;
            return took;
        }
        assert!(
            started.elapsed() < within,
            "the key is still held after {within:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until `is` gives a result, for as long as any machine may take.
pub(crate) async fn eventually<R>(what: &str, mut is: impl AsyncFnMut() -> Option<R>) -> R {
    let started = Instant::now();
    loop {
        if let Some(result) = is().await {
            return result;
        }
        assert!(
            started.elapsed() < BEFORE_LONG,
            "after {BEFORE_LONG:?} there is still not: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Sets something up, again if a driver's own timeout is too short for the machine.
pub(crate) async fn patiently<R>(
    failure: &str,
    set_up: impl AsyncFn() -> Result<R, LockError>,
) -> R {
    let started = Instant::now();
    loop {
        match set_up().await {
            Err(error) if error.is_retryable() && started.elapsed() < BEFORE_LONG => {}
            result => return result.expect(failure),
        }
    }
}

/// The output of a future if it resolves by a point in time. Two timers of one task decide which came
/// first: if the machine stalls, both are late.
pub(crate) async fn by<R>(what: impl Future<Output = R>, deadline: Instant) -> Option<R> {
    tokio::select! {
        biased;
        result = what => Some(result),
        () = tokio::time::sleep_until(deadline.into()) => None,
    }
}

/// Whether a future resolves by a point in time.
pub(crate) async fn resolves_by(what: impl Future<Output = ()>, deadline: Instant) -> bool {
    by(what, deadline).await.is_some()
}

/// Fails unless the error is that of a store that cannot be reached.
#[track_caller]
pub(crate) fn is_outage(error: &LockError) {
    assert!(is_outage_code(error.code()), "{error:?}");
}

pub(crate) fn is_outage_code(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::ServiceUnavailable | ErrorCode::NetworkTimeout
    )
}

/// The median of several times, which an occasionally busy machine does not change.
pub(crate) fn median<R: Ord + Copy + Debug>(mut values: Vec<R>) -> R {
    values.sort();
    *values.get(values.len() / 2).expect("no values")
}

/// Whether a key is held, as a client sees it that no fault affects.
pub(crate) async fn is_held(locks: &Locks, key: &str) -> bool {
    locks.is_locked(key).await.expect("is_locked failed")
}
