//! Steps that cases share, and how they tell time on a busy machine.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use syncguard_core::{ErrorCode, Fence, LockError, LockGuard, ManagedBackend, acquire};

/// TTLs of locks that must not run out in the course of a case.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Within which what is to happen "before long" happens on any machine: an upper bound against
/// hanging, never what a case is about.
pub(crate) const BEFORE_LONG: Duration = Duration::from_secs(60);

/// TTLs for what a machine has to do in time. Where it was too slow, the next is tried.
const TTLS: [Duration; 3] = [
    Duration::from_secs(3),
    Duration::from_secs(9),
    Duration::from_secs(27),
];

/// What an attempt has shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// What the case proves.
    Proved,
    /// The lease was lost. The machine may have been too slow to keep it; with a TTL that is long
    /// enough there is no such excuse.
    Lost,
}

/// Makes attempts with ever longer TTLs.
pub(crate) async fn with_longer_ttls(attempt: impl AsyncFn(Duration) -> Attempt) {
    with_ttls(TTLS, attempt).await;
}

/// Makes attempts with these TTLs, for what must also fit into the timeout of an operation.
pub(crate) async fn with_ttls(ttls: [Duration; 3], attempt: impl AsyncFn(Duration) -> Attempt) {
    for ttl in ttls {
        if attempt(ttl).await == Attempt::Proved {
            return;
        }
    }
    panic!("it did not succeed with any TTL of {ttls:?}");
}

/// Takes a free key.
pub(crate) async fn take<B>(backend: &B, key: &str, ttl: Duration) -> LockGuard<B>
where
    B: ManagedBackend<Fence = Fence>,
{
    let guard = acquire(backend, key, ttl).await.expect("an answer");
    guard.expect("a key that is free")
}

/// Takes a key as soon as it is free, which must be soon; says how long that took.
pub(crate) async fn soon_taken<B>(backend: &B, key: &str, within: Duration) -> Duration
where
    B: ManagedBackend<Fence = Fence>,
{
    let started = Instant::now();
    loop {
        if let Some(guard) = acquire(backend, key, LONG).await.expect("an answer") {
            let took = started.elapsed();
            let released = guard.release().await.expect("an answer");
            assert!(released.is_released());
            return took;
        }
        assert!(
            started.elapsed() < within,
            "the key is still held after {within:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until something is the case, for as long as any machine may take.
pub(crate) async fn eventually<R>(what: &str, mut is: impl AsyncFnMut() -> Option<R>) -> R {
    let started = Instant::now();
    loop {
        if let Some(result) = is().await {
            return result;
        }
        assert!(started.elapsed() < BEFORE_LONG, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What something resolves to by a point in time, told by the order in which two timers of one task
/// fire: a machine that stalls delays both.
pub(crate) async fn by<R>(what: impl Future<Output = R>, deadline: Instant) -> Option<R> {
    tokio::select! {
        biased;
        result = what => Some(result),
        () = tokio::time::sleep_until(deadline.into()) => None,
    }
}

/// Whether something resolves by a point in time.
pub(crate) async fn resolves_by(what: impl Future<Output = ()>, deadline: Instant) -> bool {
    by(what, deadline).await.is_some()
}

/// The error of a store that cannot be reached.
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

/// The middle one of several times: what holds on a machine that is busy now and then.
pub(crate) fn median<R: Ord + Copy + Debug>(mut values: Vec<R>) -> R {
    values.sort();
    *values.get(values.len() / 2).expect("some values")
}

/// Whether a key is held, by a way that no fault meets.
pub(crate) async fn held<B: ManagedBackend>(backend: &B, key: &str) -> bool {
    syncguard_core::is_locked(backend, key)
        .await
        .expect("an answer")
}
