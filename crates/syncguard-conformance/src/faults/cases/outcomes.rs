//! Replies that are lost after the store has applied the call.

use std::time::{Duration, Instant};

use syncguard_core::{ErrorCode, LockError, Locks, LocksBuilder};
use syncguard_testkit::{Connections, Faults, Flow};

use crate::faults::steps::{
    BEFORE_LONG, LONG, acquire, eventually, free_within, is_held, is_outage, median, release,
};
use crate::faults::{Fixture, Target};

const OPERATION_TIMEOUT: Duration = Duration::from_millis(200);

/// Longer than the first few background releases take together.
const OUTAGE: Duration = Duration::from_millis(800);

/// Once the network is back, an orphaned lock must be free within this time.
const SETTLED: Duration = Duration::from_secs(1);

const ROUNDS: usize = 5;

/// The connection breaks, data in flight is lost, and no new connection can be made.
const BROKEN: Faults = Faults {
    connections: Connections::Refuse,
    requests: Flow::Reset,
    replies: Flow::Reset,
};

/// An acquire whose reply is lost fails with an unknown outcome. Its lock is free within a second of
/// the network's return, not only at the end of its TTL.
pub async fn an_acquire_whose_reply_is_lost_is_released_once_the_network_is_back<T: Target>(
    fixture: Fixture<T>,
) {
    released(&fixture, Faults::HALF_OPEN).await;
}

/// The same if the connection breaks instead of hanging. The driver then reports an error at once, which
/// does not prove that nothing was applied.
pub async fn an_acquire_whose_connection_breaks_at_the_reply_is_released<T: Target>(
    fixture: Fixture<T>,
) {
    released(&fixture, BROKEN).await;
}

async fn released<T: Target>(fixture: &Fixture<T>, loss: Faults) {
    let ttl = Duration::from_secs(30);
    let (direct, network) = (fixture.direct().await, fixture.network());
    let client = network.client_with(impatient).await;
    let (mut waits, mut pairs) = (Vec::new(), Vec::new());
    for key in (0..100).map(|round| fixture.key(&round.to_string())) {
        reachable(&client.locks, &key).await;
        let attempt = client.locks.try_lock(&key).ttl(ttl).attempt();
        let applied = async || is_held(&direct.locks, &key).await;
        let Some(outcome) = network.without_reply(attempt, applied, loss).await else {
            continue;
        };
        is_unknown(&outcome.expect_err("its reply was lost"), loss);
        tokio::time::sleep(OUTAGE).await;
        assert!(
            is_held(&direct.locks, &key).await,
            "the lock was released although the client cannot reach the store"
        );
        network.set(Faults::NONE);
        waits.push(free_within(&direct.locks, &key, ttl / 2).await);
        let began = Instant::now();
        release(acquire(&direct.locks, &key, ttl).await).await;
        pairs.push(began.elapsed());
        if waits.len() == ROUNDS {
            break;
        }
    }
    assert_eq!(waits.len(), ROUNDS, "most acquires ended before the loss");
    // On a busy machine, the few calls of a release take long.
    assert!(
        median(waits.clone()) < SETTLED + 10 * median(pairs.clone()),
        "times from the network's return until the key was free: {waits:?}; of a pair: {pairs:?}"
    );
    drained(&client.locks).await;
}

/// A release whose reply is lost fails with an unknown outcome. The key is free, and a retry of the
/// release is no error.
pub async fn a_release_whose_reply_is_lost_can_be_retried<T: Target>(fixture: Fixture<T>) {
    retried(&fixture, Faults::HALF_OPEN).await;
}

/// The same if the connection breaks instead of hanging.
pub async fn a_release_whose_connection_breaks_at_the_reply_can_be_retried<T: Target>(
    fixture: Fixture<T>,
) {
    retried(&fixture, BROKEN).await;
}

async fn retried<T: Target>(fixture: &Fixture<T>, loss: Faults) {
    let (direct, network) = (fixture.direct().await, fixture.network());
    let client = network.client_with(impatient).await;
    let mut rounds = 0;
    for key in (0..100).map(|round| fixture.key(&round.to_string())) {
        reachable(&client.locks, &key).await;
        let lease = acquire(&direct.locks, &key, LONG).await.detach();
        let release = client.locks.release(lease.lock_id());
        let applied = async || !is_held(&direct.locks, &key).await;
        let Some(outcome) = network.without_reply(release, applied, loss).await else {
            continue;
        };
        is_unknown(&outcome.expect_err("its reply was lost"), loss);
        network.set(Faults::NONE);
        let retry = async || match client.locks.release(lease.lock_id()).await {
            Ok(released_or_not_held) => Some(released_or_not_held),
            // The client has yet to notice that the network is back.
            Err(error) => {
                is_outage(&error);
                None
            }
        };
        let _ = eventually("an answer to the retried release", retry).await;
        assert!(!is_held(&direct.locks, &key).await);
        let _ = free_within(&direct.locks, &key, BEFORE_LONG).await;
        rounds += 1;
        if rounds == ROUNDS {
            break;
        }
    }
    assert_eq!(rounds, ROUNDS, "most releases ended before the loss");
    drained(&client.locks).await;
}

/// A section fails, and then its release does: the caller gets the section's own error, and the release's beside
/// it.
pub async fn a_sections_own_error_survives_a_release_that_fails<T: Target>(fixture: Fixture<T>) {
    let (direct, network) = (fixture.direct().await, fixture.network());
    let client = network.client().await;
    let key = fixture.key("section");
    let run = client.locks.lock(&key).ttl(LONG).run(async |_| {
        network.set(Faults::HALF_OPEN);
        Err::<(), _>("the section's own error")
    });
    let receipt = run.await.expect("acquire failed");
    is_outage(receipt.release_error().expect("the store hangs"));
    assert_eq!(receipt.into_value(), Err("the section's own error"));
    network.set(Faults::NONE);
    let _ = free_within(&direct.locks, &key, BEFORE_LONG).await;
    drained(&client.locks).await;
}

fn is_unknown(error: &LockError, loss: Faults) {
    assert!(
        error.outcome_unknown(),
        "the store has applied the call, and its error says that the outcome is known: {error:?}"
    );
    if loss == Faults::HALF_OPEN {
        assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
    }
}

fn impatient(builder: LocksBuilder) -> LocksBuilder {
    builder.operation_timeout(OPERATION_TIMEOUT)
}

/// Waits until a client has a connection.
async fn reachable(locks: &Locks, key: &str) {
    eventually("a connection", async || locks.is_locked(key).await.ok()).await;
}

async fn drained(locks: &Locks) {
    let drained = locks.drain(BEFORE_LONG).await;
    drained.expect("background releases are still pending");
}
